"""Stage deduplicate as a process: mixtures, sides, and what is removed, all counted and kept."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from projects import Project, source

from plm_core.corpus.document import Document, read_documents, write_documents
from plm_core.corpus.removals import read_removals

WORDS = [f"w{i}" for i in range(5000)]


def text(seed, length=60):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(length))


@pytest.fixture
def project(tmp_path):
    """A project with the cleaned documents of two sources, of which one has four times as much as the other."""
    project = Project(source(tmp_path / "project"))
    documents = [Document(f"a/{i:03}", text(i), "a") for i in range(80)]
    documents += [Document(f"b/{i:03}", text(1000 + i), "b") for i in range(20)]
    write_documents(project.root / "artifacts/corpus/clean.parquet", documents)
    return project


def run(project):
    project.run("tasks.stages.deduplicate")
    corpus = project.root / "artifacts/corpus"
    splits = {name: list(read_documents(corpus / f"splits/{name}.parquet")) for name in ("train", "valid", "test")}
    return splits, list(read_removals(corpus / "removed/deduplicate.parquet")), project.metrics("deduplicate")


FEW_WORDS = """
from plm_core.corpus import decontamination, shingles
from tasks.stages.deduplicate import deduplicate_and_split
from tasks.runtime import worker_pool

decontamination.WORDS_AT_ONCE = 300
shingles.CHARACTERS_AT_ONCE = 1000
discard = worker_pool._discard


def counted(folder):
    print("copies:", len([*folder.glob("train-*/*/kept.parquet")]))
    discard(folder)


worker_pool._discard = counted
deduplicate_and_split()
"""


def test_decontamination_takes_large_held_out_text_in_turns(project):
    project.change(split__valid=0.2, split__test=0.2, decontaminate__overlap=0.0)
    clean = project.root / "artifacts/corpus/clean.parquet"
    documents = list(read_documents(clean))
    borrowed = [" ".join(documents[7 * i % 100].text.split()[:25]) for i in range(100)]
    own = [text(5000 + i, 40) for i in range(100)]
    changed = [replace(d, text=f"{d.text}\n\n{own[i]} {borrowed[i]}") for i, d in enumerate(documents)]
    write_documents(clean, changed)
    splits, removed, metrics = run(project)
    assert metrics["removed_paragraphs_contaminated"]
    (project.root / "few_words.py").write_text(FEW_WORDS)
    out, _ = project.run("few_words")
    assert "train: pass 3 to look for held-out text, too much for one pass" in out
    assert "copies: 1\n" in out
    corpus = project.root / "artifacts/corpus"
    assert {name: list(read_documents(corpus / f"splits/{name}.parquet")) for name in splits} == splits
    again = read_removals(corpus / "removed/deduplicate.parquet")
    assert Counter((r.document, r.text) for r in again) == Counter((r.document, r.text) for r in removed)


def test_mixture_meets_shares_and_records_what_it_leaves_out(project):
    whole, _, _ = run(project)
    project.change(mixture__shares={"a": 0.5, "b": 0.5})
    splits, removed, metrics = run(project)
    sizes = Counter()
    for document in splits["train"]:
        sizes[document.source] += len(document.text.encode())
    assert sizes["a"] / sizes.total() == pytest.approx(0.5, abs=0.12)
    assert {"valid": splits["valid"], "test": splits["test"]} == {n: whole[n] for n in ("valid", "test")}
    left_out = {r.document for r in removed}
    assert left_out == {d.id for d in whole["train"]} - {d.id for d in splits["train"]}
    assert {(r.rule, r.paragraph, r.source) for r in removed} == {("mixture", None, "a")}
    assert len(removed) == metrics["removed_documents_mixture"] == metrics["a/removed_documents_mixture"] > 20
    assert metrics["removed_paragraphs_with_documents"] == len(removed)


def test_mixture_repeats_of_a_small_source_have_own_ids(project):
    project.change(mixture={"shares": {"a": 0.4, "b": 0.6}, "max_repeats": 4.0})
    splits, _, metrics = run(project)
    ids = [document.id for document in splits["train"]]
    assert len(set(ids)) == len(ids) == metrics["train_documents"]
    copies = Counter(name.partition(" (copy ")[0] for name in ids if name.startswith("b/"))
    assert set(copies.values()) == {4}
    # All first copies come before any second one: two copies are never in one window.
    numbers = [int(name.rpartition(" (copy ")[2].rstrip(")")) if "(copy" in name else 1 for name in ids]
    assert numbers == sorted(numbers)


def test_duplicates_may_be_kept_on_one_side(project):
    path = project.root / "artifacts/corpus/clean.parquet"
    documents = [Document(f"a/{i:03}-{n}", text(i), "a") for i in range(40) for n in range(2)]
    write_documents(path, documents)
    project.change(deduplicate__documents="same_side", deduplicate__paragraphs="off", decontaminate__held_out=False)
    splits, removed, _ = run(project)
    assert removed == []
    side = {document.id: name for name, split in splits.items() for document in split}
    assert len(side) == 80
    assert all(side[f"a/{i:03}-0"] == side[f"a/{i:03}-1"] for i in range(40))


def test_too_few_documents_are_refused_with_what_was_found(project):
    path = project.root / "artifacts/corpus/clean.parquet"
    write_documents(path, [Document("a/1", text(1), "a")])
    error = project.refused("tasks.stages.deduplicate")
    assert "no document falls on the side" in error
    assert "about fifty" in error
