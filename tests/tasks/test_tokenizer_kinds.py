"""The whole chain with each tokenizer that is not of sentencepiece, and the comparison of all kinds, as processes."""

import csv
import json
import re
import shutil
from collections import Counter

import pytest

from plm_core.corpus.document import read_documents
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import NOT_LEARNED, UNK

NUMBERS = [
    "vocab_size",
    "bytes_per_token",
    "fertility",
    "fragmented_share",
    "unknown_rate",
    "rare_share",
    "unused_share",
]


def texts(project, split):
    return [d.text for d in read_documents(project.root / f"artifacts/corpus/splits/{split}.parquet")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece", "bytelevel"])
def test_every_tokenizer_kind_runs_through_the_pipeline(small, kind):
    small.change(
        tokenizers__own__kind=kind,
        tokenizers__own__character_coverage=0.99,
        finetune__tasks=["sotu-era"],
        finetune__seeds=[1],
    )
    for stage in ("tokenizer own", "pack own", "pretrain gpt", "evaluate gpt", "finetune gpt sotu-era 1", "report"):
        name, *arguments = stage.split()
        small.run(f"tasks.stages.{name}", *arguments)
    folder = small.root / "artifacts/tokenizers/own"
    assert {path.name for path in folder.iterdir()} == {"tokenizer.json", "SHA256SUMS"}
    tokenizer = open_tokenizer(folder)
    assert tokenizer.kind == kind
    metrics = small.metrics("evaluate-gpt")
    quantity = "lossy_bits_per_byte" if kind == "wordpiece" else "bits_per_byte"
    assert {name for name in metrics if name.endswith("bits_per_byte")} == {quantity}
    with (small.root / "artifacts/evidence/gpt/likelihood.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # What a lossy tokenizer drops is compared with what the same one drops.
    dropping = f" of {tokenizer.sha256[:12]}" if kind == "wordpiece" else ""
    assert {row["quantity"] for row in rows} == {quantity + dropping}
    held_out = texts(small, "test")
    assert [int(row["bytes"]) for row in rows] == [len(text.encode()) for text in held_out]
    ids = [i for text in held_out for i in tokenizer.encode(text)]
    assert metrics.get("unknown_rate", 0.0) == ids.count(UNK) / len(ids)
    assert ("unknown_rate" in metrics) == (kind == "wordpiece")
    report = (small.root / "artifacts/report/results.md").read_text()
    assert ("**Lossy**" in report) == (kind == "wordpiece")
    sample = json.loads((small.root / "artifacts/samples/gpt.json").read_text())[0]
    options = ("--checkpoint=artifacts/models/gpt", '--sampling={"max_new_tokens": 7, "seed": 5}')
    assert small.run("tasks.commands.generate", "Ba", *options)[0] == sample["prompt"] + sample["continuation"] + "\n"


def test_tokenizer_stage_writes_vocabulary_metrics(built):
    assert list(built.metrics("tokenizer-own")) == [*NUMBERS, "learned_share"]
    log = (built.root / "repro.log").read_text()
    words = " ".join(texts(built, "valid")).replace(".", "").split()
    word = min(words, key=lambda word: (-len(word), word))
    assert f"  {word}: ▁" in log


def test_compare_tokenizers_writes_nothing(built):
    before = built.files()
    command = ("tasks.commands.compare_tokenizers", "307", "99", "50000")
    out, _ = built.run(*command, "--json")
    comparison = json.loads(out)
    rows = {(row["kind"], row["vocab_size"]): row for row in comparison["tokenizers"]}
    assert set(rows) == {(kind, size) for kind in NOT_LEARNED for size in (307, 99, 50_000)}
    own = built.metrics("tokenizer-own")
    assert {name: rows["bpe", 307][name] for name in NUMBERS} | {"learned_share": 1.0} == own
    for kind in NOT_LEARNED:
        assert "more than this corpus supports; expected at most" in rows[kind, 50_000]["refused"]
        assert ("refused" in rows[kind, 99]) == (kind != "wordpiece")
        assert list(rows[kind, 307]["splits"]) == comparison["words"]
    assert rows["wordpiece", 307]["splits"] != rows["bpe", 307]["splits"]
    table, _ = built.run(*command, "--kind", "bpe", "--kind", "wordpiece", COLUMNS="80")
    assert "expected more than 264" in table
    assert f"{own['bytes_per_token']:.3f}" in table
    for kind in ("bpe", "wordpiece"):
        word, pieces = next(iter(rows[kind, 307]["splits"].items()))
        assert word in table
        assert any(f" {kind} " in line and pieces[:15] in line for line in table.splitlines())
    assert "flatter it" in table
    assert "unigram" not in table
    assert built.files() == before


def test_a_given_tokenizer_is_measured_with_the_words_that_cost_it_most(built):
    out, _ = built.run("tasks.commands.compare_tokenizers", "--given", "artifacts/tokenizers/own", "--json")
    row = json.loads(out)["tokenizers"][0]
    own = built.metrics("tokenizer-own")
    assert {name: row[name] for name in NUMBERS} | {"learned_share": 1.0} == own
    tokenizer, train = open_tokenizer(built.root / "artifacts/tokenizers/own"), " ".join(texts(built, "train"))
    counts = Counter(re.findall(r"[^\W\d_]+", train))
    cost = {word: n * (len(tokenizer.encode(f" {word}")) - 1) for word, n in counts.items()}
    assert row["costly"]
    assert [cost[item["word"]] for item in row["costly"]] == sorted(cost.values(), reverse=True)[: len(row["costly"])]
    assert all(item["times"] == counts[item["word"]] for item in row["costly"])
    assert "found no tokenizer; expected sizes to train, or --given" in built.refused(
        "tasks.commands.compare_tokenizers"
    )


def test_tokenizer_comparison_may_use_a_sample(built):
    size = sum(map(len, texts(built, "train"))) // 3
    command = ("tasks.commands.compare_tokenizers", "291", "--kind", "wordpiece", "--lowercase", "--json")
    whole, part = (json.loads(built.run(*command, *more)[0])["tokenizers"][0] for more in ((), (f"--sample={size}",)))
    assert all(splits == splits.lower() for splits in whole["splits"].values())
    assert {name: whole[name] for name in NUMBERS} != {name: part[name] for name in NUMBERS}


def test_a_workspace_without_a_corpus_is_refused(small):
    shutil.rmtree(small.root / "artifacts/corpus/splits/valid.parquet")
    error = small.refused("tasks.commands.compare_tokenizers", "307")
    assert error.startswith("error: artifacts/corpus/splits/valid.parquet: missing; run the stage that writes it")
