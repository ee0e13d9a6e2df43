"""What many tests share: a small generated corpus, a tokenizer trained on it, tiny models, one quiet environment."""

import datetime
import gc
import os
import random
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import settings

# Several processes run tests side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1"}

# The same examples in every run, so that a red test is the change's fault; `--hypothesis-profile random` explores.
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.register_profile("random", deadline=None, max_examples=300, print_blob=True)
settings.load_profile("fixed")

ROOT = Path(__file__).parent.parent
PROVED = pytest.StashKey[list[tuple[str, str, str]]]()
DEADLINE = pytest.StashKey[float]()
LEFT_OUT = "left out: the minutes are over"
# All processes have to agree on it, also at midnight.
DAY = int(os.environ.setdefault("PLM_TEST_DAY", str(datetime.date.today().toordinal())))


def pytest_addoption(parser):
    """Of more tests than there is time for, each day runs another part."""
    what = "start no test after so many minutes, begin each day elsewhere, and name what was left out"
    parser.addoption("--minutes", type=float, default=float("inf"), help=what)


def pytest_configure(config):
    """The minutes begin."""
    config.stash[DEADLINE] = time.monotonic() + 60 * config.option.minutes


@pytest.fixture
def table(request):
    """Adds a row to the table that `make prove` prints: a fault, how often, what came of it."""
    rows = request.config.stash.setdefault(PROVED, [])
    return lambda fault, times, outcome: rows.append((fault, f"{times:,}", outcome))


@pytest.hookimpl(trylast=True)  # when only those are left that `-m` has chosen
def pytest_collection_modifyitems(config, items):
    """Shuffle the files, always alike: so tests that wait run beside tests that compute, and no core is idle.

    Those that want a Prefect server come first, for then they are one process's, which starts one.
    """
    served = {item.path for item in items if "prefect_url" in item.fixturenames}
    items.sort(key=lambda item: (item.path not in served, zlib.crc32(item.path.relative_to(ROOT).as_posix().encode())))
    if config.option.minutes < float("inf"):
        # Steps of the golden ratio: however few there is time for, after a few days all were run.
        first = int(len(items) * (DAY * 0.6180339887 % 1))
        items[:] = items[first:] + items[:first]


@pytest.hookimpl(tryfirst=True)  # before anything is set up
def pytest_runtest_setup(item):
    """Once begun, a test is run to its end."""
    if time.monotonic() > item.config.stash[DEADLINE]:
        pytest.skip(LEFT_OUT)


def pytest_collection_finish():
    """Have what all tests have imported looked through for garbage no more, and what is new less often."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_sessionfinish():
    """Take it apart as ever: some libraries complain of what is left."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter, config):
    """Print the table, and which tests there was no time for."""
    left = [report.nodeid for report in terminalreporter.stats.get("skipped", []) if LEFT_OUT in str(report.longrepr)]
    if left:
        terminalreporter.section(f"{len(left)} tests left out: {config.option.minutes:g} minutes were over")
        terminalreporter.write_line("\n".join(sorted(left)))
    rows = [("fault", "times", "outcome"), *config.stash.get(PROVED, [])]
    if len(rows) > 1:
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            terminalreporter.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


@pytest.fixture
def server(tmp_path):
    """A real MLflow server, running."""
    from mlflows import Server

    server = Server(tmp_path / "server")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def prose(seed, words):
    """``words`` words of made-up prose, the same for the same seed; frequent words are frequent as in real text."""
    draw = random.Random(seed)
    lexicon = [
        "".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(1 + i % 4)) for i in range(157)
    ]
    weights = [1 / rank for rank in range(1, len(lexicon) + 1)]
    return " ".join(draw.choices(lexicon, weights, k=words)).capitalize() + "."


def speech(seed, paragraphs=7):
    """A text of several paragraphs that fit the fine-tuning tasks' rule of 15 to 200 words."""
    return "\n\n".join(prose(f"{seed}/{i}", 17 + (seed * 5 + i * 13) % 37) for i in range(paragraphs))


@pytest.fixture(scope="session")
def documents():
    """37 documents with a year, spread over the three eras."""
    from plm_core.corpus.document import Document

    return [Document(f"d{i:03d}", speech(i), "made-up", {"year": 1790 + i * 7}) for i in range(37)]


@pytest.fixture(scope="session")
def tokenizers(documents, tmp_path_factory):
    """A tokenizer of 307 pieces of each kind."""
    from plm_core.text.tokenizer_kinds import open_tokenizer, train_tokenizer
    from plm_core.text.tokenizers import NOT_LEARNED, TokenizerConfig

    made = {}
    for kind in NOT_LEARNED:
        path = tmp_path_factory.mktemp(kind) / "tokenizer"
        path.write_bytes(train_tokenizer([d.text for d in documents], TokenizerConfig(kind, 307)))
        made[kind] = open_tokenizer(path.rename(path.with_name(open_tokenizer(path).file)))
    return made


@pytest.fixture(scope="session")
def tokenizer(tokenizers):
    return tokenizers["bpe"]


@pytest.fixture(scope="session")
def store(tmp_path_factory, documents, tokenizer):
    """The documents as a token store of several shards."""
    from plm_core.text.token_store import TokenStore, write_store

    folder = tmp_path_factory.mktemp("store") / "train"
    write_store(folder, ((d.id, d.text) for d in documents), tokenizer, shard_tokens=777)
    return TokenStore(folder)


@pytest.fixture(scope="session")
def device():
    """One thread of the CPU, deterministic: the machine on which results are compared bit by bit."""
    import torch

    from plm_core.training.device import Device

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return Device(torch.device("cpu"), 1, False)


@pytest.fixture
def uncounted(monkeypatch):
    """Trainings without the count of a step's operations, which takes as long as all steps of a tiny one."""
    from plm_core.training.callbacks.speed_monitor import SpeedMonitor

    monkeypatch.setattr(SpeedMonitor, "calibrate", lambda self, rows: self.start())


@pytest.fixture(scope="session")
def make_gpt(device):
    """Makes a tiny float64 GPT in which no two sizes are equal; keywords replace its sizes."""
    import torch

    from plm_core.models.gpt import GPT, GPTConfig

    def make(seed=0, dtype=torch.float64, **sizes):
        torch.manual_seed(seed)
        shape = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 21, "dropout": 0.0} | sizes
        return GPT(GPTConfig(**shape)).to(dtype)

    return make


@pytest.fixture(scope="session")
def project():
    """The root of the project."""
    return ROOT
