"""`seen` shows the batch that a checkpoint was trained on, names its documents, and refuses when they are gone."""

import json
import shutil

import pytest
from projects import TRAINING

from plm_core import checkpoint
from plm_core.corpus.document import read_documents
from plm_core.objectives import build_objective
from plm_core.objectives.masked import FOLLOWS
from plm_core.shared.files import write_checksums
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import EOS, PIECES
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.training_config import LoopConfig

MODEL = {"context": 29, "layers": 1, "heads": 2, "width": 16, "dropout": 0.0}
SECTIONS = {
    "gpt_documents": ("gpt", {"name": "causal", "packing": "documents"}, {}),
    "bert": ("bert", {"name": "masked", "next_sentence": True}, {}),
    "roberta_documents": ("bert", {"name": "masked", "packing": "documents"}, {}),
    "xlnet": ("xlnet", {"name": "permutation", "predict": 3}, {"memory": 7}),
}


@pytest.fixture(scope="module")
def trained(built, tmp_path_factory):
    """The built project with more sections, each trained for a few steps. Not to be written to."""
    project = built.copied(tmp_path_factory.mktemp("seen") / "project")
    training = TRAINING | {"steps": 6, "batch": 4}
    for name, (architecture, objective, sizes) in SECTIONS.items():
        section = {"architecture": architecture, "objective": objective, "model": MODEL | sizes, "training": training}
        project.change(**{f"pretrain__{name}": section | {"valid_windows": 5}})
    for name in SECTIONS:
        out, _ = project.run("tasks.stages.pretrain", name)
        assert ("of the documents are cut" in out) == name.endswith("documents")
    return project


def opened(project):
    tokens, tokenizer = (
        TokenStore(project.root / "artifacts/tokens/own/train"),
        project.root / "artifacts/tokenizers/own",
    )
    return tokens, open_tokenizer(tokenizer)


@pytest.mark.parametrize("name", ["gpt", *SECTIONS])
def test_seen_rows_match_the_documents_that_were_read(trained, name):
    """The restored pieces of every named part are those of that part of the document's text."""
    store, tokenizer = opened(trained)
    texts = {d.id: d for d in read_documents(trained.root / "artifacts/corpus/splits/train.parquet")}
    step, rows = (5, 4) if name in SECTIONS else (23, 8)
    out, _ = trained.run("tasks.commands.seen", name, f"--step={step}", "--rows=99", "--json")
    report = json.loads(out)
    assert (report["model"], report["step"], report["rows"], report["positions"]) == (name, step, rows, 29)
    assert [row["row"] for row in report["shown"]] == list(range(rows))
    objective = SECTIONS.get(name, ("gpt", {"name": "causal"}, {}))[1]
    described = checkpoint.describe(trained.root / "artifacts/models" / name)
    config = checkpoint.shape(described.architecture, described.model, "x")
    batches = build_objective(objective, "x").batches(store, config, rows)
    # The loop counts from 0, people and curves from 1.
    seed = LoopConfig(seed=3, steps=99, batch=rows, optimizer=OptimizerConfig(0.1, 5)).order_seed
    batch = batches.at(seed, step - 1)
    for row in report["shown"]:
        pieces = row["inputs"]
        assert pieces == [tokenizer.piece(token) for token in batch.inputs[row["row"]].tolist()]
        if objective["name"] != "causal":
            for prediction in row["predicted"]:
                pieces[prediction["position"]] = prediction["token"]
        else:
            following = {prediction["position"]: prediction["token"] for prediction in row["predicted"]}
            assert all(following.get(i, piece) == piece for i, piece in enumerate(pieces[1:]) if piece not in PIECES)
        assert len(row["predicted"]) == int((batch.targets[row["row"]] >= 0).sum())
        follows = int(batch.following[row["row"]]) == FOLLOWS if name == "bert" else None
        assert row.get("b_follows_a") == follows
        ordinary = 0
        for part in row["documents"]:
            first, stop = part["tokens"]
            document = texts[part["id"]]
            assert store.ids([part["document"]]) == [document.id]
            tokens = [*tokenizer.encode(document.text), EOS]
            assert part["of"] == len(tokens)
            there = pieces[part["position"] : part["position"] + stop - first]
            assert there == [tokenizer.piece(token) for token in tokens[first:stop]]
            ordinary += stop - first
        assert sum(piece not in PIECES for piece in pieces) <= ordinary <= 29


def test_seen_shows_masks_and_source_documents(trained):
    shown = {name: trained.run("tasks.commands.seen", name, "--step=1", "--rows=2")[0] for name in SECTIONS}
    for name, text in shown.items():
        assert text.count("\nrow ") == 2
        assert "step 1 of 6: the first 2 of 4 rows of 29 positions" in text
        assert ": tokens [" in text
        assert ("<mask: " in text.split("\nrow ", 1)[1]) == (name in ("bert", "roberta_documents"))
        assert ("<1: " in text) == (name == "xlnet")
    assert "<cls>" in shown["bert"]
    assert shown["bert"].count("  B follows A\n") + shown["bert"].count("  B is from elsewhere\n") == 2
    assert "</s>" in shown["gpt_documents"]


def test_seen_refuses_steps_that_did_not_happen(trained):
    for step in (0, 7, -1):
        error = trained.refused("tasks.commands.seen", "bert", f"--step={step}")
        assert error == f"error: seen.step: {step}; expected 1 to 6 (pretrain.bert.training.steps)"
    assert "seen.rows: 0" in trained.refused("tasks.commands.seen", "bert", "--step=1", "--rows=0")
    assert "pretrain.none: no such section" in trained.refused("tasks.commands.seen", "none", "--step=1")


def test_seen_refuses_models_of_other_inputs(small):
    small.run("tasks.commands.seen", "gpt", "--step=1")
    remedy = "`dvc repro pretrain@gpt` trains on what is there now"
    batch = TRAINING["batch"]
    small.change(pretrain__gpt__training__batch=2 * batch)
    error = small.refused("tasks.commands.seen", "gpt", "--step=1")
    assert error.startswith("error: artifacts/models/gpt: was trained with another params.yaml (pretrain.gpt) (")
    assert error.endswith(remedy)
    small.change(pretrain__gpt__training__batch=batch)
    small.run("tasks.commands.seen", "gpt", "--step=1")
    small.change(split__salt="another")
    small.run("tasks.stages.deduplicate")
    small.run("tasks.stages.pack", "own")
    error = small.refused("tasks.commands.seen", "gpt", "--step=1")
    assert error.startswith("error: artifacts/models/gpt: was trained with another artifacts/token")
    assert error.endswith(remedy)


def test_a_checkpoint_that_names_no_lineage_is_refused(small):
    folder = small.root / "artifacts/models/gpt"
    described = json.loads((folder / checkpoint.CONFIG_FILE).read_text())
    (folder / checkpoint.CONFIG_FILE).write_text(json.dumps(described | {"lineage": None}))
    write_checksums(folder)
    assert "artifacts/models/gpt: does not say what it was trained on" in small.refused(
        "tasks.commands.seen", "gpt", "--step=1"
    )
    shutil.rmtree(folder)
    assert "artifacts/models/gpt: not trained yet, or still training" in small.refused(
        "tasks.commands.seen", "gpt", "--step=1"
    )
