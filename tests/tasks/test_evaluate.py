"""Stage evaluate on models of all three papers: what it measures, under which name, and what it samples."""

import csv
import json
import math
import shutil

import pytest
import torch
from projects import Project, source

from plm_core import checkpoint
from plm_core.corpus.document import write_documents
from plm_core.evaluation.evidence import read_cost
from plm_core.text.tokenizers import PIECES

SHAPE = {"vocab_size": 307, "context": 29, "layers": 1, "heads": 2, "width": 16, "dropout": 0.0}
MODELS = {
    "gpt": ("gpt", "causal", {}),
    "bert": ("bert", "masked", {}),
    "xlnet": ("xlnet", "permutation", {"memory": 11}),
    "transformer_xl": ("xlnet", "causal", {"memory": 11}),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory, documents, tokenizer):
    """A project in which every model was measured on three documents. Not to be written to."""
    project = Project(source(tmp_path_factory.mktemp("measured") / "project"))
    (project.root / "artifacts/corpus/splits").mkdir(parents=True)
    for split in ("train", "test"):
        write_documents(project.root / f"artifacts/corpus/splits/{split}.parquet", documents[:3])
    for name, (architecture, objective, sizes) in MODELS.items():
        torch.manual_seed(13)
        model = checkpoint.build(architecture, SHAPE | sizes, name)
        config = checkpoint.CheckpointConfig(1, architecture, objective, SHAPE | sizes, tokenizer.sha256, 1, 5.0)
        checkpoint.save(project.root / "artifacts/models" / name, model.state_dict(), tokenizer, config)
    for name in MODELS:
        project.run("tasks.stages.evaluate", name)
    return project


@pytest.mark.parametrize(
    ("name", "quantities"),
    [
        ("gpt", ["bits_per_byte"]),
        ("bert", ["pseudo_bits_per_byte"]),
        ("xlnet", ["fixed_order_bits_per_byte", "mean_order_bits_per_byte"]),
        ("transformer_xl", ["bits_per_byte"]),
    ],
)
def test_evaluate_measures_the_quantity_of_the_objective(measured, documents, tokenizer, name, quantities):
    metrics = measured.metrics(f"evaluate-{name}")
    of_tokens = ["nats_per_token", "perplexity"] if MODELS[name][1] == "causal" else []
    samples = [] if name == "bert" else ["distinct_1", "distinct_2", "longest_copy"]  # too short for the others
    assert list(metrics) == [*quantities, *of_tokens, "tokens", "bytes", *samples]
    with (measured.root / f"artifacts/evidence/{name}/likelihood.csv").open(newline="") as file:
        evidence = list(csv.DictReader(file))
    assert {row["quantity"] for row in evidence} == {quantities[0]}
    assert [row["id"] for row in evidence] == [d.id for d in documents[:3]]
    texts = [tokenizer.encode(d.text) for d in documents[:3]]
    masked = name == "bert"
    assert [int(row["tokens"]) for row in evidence] == [17 if masked else len(ids) + 1 for ids in texts]
    # No cut goes through a character of these texts.
    spelled = [tokenizer.decode(ids[: 17 if masked else None]) for ids in texts]
    assert [int(row["bytes"]) for row in evidence] == [len(text.encode()) for text in spelled]
    nats = math.fsum(float(row["nats"]) for row in evidence)
    assert metrics[quantities[0]] == pytest.approx(nats / math.log(2) / metrics["bytes"], rel=1e-12)
    size = sum(p.numel() for p in checkpoint.load(measured.root / "artifacts/models" / name).model.parameters())
    assert read_cost(measured.root / f"artifacts/evidence/{name}/cost.csv") == {"parameters": size}
    if of_tokens:
        assert metrics["nats_per_token"] == pytest.approx(nats / metrics["tokens"], rel=1e-12)
        assert metrics["perplexity"] == pytest.approx(math.exp(nats / metrics["tokens"]), rel=1e-12)


def test_a_masked_model_fills_blanks_and_the_others_continue_texts(measured, tokenizer):
    pieces = {tokenizer.piece(token) for token in range(len(PIECES), 307)}
    for name in MODELS:
        samples = json.loads((measured.root / f"artifacts/samples/{name}.json").read_text())
        if name == "bert":
            (sample,) = samples
            assert sample["cloze"] == "Ba ___ so."
            shares = [share for _, share in sample["fills"]]
            assert shares == sorted(shares, reverse=True)
            assert 0 < sum(shares) < 1
            assert {piece for piece, _ in sample["fills"]} < pieces
        else:
            assert [list(sample) for sample in samples] == [["prompt", "continuation"]] * 2
            assert [sample["prompt"] for sample in samples] == ["Ba", ""]
            texts, metrics = [sample["continuation"] for sample in samples], measured.metrics(f"evaluate-{name}")
            words = [word for text in texts for word in text.lower().split()]
            assert metrics["distinct_1"] == len(set(words)) / len(words)
            assert metrics["longest_copy"] == 0  # a model that has learned nothing


def test_evaluate_is_reproducible(measured, tmp_path):
    again = measured.copied(tmp_path / "project")
    shutil.rmtree(again.root / "artifacts/evidence/xlnet")
    again.run("tasks.stages.evaluate", "xlnet")
    assert again.files() == measured.files()


def test_evaluate_refuses_a_too_long_blank_text(measured, tmp_path):
    project = measured.copied(tmp_path / "project")
    project.change(evaluate__cloze=["___" + " so" * 37])
    error = project.refused("tasks.stages.evaluate", "bert")
    assert error.startswith("error: evaluate.cloze: '___ so so so")
    assert error.endswith("expected at most the model's context, 29")


def test_evaluate_samples_begin_with_held_out_documents(measured, tmp_path, documents):
    project = measured.copied(tmp_path / "project")
    project.change(evaluate__prompts=..., evaluate__cloze=None)
    begins = [" ".join(document.text.split()[:5]) for document in documents[:3]]
    for name, key, end in (("gpt", "prompt", ""), ("bert", "cloze", " ___")):
        project.run("tasks.stages.evaluate", name)
        samples = json.loads((project.root / f"artifacts/samples/{name}.json").read_text())
        assert [sample[key] for sample in samples] == [begin[:40] + end for begin in begins]
