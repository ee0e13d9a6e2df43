"""Stages pairs and minimal-pairs: from text to evidence, report and gate; what cannot be asked is refused."""

import csv
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plm_core import checkpoint
from plm_core.benchmarks.pair_sets import Pair, load_pairs
from plm_core.configs.architectures import MODELS
from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.evidence import read_task
from plm_core.evaluation.likelihood import scorer_of
from plm_core.evaluation.likelihood.document_scores import tokenized
from plm_core.evaluation.ngram import NGrams
from plm_core.objectives import OBJECTIVES
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import EOS
from tasks.stages.minimal_pairs import nats_of

GPT, NGRAM = "artifacts/evidence/gpt/own-pairs.0.csv", "artifacts/evidence/ngram-own/own-pairs.0.csv"
SHAPE = {"vocab_size": 307, "context": 29, "layers": 1, "heads": 2, "width": 16, "dropout": 0.0}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_minimal_pair_likelihood_matches_each_text_alone(objective, device, tokenizer, documents):
    torch.manual_seed(5)
    entry = next(entry for entry in MODELS.values() if objective in entry.objectives)
    sizes = {name: size for name, size in SHAPE.items() if name in entry.config.__dataclass_fields__}
    model = entry.model(entry.config(**sizes)).double()
    loaded = SimpleNamespace(model=model, tokenizer=tokenizer, config=SimpleNamespace(objective=objective))
    texts = [" ".join(document.text.split()[: 3 + i]) for i, document in enumerate(documents[:8])]
    pairs = [Pair(str(i), texts[2 * i], texts[2 * i + 1]) for i in range(4)]
    measured = list(nats_of(loaded, pairs, LikelihoodConfig(stride=5, excerpt=3), device))
    score = scorer_of(OBJECTIVES[objective].likelihood)
    for nats, text in zip(np.ravel(measured), texts, strict=True):
        passage = replace(tokenized(text, tokenizer), ended=False)
        (alone,) = score(model, [passage], LikelihoodConfig(stride=5), device)
        assert nats == pytest.approx(alone.nats, rel=1e-9)
        assert alone.tokens == len(passage.ids) > 4


def test_minimal_pairs_are_the_same_for_model_and_ngram(built):
    pairs = load_pairs(built.root / "artifacts/pairs/own-pairs.jsonl")
    by_model, by_counting = rows(built.root / GPT), rows(built.root / NGRAM)
    fixed = ("id", "sha256", "group", "subset", "label", "score", "measured")
    assert [[row[name] for name in fixed] for row in by_model] == [[row[name] for name in fixed] for row in by_counting]
    assert [row["id"] for row in by_model] == [pair.id for pair in pairs]
    assert [row["prediction"] for row in by_model] != [row["prediction"] for row in by_counting]
    metrics = built.metrics("minimal-pairs-gpt-own-pairs")
    assert metrics["score"] == read_task([built.root / GPT]).value
    assert metrics["score_low"] < metrics["score"] < metrics["score_high"]
    assert metrics["pairs"] == len(pairs) == built.metrics("pairs-own-pairs")["pairs"] > 50


def test_ngram_scores_minimal_pairs_without_eos(built):
    tokenizer = open_tokenizer(built.root / "artifacts/tokenizers/own")
    store = TokenStore(built.root / "artifacts/tokens/own/train")
    model = NGrams(np.concatenate(([EOS], store.tokens(0, int(store.offsets[-1])))), 5, tokenizer.vocab_size)
    pairs = load_pairs(built.root / "artifacts/pairs/own-pairs.jsonl")
    for pair, row in zip(pairs, rows(built.root / NGRAM), strict=True):
        good, bad = (model.nats(np.array([EOS, *tokenizer.encode(text)])).sum() for text in (pair.good, pair.bad))
        assert float(row["confidence"]) == pytest.approx(1 / (1 + np.exp(-abs(good - bad))))


def test_the_report_has_a_row_a_paradigm(built):
    text = (built.root / "artifacts/report/results.md").read_text()
    section = text.partition("## Minimal pairs")[2].partition("\n## ")[0]
    assert "| paradigm | pairs | gpt | 5-gram (own) |" in section
    metrics = built.metrics("minimal-pairs-gpt-own-pairs")
    assert f"| **all** | {metrics['pairs']} | {metrics['score']:.3f} [" in section
    assert re.search(r"\| word order \| \d\d \| 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] \| 0\.", section)
    assert re.search(r"- gpt: [+-]0\.\d{3} \(", section)


def test_minimal_pairs_of_another_checkpoint_write_evidence_only(small, tmp_path):
    before = small.files()
    folder = tmp_path / "other"
    loaded = checkpoint.load(small.root / "artifacts/models/gpt")
    torch.manual_seed(3)
    for parameter in loaded.model.parameters():
        torch.nn.init.normal_(parameter)
    checkpoint.save(folder, loaded.model.state_dict(), loaded.tokenizer, loaded.config)
    given = ("--checkpoint", str(folder), "--evidence", str(tmp_path / "evidence"))
    small.run("tasks.stages.minimal_pairs", "gpt", "own-pairs", *given)
    assert small.files() == before
    (file,) = (tmp_path / "evidence").iterdir()
    table, own = read_task([file]), read_task([small.root / GPT])
    assert table.examples == own.examples
    assert table.value != own.value
    assert "expected --checkpoint and --evidence together" in small.refused(
        "tasks.stages.minimal_pairs", "gpt", "own-pairs", *given[:2]
    )


def test_invalid_minimal_pairs_are_refused(small):
    assert "artifacts/pairs/other.jsonl: missing" in small.refused("tasks.stages.minimal_pairs", "gpt", "other")
    assert "pairs.other: no such section" in small.refused("tasks.stages.pairs", "other")
    (small.root / "mine.jsonl").write_text(json.dumps({"good": "Ba.", "bad": "Ba."}) + "\n")
    small.change(pairs__mine={"input": "mine.jsonl"})
    assert "mine.jsonl:1: good and bad are the same" in small.refused("tasks.stages.pairs", "mine")
    small.change(pairs__next={"input": "mine.jsonl"})
    assert "pairs.next: examples has a section of the same name" in small.refused("tasks.commands.check")


def test_stages_run_without_minimal_pairs(small):
    """Without the output of stage pairs, the 5-gram still has its likelihood, and the report says what is missing."""
    (small.root / "artifacts/pairs/own-pairs.jsonl").unlink()
    (small.root / GPT).unlink()
    small.run("tasks.stages.text_baseline", "own")
    assert [path.name for path in (small.root / "artifacts/evidence/ngram-own").iterdir()] == ["likelihood.csv"]
    small.run("tasks.stages.report")
    text = (small.root / "artifacts/report/results.md").read_text()
    assert "No results for gpt, 5-gram (own): the stage has no output." in text
