"""What cannot be used is refused: status 2, one line that names the file or dotted parameter, nothing half-written."""

import shutil

import pytest

OPTIMIZER = "pretrain__gpt__training__optimizer__learning_rate"
TASK = ["finetune", "gpt", "sotu-era", "1"]
PARAMETERS = [
    # stage, changed parameters, the beginning of the error, more of it; see test_check for those of `check`
    (["clean"], {"clean__paragraph": {}}, "clean.paragraph: unknown parameter", "did you mean 'paragraphs'"),
    (["clean"], {"sources": {}}, "sources: found {}", "at least one section"),
    (["deduplicate"], {"split__test": 0.0001}, "split.test: ", "no document"),
    (
        ["tokenizer", "own"],
        {"tokenizers__own__lowercase": True},
        "tokenizers.own.lowercase: bpe keeps a text as it is",
        "wordpiece",
    ),
    (["ingest", "own"], {"sources": {"my texts": {}}}, "sources: found the name 'my texts'", "letters, digits"),
    (["ingest", "own"], {"sources__own__reader": "web"}, "sources.own.reader: found 'web'", "folder, hub, sotu, bible"),
    (["ingest", "other"], {}, "sources.other: no such section in params.yaml", "it has own"),
    (["examples", "rte"], {"examples": {"rte": {"input": "data"}}}, "data/train.tsv: missing", "its folder RTE"),
    (["pretrain", "gpt"], {OPTIMIZER: "1e-4"}, "pretrain.gpt.training.optimizer.learning_rate: ", "1.0e-4"),
    (["pretrain", "gpt"], {"pretrain__gpt__model__context": 1_000_000}, "artifacts/tokens/", "context"),
    (["pretrain", "gpt"], {"pretrain__gpt__model__vocab_size": 13}, "pretrain.gpt.model.vocab_size: ", "tokenizer"),
    (["pretrain", "gpt"], {"pretrain__gpt__architecture": "rnn"}, "pretrain.gpt.architecture: found 'rnn'", "gpt"),
    (TASK, {"finetune__seeds": [5, 5]}, "finetune.seeds: found [5, 5]", "each once"),
    (TASK, {"finetune__training__accumulation": 3}, "finetune.training.accumulation: 3", "8"),
    (["finetune", "gpt", "sotu-ear", "1"], {}, "finetune.tasks: found 'sotu-ear'; expected", "mean 'sotu-era'"),
]


@pytest.mark.parametrize(("command", "changes", "beginning", "more"), PARAMETERS)
def test_a_wrong_parameter_is_refused_by_its_dotted_name(small, command, changes, beginning, more):
    small.change(**changes)
    error = small.refused(f"tasks.stages.{command[0]}", *command[1:])
    assert error.startswith(f"error: {beginning}")
    assert more in error


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
def test_unusable_params_yaml_is_refused_with_its_line(small, change, error):
    path = small.root / "params.yaml"
    text = path.read_text()
    path.unlink()
    if (changed := change(text)) is not None:
        path.write_text(changed, errors="surrogateescape")
    message = small.refused("tasks.stages.clean")
    assert message.startswith(error)
    if "      min: 3" in str(changed):
        line = changed.splitlines().index("      min: 2") + 1
        assert f"params.yaml:{line}: min appears twice" in message


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
    assert small.refused("tasks.stages.ingest", "own").startswith(error)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("artifacts/corpus/raw/own.parquet/00000.parquet", ["clean"]),
        ("artifacts/corpus/splits/train.parquet/00000.parquet", ["tokenizer", "own"]),
        ("artifacts/tokenizers/own/tokenizer.model", ["pack", "own"]),
        ("artifacts/tokens/own/train/shard-00000.bin", ["pretrain", "gpt"]),
        ("artifacts/models/gpt/model.safetensors", ["evaluate", "gpt"]),
        ("artifacts/examples/sotu-era/train.jsonl", ["finetune", "gpt", "sotu-era", "1"]),
    ],
)
def test_a_damaged_file_is_refused_by_name(small, path, command):
    data = bytearray((small.root / path).read_bytes())
    data[len(data) // 2] ^= 1
    (small.root / path).write_bytes(data)
    assert small.refused(f"tasks.stages.{command[0]}", *command[1:]).startswith(f"error: {path}: ")


def test_a_missing_input_is_refused_by_name(small):
    shutil.rmtree(small.root / "artifacts/corpus/raw/own.parquet")
    assert small.refused("tasks.stages.clean").startswith("error: artifacts/corpus/raw/own.parquet: missing")


def test_a_store_of_another_tokenizer_is_refused(small):
    small.change(tokenizers__own__vocab_size=299)
    small.run("tasks.stages.tokenizer", "own")
    assert small.refused("tasks.stages.pretrain", "gpt").startswith(
        "error: artifacts/tokens/own/train: made by the tokenizer"
    )
