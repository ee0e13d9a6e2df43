"""What cannot be used is refused: status 2, one line that names the file or dotted parameter, nothing half-written."""

import shutil

import pytest

PARAMETERS = [
    # stage, changed parameters, the beginning of the error, more of it
    (["clean"], {"clean__paragraph": {}}, "clean.paragraph: unknown parameter", "did you mean 'paragraphs'"),
    (["clean"], {"clean__documents": {"wrods": {"min": 3}}}, "clean.documents.wrods: unknown", "did you mean 'words'"),
    (["clean"], {"clean__languages": {"keep": ["xx"]}}, "clean.languages.keep: 'xx'", "cannot be identified"),
    (["deduplicate"], {"split__test": "0.1"}, "split.test: found the text '0.1'", "a number"),
    (["deduplicate"], {"split__test": 0.9}, "split.valid: 0.2 and test: 0.9", "a sum below 1"),
    (["deduplicate"], {"split__test": 0.0001}, "split.test: ", "no document"),
    (["deduplicate"], {"mixture__shares": {"other": 1.0}}, "mixture.shares: found other", "training text: own"),
    (["deduplicate"], {"deduplicate__paragraphs": "keep"}, "deduplicate.paragraphs: ", "one of keep_one, off"),
    (["tokenizer"], {"tokenizer__kind": "morfessor"}, "tokenizer.kind: ", "one of bpe, unigram, wordpiece, bytelevel"),
    (["tokenizer"], {"tokenizer__vocab_size": 50_000}, "tokenizer.vocab_size: 50000 is more", "expected at most"),
    (
        ["tokenizer"],
        {"tokenizer__lowercase": True},
        "tokenizer.lowercase: bpe keeps a text as it is",
        "kind: wordpiece",
    ),
    (["tokenizer"], {"tokenizer__vocab_size": 7}, "tokenizer.vocab_size: 7 is too small", "more than 264"),
    (["ingest", "own"], {"sources": {"my texts": {}}}, "sources: found the name 'my texts'", "letters, digits"),
    (["clean"], {"sources": {}}, "sources: found {}", "at least one section"),
    (["examples", "rte"], {}, "examples.rte: no such section in params.yaml", "it has sotu-era, next"),
    (
        ["examples", "sst"],
        {"examples": {"sst": {"input": "data"}}},
        "examples.sst: unknown task",
        "did you mean 'sst2'",
    ),
    (["examples", "rte"], {"examples": {"rte": {"input": "nowhere"}}}, "nowhere: missing", ""),
    (["examples", "rte"], {"examples": {"rte": {"input": "data"}}}, "data/train.tsv: missing", "its folder RTE"),
    (["examples", "x.y"], {"examples": {"x.y": {"input": "data"}}}, "examples: found the name 'x.y'", "letters"),
    (["finetune", "gpt", "sotu-era", "1"], {"examples": {}}, "examples: found {}", "at least one section"),
    (["ingest", "other"], {}, "sources.other: no such section in params.yaml", "it has own"),
]
SOURCES = [
    ({"input": "nowhere"}, "nowhere: ", "missing"),
    ({"reader": "web"}, "sources.own.reader: found 'web'", "folder, hub, sotu, bible"),
    ({"input": "data/*.jsonl"}, "sources.own.input: found 'data/*.jsonl'", "in `pattern`"),
    ({"max_quarantined": 1.5}, "sources.own.max_quarantined: found 1.5", "at most 1"),
]
TRAININGS = [
    (
        ["pretrain", "gpt"],
        {"training__optimizer__learning_rate": "1e-4"},
        "training.optimizer.learning_rate: ",
        "1.0e-4",
    ),
    (
        ["pretrain", "gpt"],
        {"training__optimizer__learning_rate": 1e30},
        "training.optimizer.learning_rate: ",
        "at step",
    ),
    (["pretrain", "gpt"], {"model__context": 1_000_000}, "artifacts/tokens/", "context"),
    (["pretrain", "gpt"], {"model__vocab_size": 13}, "model.vocab_size: ", "tokenizer"),
    (["pretrain", "gpt"], {"architecture": "rnn"}, "architecture: found 'rnn'", "gpt"),
    (
        ["pretrain", "gpt"],
        {"objective": {"name": "masked"}},
        "objective.name: masked cannot train architecture gpt",
        "expected causal",
    ),
    (["pretrain", "gpt"], {"valid_windows": 0}, "valid_windows: found 0", "above 0"),
]
FINETUNINGS = [
    (["finetune", "gpt", "sotu-era", "1"], {"train_examples": -5}, "finetune.train_examples: found -5", "above 0"),
    (["finetune", "gpt", "sotu-era", "1"], {"dropout": 1.5}, "finetune.dropout: found 1.5", "below 1"),
    (["finetune", "gpt", "sotu-era", "1"], {"auxiliary": -1}, "finetune.auxiliary: found -1", "at least 0"),
    (["finetune", "gpt", "sotu-era", "1"], {"seeds": [5, 5]}, "finetune.seeds: found [5, 5]", "each once"),
    (["finetune", "gpt", "sotu-era", "1"], {"training__epochs": 0}, "finetune.training.epochs: found 0", "above 0"),
    (["finetune", "gpt", "sotu-era", "1"], {"training__steps": 9}, "finetune.training.steps: unknown parameter", ""),
    (["finetune", "gpt", "sotu-era", "1"], {"training__accumulation": 3}, "finetune.training.accumulation: 3", "8"),
    (
        ["finetune", "gpt", "sotu-era", "1"],
        {"training__optimizer__warmup_steps": 9},
        "finetune.training.optimizer.warmup_steps: follows from warmup",
        "left out",
    ),
    (["finetune", "gpt", "sotu-era", "1"], {"lora": {"rank": 0, "alpha": 1}}, "finetune.lora.rank: found 0", "above 0"),
    (
        ["finetune", "gpt", "sotu-ear", "1"],
        {},
        "finetune.tasks: found 'sotu-ear'; expected sections of ex",
        "mean 'sotu-era'",
    ),
    (["finetune", "gpt", "rte", "1"], {}, "finetune.tasks: found 'rte'; expected ", "examples: next, sotu-era"),
]


def check(small, command, beginning, more):
    error = small.refused(f"tasks.{command[0]}", *command[1:])
    assert error.startswith(f"error: {beginning}")
    assert more in error


@pytest.mark.parametrize(("command", "changes", "beginning", "more"), PARAMETERS)
def test_a_wrong_parameter_is_refused_by_its_dotted_name(small, command, changes, beginning, more):
    small.change(**changes)
    check(small, command, beginning, more)


@pytest.mark.parametrize(("changes", "beginning", "more"), SOURCES)
def test_a_wrong_parameter_of_a_source_is_refused_by_its_dotted_name(small, changes, beginning, more):
    small.change(**{f"sources__own__{name}": value for name, value in changes.items()})
    check(small, ["ingest", "own"], beginning, more)


@pytest.mark.parametrize(("command", "changes", "beginning", "more"), TRAININGS)
def test_a_wrong_parameter_of_a_training_is_refused_by_its_dotted_name(small, command, changes, beginning, more):
    small.change(**{f"pretrain__gpt__{name}": value for name, value in changes.items()})
    file = beginning.startswith("artifacts/")
    check(small, command, beginning if file else f"pretrain.gpt.{beginning}", more)


@pytest.mark.parametrize(("command", "changes", "beginning", "more"), FINETUNINGS)
def test_a_wrong_parameter_of_fine_tuning_is_refused_by_its_dotted_name(small, command, changes, beginning, more):
    small.change(**{f"finetune__{name}": value for name, value in changes.items()})
    check(small, command, beginning, more)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            lambda text: text.replace("clean:\n", "cleaned:\n"),
            "error: clean: no such section in params.yaml; it has models",
        ),
        (lambda text: text.replace("      min: 2\n", "      min: 2\n      min: 3\n"), "error: params.yaml:"),
        (lambda text: text + "models: [\n", "error: params.yaml: not valid YAML"),
        (lambda text: text + "models: []\n", "error: params.yaml:"),
        (lambda text: text + "caf\udce9: 1\n", "error: params.yaml: "),
        (lambda text: None, "error: params.yaml: missing"),
        (lambda text: "", "error: clean: no such section in params.yaml"),
    ],
    ids=["no section", "twice", "broken", "section twice", "no UTF-8", "no file", "empty"],
)
def test_a_parameter_file_that_cannot_be_used_is_refused_with_its_line(small, change, error):
    path = small.root / "params.yaml"
    text = path.read_text()
    path.unlink()
    if (changed := change(text)) is not None:
        path.write_text(changed, errors="surrogateescape")
    found = small.refused("tasks.clean")
    assert found.startswith(error)
    if "      min: 3" in str(changed):
        line = changed.splitlines().index("      min: 2") + 1
        assert f"params.yaml:{line}: min appears twice" in found


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "error: data: nothing to read"),
        ("", "error: data: no document"),
    ],
    ids=["empty folder", "empty file"],
)
def test_a_folder_without_text_is_refused(small, content, error):
    for path in (small.root / "data").rglob("*.jsonl"):
        path.unlink()
    if content is not None:
        (small.root / "data/x.jsonl").write_text(content)
    assert small.refused("tasks.ingest", "own").startswith(error)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("artifacts/corpus/raw/own.parquet/00000.parquet", ["clean"]),
        ("artifacts/corpus/splits/train.parquet/00000.parquet", ["tokenizer"]),
        ("artifacts/tokenizer/tokenizer.model", ["pack"]),
        ("artifacts/tokens/train/shard-00000.bin", ["pretrain", "gpt"]),
        ("artifacts/models/gpt/model.safetensors", ["evaluate", "gpt"]),
        ("artifacts/examples/sotu-era/train.jsonl", ["finetune", "gpt", "sotu-era", "1"]),
    ],
)
def test_a_damaged_file_is_refused_by_name(small, path, command):
    data = bytearray((small.root / path).read_bytes())
    data[len(data) // 2] ^= 1
    (small.root / path).write_bytes(data)
    assert small.refused(f"tasks.{command[0]}", *command[1:]).startswith(f"error: {path}: ")


def test_a_missing_input_is_refused_by_name(small):
    shutil.rmtree(small.root / "artifacts/corpus/raw/own.parquet")
    assert small.refused("tasks.clean").startswith("error: artifacts/corpus/raw/own.parquet: missing")


def test_a_store_of_another_tokenizer_is_refused(small):
    small.change(tokenizer__vocab_size=299)
    small.run("tasks.tokenizer")
    assert small.refused("tasks.pretrain", "gpt").startswith("error: artifacts/tokens/train: made by the tokenizer")
