"""The command init: what it proposes follows from the folder, and nothing is written unless it is agreed to."""

import csv
import json

import published
import pytest
import yaml
from projects import ROOT
from ruamel.yaml import YAML

from plm_core.config import UserError, choose
from plm_core.configs.checkpoint_description import read_description
from plm_core.corpus.sources import SOURCES
from plm_core.shared import paths
from plm_core.training.size_presets import fill_in_size, operations
from tasks.commands.init import SMALL, init, propose, propose_start, survey

SENTENCE = "The weather was fine that day, and so we went for a long walk along the river in the morning. "


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of text in a project with the demo's parameters."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (tmp_path / "my texts").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my texts"


def write(folder, count, text):
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i in range(count)))


def params(folder):
    return yaml.safe_load((folder.parent / "params.yaml").read_text())


def test_init_writes_nothing_without_consent(folder, monkeypatch, capsys):
    write(folder, 30, SENTENCE)
    before = (folder.parent / "params.yaml").read_text()
    init(folder, agreed=True, dry_run=True)
    assert "+  my-texts: {reader: folder, input: my texts}" in capsys.readouterr().out
    init(folder, agreed=False)  # no terminal
    assert "--yes" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer in ("", "n"):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        init(folder, agreed=False)
    assert (folder.parent / "params.yaml").read_text() == before
    monkeypatch.setattr("builtins.input", lambda _: "y")
    init(folder, agreed=False)
    assert params(folder)["sources"] == {"my-texts": {"reader": "folder", "input": "my texts"}}
    assert propose(folder.relative_to(folder.parent), survey(folder)) == {}


def test_init_drops_rules_that_remove_much_text(folder):
    write(folder, 30, SENTENCE)
    init(folder, agreed=True)
    clean = params(folder)["clean"]
    assert clean["documents"] == {}
    assert clean["paragraphs"] == {"words": {"min": 4, "max": 2000}}
    assert clean["languages"] == {"keep": ["en"], "min_confidence": 0.5}


def test_init_keeps_rules_and_language_of_long_documents(folder):
    write(folder, 30, SENTENCE * 9)
    proposal = propose(folder, survey(folder))
    assert not [name for name in proposal if name.startswith("clean")]
    write(folder, 30, "Das Wetter war an jenem Tag schön, und so gingen wir lange am Fluss spazieren. " * 9)
    proposal = propose(folder, survey(folder))
    assert proposal["clean.languages"] == {"keep": ["de"], "min_confidence": 0.5}
    assert proposal["pairs.own-pairs.rules"] == ["word_order", "mentions"]


def test_init_derives_sizes_from_the_text(folder):
    write(folder, 30, SENTENCE)
    few = propose(folder, survey(folder))
    assert "pairs.own-pairs.rules" not in few  # of English text the rules for English stay
    assert (few["split.valid"], few["split.test"], few["tokenizers.own.vocab_size"]) == (0.15, 0.2, 512)
    assert few["pretrain.gpt.training.steps"] == 40
    assert few["pretrain.bert.training.optimizer.warmup_steps"] == 8
    write(folder, 3000, SENTENCE * 50)
    many = propose(folder, survey(folder))
    assert not [name for name in many if name.startswith(("split", "pretrain"))]
    assert "tokenizers.own.vocab_size" not in many  # the demo's, which is of this size
    write(folder, 30, "".join(map(chr, range(0x4E00, 0x5500))))
    assert propose(folder, survey(folder))["tokenizers.own.vocab_size"] > 2 * (0x5500 - 0x4E00)


@pytest.mark.parametrize(("count", "error"), [(0, "no document"), (19, "holds 19 documents; expected at least 20")])
def test_init_refuses_a_folder_with_too_little_text(folder, count, error):
    write(folder, count, SENTENCE)
    with pytest.raises(UserError, match=error):
        init(folder, agreed=True)


def mixed(folder):
    """Three formats: two that agree, and a table with names and a separator of its own."""
    write(folder, 30, SENTENCE)
    (folder / "b.TXT").write_text(SENTENCE)
    with (folder / "c.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["No", "Text"], *([i, SENTENCE * 9] for i in range(70))])


def test_init_makes_a_source_of_each_format_group(folder, capsys):
    mixed(folder)
    (folder / "d.pdf").write_text("x")
    with pytest.warns(UserWarning, match="1 files of other kinds are not read"):
        init(folder, agreed=True)
    out = capsys.readouterr().out
    assert "my texts (.csv): 70 documents, 0.06 MB, 0 unreadable records" in out
    assert "my texts (.jsonl, .txt): 31 documents, 0.00 MB, 0 unreadable records" in out
    table = {"formats": ["csv"], "text_field": "Text", "id_field": "No", "delimiter": ";"}
    text = {"formats": ["jsonl", "txt"]}
    expected = {
        "my-texts-csv": {"reader": "folder", "input": "my texts"} | table,
        "my-texts-jsonl": {"reader": "folder", "input": "my texts"} | text,
    }
    assert params(folder)["sources"] == expected
    assert YAML(typ="safe").load((folder.parent / "params.yaml").read_text())["sources"] == expected  # YAML 1.2
    for name in expected:
        ingest = choose(SOURCES, "reader", expected[name], "x")
        assert len(list(ingest.read())) == (70 if name.endswith("csv") else 31)


def test_init_add_keeps_existing_sources(folder, capsys):
    write(folder, 30, SENTENCE)
    init(folder, agreed=True)
    small = params(folder)
    other = folder.parent / "more/my texts"
    other.mkdir(parents=True)
    write(other, 3000, SENTENCE * 9)
    init(other, add=True, agreed=True)
    out = capsys.readouterr().out
    assert "my texts: 30 documents" in out
    assert "more/my texts: 3,000 documents" in out
    large = params(folder)
    added = {"my-texts-2": {"reader": "folder", "input": "more/my texts"}}
    assert large["sources"] == small["sources"] | added
    assert large["tokenizers"]["own"]["vocab_size"] > small["tokenizers"]["own"]["vocab_size"]
    assert large["pretrain"]["gpt"]["training"]["steps"] > small["pretrain"]["gpt"]["training"]["steps"]
    with pytest.raises(
        UserError, match=r"^sources\.my-texts: reads my texts already; expected a folder that is not a source yet"
    ):
        init(folder, add=True, agreed=True)


def test_init_start_uses_short_windows_beside_a_scratch_model(folder, monkeypatch, capsys):
    """Positions without embeddings are read at any length; each token of a document would be read many times."""
    monkeypatch.setattr("tasks.commands.init.SIZE", "60 core-minutes")  # more than the fewest steps
    published.write("llama", folder.parent / "theirs")
    path = folder.parent / "theirs/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 8192}))
    changes = propose_start("theirs", {"finetune.tasks": ["next"]})
    assert {changes[f"pretrain.{name}"]["model"]["context"] for name in ("theirs", "theirs-published")} == {512}
    assert (changes["evaluate.stride"], changes["finetune.tasks"]) == (256, ["next"])
    models = [fill_in_size(changes[f"pretrain.{name}"], name) for name in ("theirs", "theirs-scratch")]
    vocabulary = read_description(paths.IMPORTED / "theirs").model["vocab_size"]
    carried_on, scratch = ((section["training"]["steps"], operations(section, vocabulary)) for section in models)
    assert scratch[0] == SMALL * carried_on[0] * carried_on[1] / scratch[1] // 10 * 10 > 40
    published.write("bert", folder.parent / "encoder")
    encoder = propose_start("encoder", {"finetune.tasks": ["next"]})
    assert encoder["finetune.tasks"] == list(encoder["examples"]) == ["passages"]
    assert "examples" not in propose_start("encoder", {}, add=True)
    monkeypatch.setattr("tasks.commands.init.LARGE", 1)
    assert propose_start("theirs", {"finetune.tasks": ["next"]})["finetune.tasks"] == []
    assert "hours" in capsys.readouterr().out
