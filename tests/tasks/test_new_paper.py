"""Papers that no stage knows by name: ELECTRA, with an objective of its own, goes from text to report and gate."""

import json

import pytest
import torch

from plm_core import checkpoint
from plm_core.models.elmo import spelled

TRAINING = {"seed": 3, "steps": 6, "batch": 4, "report_every": 2, "valid_every": 2}
TRAINING["optimizer"] = {"learning_rate": 0.005, "warmup_steps": 2}
MUON = TRAINING | {"optimizer": TRAINING["optimizer"] | {"name": "muon"}}
MODEL = {"context": 29, "layers": 1, "heads": 2, "width": 16, "dropout": 0.0}
PROMOTION = {
    "registered_model": "plm",
    "primary": "score",
    "alpha": 0.05,
    "margin": 0.0,
    "metrics": {
        "score": {"direction": "higher", "tolerance": 0.03},
        "generator_pseudo_bits_per_byte": {"direction": "lower", "tolerance": 0.02},
    },
}


def test_new_architecture_runs_through_all_stages(small):
    section = {"architecture": "electra", "objective": {"name": "replaced"}, "model": MODEL, "training": TRAINING}
    small.change(
        models={"gpt": "own", "electra": "own"},
        pretrain__electra=section | {"valid_windows": 5},
        finetune__tasks=["sotu-era"],
        finetune__seeds=[1],
        promotion=PROMOTION,
    )
    small.run("tasks.commands.check")
    for name, *arguments in (
        ["pretrain", "electra"],
        ["evaluate", "electra"],
        ["finetune", "electra", "sotu-era", "1"],
        ["report"],
    ):
        small.run(f"tasks.stages.{name}", *arguments)
    assert "generator_pseudo_bits_per_byte" in small.metrics("evaluate-electra")
    report = (small.root / "artifacts/report/results.md").read_text()
    assert "- **generator pseudo bits per byte**, here of the first 17 tokens of each document only: each" in report
    assert "| electra | electra | replaced |" in report

    seen, _ = small.run("tasks.commands.seen", "electra", "--step=2", "--rows=1")
    assert "<mask: word> was to be predicted by the generator" in seen
    assert seen.count("<mask: ") > 1

    sides = ("--challenger", "artifacts/evidence/electra", "--champion", "artifacts/evidence/gpt")
    small.run("tasks.commands.gate", *sides, "--out", "decision.json")
    decision = json.loads((small.root / "decision.json").read_text())
    rows = {row["metric"]: row for row in decision["table"]}
    assert rows["sotu-era/score"]["interval"] is not None
    assert rows["generator_pseudo_bits_per_byte"]["verdict"] == "not comparable"

    export = ("tasks.commands.export", "exported", "--checkpoint", "artifacts/models/electra")
    assert "the architecture electra cannot be exported to transformers" in small.refused(*export)
    generate = ("tasks.commands.generate", "Ba", "--checkpoint", "artifacts/models/electra")
    assert "A replaced model cannot continue texts" in small.refused(*generate)
    small.change(fewshot__models=["electra"])
    _, err = small.run("tasks.commands.check", code=2)
    assert "fewshot.models: electra is a replaced model, which cannot say how likely a text is after another" in err


def test_both_directions_are_used_as_features(small):
    """ELMo, whose weights stay as they are while each task trains what is on top; and one direction alone."""
    sizes = {name: size for name, size in MODEL.items() if name != "heads"} | {"cells": 16, "filters": [[1, 8], [2, 8]]}
    section = {"architecture": "elmo", "objective": {"name": "bidirectional"}, "model": sizes, "training": MUON}
    small.change(
        models={"gpt": "own", "elmo": "own"},
        pretrain__elmo=section | {"valid_windows": 5},
        finetune__tasks=["sotu-era"],
        finetune__seeds=[1],
        finetune__features={"models": ["elmo"], "width": 9},
    )
    small.run("tasks.commands.check")
    for name, *arguments in (
        ["pretrain", "elmo"],
        ["evaluate", "elmo"],
        ["finetune", "elmo", "sotu-era", "1"],
        ["finetune", "gpt", "sotu-era", "1"],
        ["baseline", "sotu-era"],
        ["report"],
    ):
        small.run(f"tasks.stages.{name}", *arguments)
    metrics = small.metrics("evaluate-elmo")
    assert 0 < metrics["two_way_bits_per_byte"] < 9
    assert 0 < metrics["bits_per_byte"] < 9
    assert "| elmo (as features) |" in (small.root / "artifacts/report/results.md").read_text()

    before = checkpoint.load(small.root / "artifacts/models/elmo")
    after = checkpoint.load(small.root / "artifacts/finetuned/elmo-sotu-era-1")
    assert all(torch.equal(t, after.model.state_dict()[name]) for name, t in before.model.state_dict().items())
    pieces = [before.tokenizer.letters(token) for token in range(before.tokenizer.vocab_size)]
    assert before.model.characters[100].tolist() == spelled(*pieces[100], 50)
    assert after.config.head["features"] == {"models": ["elmo"], "width": 9, "dropout": 0.5, "learning_rate": 1e-3}
    assert {"features.mix", "features.ahead.weight_ih_l0", "head.1.weight"} <= set(after.extra)
    out, _ = small.run("tasks.commands.generate", "Ba", "--checkpoint", "artifacts/models/elmo")
    assert out.strip()
    seen, _ = small.run("tasks.commands.seen", "elmo", "--step=2", "--rows=1")
    assert "in the other direction the one before" in seen

    one_way = section | {"objective": {"name": "causal"}}
    small.change(pretrain__elmo=one_way, finetune__features={"models": ["ELMO"]})
    _, err = small.run("tasks.commands.check", code=2)
    assert "model.backward: true; expected false, or objective.name: bidirectional" in err
    assert "finetune.features.models: found 'ELMO'; expected some of gpt, elmo" in err
    small.change(pretrain__elmo=one_way | {"model": sizes | {"backward": False}}, finetune__features=None)
    small.run("tasks.commands.check")


HYBRID = {"name": "hybrid", "masked_rows": 0.5}


@pytest.mark.parametrize("objective", [{"name": "causal"}, pytest.param(HYBRID, marks=pytest.mark.slow)], ids=str)
def test_new_decoder_runs_from_text_to_score(small, objective):
    """LLaMA and GPT-BERT."""
    model = {"context": 29, "layers": 2, "heads": 4, "width": 24, "kv_heads": 2, "rope_base": 500.0}
    small.change(
        models={"gpt": "own", "llama": "own"},
        pretrain__llama={"architecture": "llama", "objective": objective, "model": model}
        | {"training": MUON, "valid_windows": 5},
    )
    small.run("tasks.commands.check")
    small.run("tasks.stages.pretrain", "llama")
    small.run("tasks.stages.evaluate", "llama")
    metrics = small.metrics("evaluate-llama")
    assert 0 < metrics["bits_per_byte"] < 9
    assert ("shifted_pseudo_bits_per_byte" in metrics) == (objective["name"] == "hybrid")


def test_new_encoder_runs_from_text_to_classifier(small):
    """ModernBERT, trained on packed documents."""
    model = {"context": 29, "layers": 2, "heads": 2, "width": 16, "global_every": 2, "window": 8}
    objective = {"name": "masked", "rate": 0.3, "packing": "documents"}
    section = {"architecture": "modernbert", "objective": objective, "model": model, "training": MUON}
    small.change(
        models={"gpt": "own", "modernbert": "own"},
        pretrain__modernbert=section | {"valid_windows": 5},
        finetune__tasks=["sotu-era"],
        finetune__seeds=[1],
    )
    small.run("tasks.commands.check")
    small.run("tasks.stages.pretrain", "modernbert")
    small.run("tasks.stages.evaluate", "modernbert")
    assert 0 < small.metrics("evaluate-modernbert")["pseudo_bits_per_byte"] < 9
    small.run("tasks.stages.finetune", "modernbert", "sotu-era", "1")
    small.change(pretrain__modernbert=section | {"objective": {"name": "masked", "next_sentence": True}})
    _, err = small.run("tasks.commands.check", code=2)
    assert "objective.next_sentence: true for a model without segments; expected false" in err


@pytest.mark.parametrize("architecture", ["t5", pytest.param("transformer", marks=pytest.mark.slow)])
def test_encoder_decoder_runs_from_text_to_translation(small, architecture):
    objective = {"name": "span_corruption", "rate": 0.3}
    section = {"architecture": architecture, "objective": objective, "model": MODEL, "training": MUON}
    folder = small.root / "data/reversed"
    folder.mkdir(parents=True)
    for split, count in (("train", 24), ("test", 8)):
        lines = [f"ba ti {word}\t{word} ti ba" for word in (f"ka{split[:2]}{i}" for i in range(count))]
        (folder / f"{split}.tsv").write_text("\n".join(["source\ttarget", *lines]) + "\n")
    task = {"input": "data/reversed", "kind": "translation", "a": "source", "label": "target", "score": "bleu"}
    small.change(
        models={"gpt": "own", "seq": "own"},
        pretrain__seq=section | {"valid_windows": 5},
        examples={"reversed": task},
        fewshot__tasks=None,
        fewshot__prompts={},
        finetune__tasks=["reversed"],
        finetune__seeds=[1],
    )
    small.run("tasks.commands.check")
    for name, *arguments in (
        ["pretrain", "seq"],
        ["evaluate", "seq"],
        ["examples", "reversed"],
        ["finetune", "seq", "reversed", "1"],
        ["finetune", "gpt", "reversed", "1"],
    ):
        small.run(f"tasks.stages.{name}", *arguments)
    assert 0 < small.metrics("evaluate-seq")["span_bits_per_byte"] < 12
    for model in ("seq", "gpt"):
        assert 0 <= small.metrics(f"finetune-{model}-reversed-1")["score"] <= 1
        evidence = (small.root / f"artifacts/evidence/{model}/reversed.1.csv").read_text()
        assert "ti ba" in evidence
    seen, _ = small.run("tasks.commands.seen", "seq", "--step=2", "--rows=1")
    assert "<sentinel: " in seen
