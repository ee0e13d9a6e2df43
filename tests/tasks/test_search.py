"""Search from the corpus to the page as real stages, and the texts of a file as vectors, interrupted or not."""

import json
import os
import signal
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from plm_core import checkpoint
from plm_core.evaluation.evidence import read_task

EMBED = ("tasks.commands.embed", "texts.jsonl", "--checkpoint", "artifacts/models/gpt", "--output")


def test_passages_of_the_corpus_are_searched_compared_and_on_the_page(small):
    small.change(examples={"passages": {"input": "artifacts/corpus/splits"}}, finetune__tasks=["passages"])
    small.change(finetune__seeds=[5])
    for command in (["examples"], ["slices"], ["baseline"], ["finetune", "gpt"]):
        small.run(f"tasks.stages.{command[0]}", *command[1:], "passages", *(["5"] if command[1:] else []))
    metrics = small.metrics("finetune-gpt-passages-5")
    table = read_task([small.root / "artifacts/evidence/gpt/passages.5.csv"])
    assert table.value == pytest.approx(metrics["score"], abs=1e-12)
    assert table.groups > 1  # documents
    assert 0 <= metrics["score_untrained"] <= 1
    assert 0 < metrics["mrr_at_10"] <= metrics["score"] <= metrics["recall_at_10"]
    head = checkpoint.load(small.root / "artifacts/finetuned/gpt-passages-5").config.head
    assert (head["task"]["name"], head["pooling"]) == ("passages", "mean")
    small.run("tasks.stages.report")
    page = (small.root / "artifacts/report/results.md").read_text().replace("\\", "")
    for figure in ("passages: ndcg_at_10", "mrr at 10", "recall at 10", "score untrained"):
        assert figure in page
    assert small.metrics("baseline-passages")["examples"] == metrics["examples"]


def test_search_with_custom_queries(small):
    folder = small.root / "data/faq"
    folder.mkdir()
    rows = [{"asked": f"ba {i}", "answer": f"limu {i // 2}"} for i in range(40)]
    for split, some in (("train", rows[:30]), ("test", rows[30:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    given = {"input": "data/faq", "kind": "search", "a": "asked", "b": "answer", "score": "recall_at_10"}
    small.change(examples={"faq": given})
    small.run("tasks.stages.examples", "faq")
    metrics = small.metrics("examples-faq")
    assert (metrics["test_examples"], metrics["test_passages"]) == (10, 5)
    small.change(examples={"faq": given | {"labels": ["x"]}})
    assert "faq.labels: has no meaning for the kind search" in small.run("tasks.stages.examples", "faq", code=2)[1]


def test_an_interrupted_embedding_goes_on_and_gives_the_same_bytes(small):
    texts = [{"id": f"t{i}", "text": "limu " * (1 + i % 400 // 399 * 200) + str(i)} for i in range(2500)]
    (small.root / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    stdout, _ = small.run(*EMBED, "whole.parquet")
    assert "part 0: 1,024 texts\n" in stdout
    assert "2,500 vectors of" in stdout
    assert f"{sum(i % 400 == 399 for i in range(2500))} texts were cut" in stdout
    begun = small.start(*EMBED, "out.parquet")
    while not list(small.root.glob(".out.parquet.*/000000.parquet")):
        assert begun.poll() is None
        time.sleep(0.01)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.communicate()
    assert not (small.root / "out.parquet").exists()
    again, _ = small.run(*EMBED, "out.parquet")
    assert "part 0:" not in again
    assert (small.root / "out.parquet").read_bytes() == (small.root / "whole.parquet").read_bytes()
    assert not list(small.root.glob(".*.parquet.*"))
    table = pq.read_table(small.root / "out.parquet")
    assert table["id"].to_pylist() == [row["id"] for row in texts]
    assert np.linalg.norm(np.stack(table["vector"].to_numpy()), axis=1) == pytest.approx(1, abs=1e-6)


def test_a_record_without_a_text_is_named(small):
    (small.root / "texts.jsonl").write_text('{"text": "ba"}\n{"text": ""}\n')
    _, stderr = small.run(*EMBED, "out.parquet", code=2)
    assert stderr == "error: texts.jsonl:2: nothing in the column 'text'; expected a text\n"
    assert not (small.root / "out.parquet").exists()
