"""Stage text-baseline: what counting and a compressor make of the text that models are measured on."""

import csv
import math
import re

import numpy as np
import pytest

from plm_core import checkpoint
from plm_core.corpus.document import Document, read_documents
from plm_core.evaluation.likelihood.document_scores import tokenized
from plm_core.evaluation.ngram import NGrams, ppmd_bits_after
from plm_core.text.tokenizers import EOS
from tasks.stages import text_baseline

EVIDENCE = "artifacts/evidence/ngram-own/likelihood.csv"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_text_baseline_uses_the_documents_of_the_models(built):
    train, test = (
        list(read_documents(built.root / f"artifacts/corpus/splits/{split}.parquet")) for split in ("train", "test")
    )
    tokenizer = checkpoint.load(built.root / "artifacts/models/gpt").tokenizer
    learned, tested = (
        [EOS, *(i for d in documents for i in (*tokenizer.encode(d.text), EOS))] for documents in (train, test)
    )
    size = sum(len(document.text.encode()) for document in test)
    metrics = built.metrics("text-baseline-own")
    for order, name in ((1, "unigram"), (5, "ngram")):
        nats = NGrams(np.array(learned), order, 307).nats(np.array(tested)).sum()
        assert metrics[f"{name}_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-12)
    before, text = ("\n\n".join(document.text for document in documents).encode() for documents in (train, test))
    assert metrics["ppmd_bits_per_byte"] == ppmd_bits_after(before, text) / len(text)
    assert "ppmd_share" not in metrics
    assert metrics["bytes"] == size == built.metrics("evaluate-gpt")["bytes"]
    assert metrics["train_documents"] == len(train)
    assert metrics["ngram_bits_per_byte"] < metrics["unigram_bits_per_byte"]
    evidence = rows(built.root / EVIDENCE)
    assert [row["id"] for row in evidence] == [document.id for document in test]
    assert [int(row["tokens"]) for row in evidence] == [len(tokenized(d.text, tokenizer).ids) + 1 for d in test]
    bits = math.fsum(float(row["nats"]) for row in evidence) / math.log(2) / size
    assert metrics["ngram_bits_per_byte"] == pytest.approx(bits, rel=1e-12)


def test_text_baseline_is_measured_by_the_rules_of_models(built):
    columns = ("id", "sha256", "bytes", "tokens", "quantity", "measured")
    tables = rows(built.root / EVIDENCE), rows(built.root / "artifacts/evidence/gpt/likelihood.csv")
    first, second = ([[row[name] for name in columns] for row in table] for table in tables)
    assert first == second


def test_compressor_baseline_samples_evenly(monkeypatch):
    monkeypatch.setattr(text_baseline, "ROOM", 1100)
    monkeypatch.setattr(text_baseline, "LEAST", 350)
    documents = [Document(f"d{i}", f"{i:02}" * 50, "s") for i in range(10)]
    texts = ["\n\n".join(document.text for document in documents[::step]).encode() for step in (1, 2, 3)]
    whole = len(texts[0])
    for before, text in ((b"a" * 80, texts[0]), (b"a" * 500, texts[1]), (b"a" * 2000, texts[2][:350])):
        assert text_baseline._compressed(before, documents) == (
            ppmd_bits_after(before, text) / len(text),
            len(text) / whole,
        )


def test_text_baseline_reads_the_first_documents_only(small):
    """As many for the 5-gram as for the compressor."""
    whole = small.metrics("text-baseline-own")
    path = small.root / "tasks/stages/text_baseline.py"
    measured = []
    for most in (1, 9_999):
        path.write_text(re.sub("MOST = .*", f"MOST = {most}", path.read_text()))
        small.run("tasks.stages.text_baseline", "own")
        measured.append(small.metrics("text-baseline-own"))
    least, larger = measured
    assert least["train_documents"] == 1
    train = [len(d.text.encode()) for d in read_documents(small.root / "artifacts/corpus/splits/train.parquet")]
    assert larger["train_documents"] == int((np.cumsum(train) <= 9_999).sum()) < whole["train_documents"]
    for name in ("ngram_bits_per_byte", "ppmd_bits_per_byte"):
        assert len({least[name], larger[name], whole[name]}) == 3
    first = next(read_documents(small.root / "artifacts/corpus/splits/train.parquet")).text.encode()
    test = "\n\n".join(d.text for d in read_documents(small.root / "artifacts/corpus/splits/test.parquet")).encode()
    assert least["ppmd_bits_per_byte"] == ppmd_bits_after(first, test) / len(test)
