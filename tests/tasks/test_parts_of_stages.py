"""Stages that work part by part give the same result whichever process does it, and whichever is killed."""

import json
import random
import shutil
import time

import psutil
import pytest
from projects import Project, finish, source

from plm_core.corpus import document as module
from plm_core.corpus.document import Document, pieces_of, read_documents, write_documents
from plm_core.corpus.removals import read_removals

SMALL_PARTS = """
import importlib
import os
import sys
import time

from plm_core.corpus import document, minhash, parallel_reading, part_pool
from tasks.runtime.stage import main

do = part_pool._do


def slowly(*item):
    time.sleep(float(os.environ.get("SLOW", 0)))
    do(*item)


part_pool._do = slowly  # not in the processes that work for this one
document.PART_BYTES = 40_000
# Some documents are sorted in memory, others in files, two of which are merged.
parallel_reading.CHARACTERS_AT_ONCE = 3_000
parallel_reading.MOST_RUNS = 2
minhash.ENTRIES_AT_ONCE = 500
minhash.PAIRS_AT_ONCE = 20
task = getattr(importlib.import_module(f"tasks.stages.{sys.argv[1]}"), sys.argv[2])
del sys.argv[1:3]  # what follows is the task's
main(task)
"""
STAGES = {"clean": "clean", "deduplicate": "deduplicate_and_split", "pack": "pack"}
TABLES = ("clean", "splits/train", "splits/valid", "splits/test")


def corpus(draw):
    """Documents of five paragraphs, of which every fourth repeats another, or nearly, or some of its paragraphs."""
    words = [f"w{i}" for i in range(3000)]
    documents = []
    for number in range(160):
        paragraphs = [[draw.choice(words) for _ in range(40)] for _ in range(5)]
        if number % 4 == 3:
            before = [paragraph.split() for paragraph in draw.choice(documents).text.split("\n\n")]
            paragraphs = before[: draw.choice([1, 5])] + paragraphs[: draw.choice([0, 2])]
            for _ in range(draw.choice([0, 2])):
                paragraphs[0][draw.randrange(40)] = "changed"
        documents.append(Document(f"{number:03}", "\n\n".join(map(" ".join, paragraphs)), draw.choice("ab")))
    return documents


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with the raw text of two sources, in small row groups."""
    project = Project(source(tmp_path / "project"))
    project.change(sources={name: {"reader": "folder", "input": "data"} for name in "ab"})
    documents = corpus(random.Random(4))
    with monkeypatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", 4)
        for name in "ab":
            own = [document for document in documents if document.source == name]
            write_documents(project.root / f"artifacts/corpus/raw/{name}.parquet", own)
    (project.root / "small_parts.py").write_text(SMALL_PARTS)
    return project


def run(project, stage, **env):
    of = ["own"] if stage == "pack" else []
    return finish(project.start("small_parts", stage, STAGES[stage], *of, **env), 0)


def write_records(folder, draw):
    """A dozen files of records, of which some have an id that another one has, in its file or in another, or none;
    returns the first text with each id."""
    folder.mkdir()
    first = {}
    for number in range(12):
        keys = [draw.choice([f"k{draw.randrange(300)}", draw.randrange(300), None]) for _ in range(20)]
        rows = [{"key": key, "text": f"{number}-{i} " + "x" * draw.randrange(2000)} for i, key in enumerate(keys)]
        (folder / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        first = {str(row["key"]): row["text"] for row in reversed(rows) if row["key"] is not None} | first
    return first


def quarantined(project):
    lines = (project.root / "artifacts/corpus/quarantined/own.jsonl").read_text().splitlines()
    return [(row["place"], row["reason"], row["detail"]) for row in map(json.loads, lines)]


def test_ingest_in_parts_keeps_the_first_document_of_an_id(tmp_path):
    whole = Project(source(tmp_path / "whole"))
    section = {"reader": "folder", "input": "records", "id_field": "key", "max_quarantined": 1.0}
    whole.change(sources={"own": section})
    first = write_records(whole.root / "records", random.Random(5))
    (whole.root / "small_parts.py").write_text(SMALL_PARTS)
    one_core, three_cores = whole.copied(tmp_path / "one"), whole.copied(tmp_path / "three")
    whole.run("tasks.stages.ingest", "own")
    for checkout, cores in ((one_core, "1"), (three_cores, "3")):
        finish(checkout.start("small_parts", "ingest", "ingest", "own", PLM_CORES=cores), 0)
    table = "artifacts/corpus/raw/own.parquet"
    assert len(list((one_core.root / table).iterdir())) > 1
    documents = list(read_documents(whole.root / table))
    assert list(read_documents(one_core.root / table)) == documents
    assert {document.source for document in documents} == {"own"}
    assert {document.id.removeprefix("own/"): document.text for document in documents} == first
    assert one_core.metrics("ingest-own") == whole.metrics("ingest-own")
    assert sorted(quarantined(one_core)) == sorted(quarantined(whole))
    assert {reason for _, reason, _ in quarantined(one_core)} == {"duplicate_id", "missing_id"}
    assert one_core.files() == three_cores.files()


def contents(project):
    """What the tables hold, wherever their parts end, and the metrics."""
    folder = project.root / "artifacts/corpus"
    held = {name: list(read_documents(folder / f"{name}.parquet")) for name in TABLES}
    removed = {name: list(read_removals(folder / f"removed/{name}.parquet")) for name in ("clean", "deduplicate")}
    return held, removed, project.metrics("clean"), project.metrics("deduplicate"), project.metrics("pack-own")


@pytest.mark.slow
def test_stage_outputs_do_not_depend_on_parts_and_processes(project, tmp_path):
    one_core, three_cores = project.copied(tmp_path / "one"), project.copied(tmp_path / "three")
    for stage in ("clean", "deduplicate", "ancestors", "tokenizer own", "pack own"):
        name, *arguments = stage.split()
        project.run(f"tasks.stages.{name}", *arguments)
    for checkout, cores in ((one_core, "1"), (three_cores, "3")):
        shutil.copytree(project.root / "artifacts/tokenizers/own", checkout.root / "artifacts/tokenizers/own")
        for stage in STAGES:
            run(checkout, stage, PLM_CORES=cores)
    assert len(list((one_core.root / "artifacts/corpus/clean.parquet").iterdir())) > 4
    assert len(list((project.root / "artifacts/corpus/clean.parquet").iterdir())) == 1
    assert contents(one_core) == contents(project)
    for level in ("documents", "paragraphs"):
        assert all(project.metrics("deduplicate")[f"removed_{level}_{kind}_duplicate"] for kind in ("exact", "near"))
    assert one_core.files() == three_cores.files()


def test_a_tokenizer_learns_from_as_much_text_as_it_may_and_says_so(project):
    splits = project.root / "artifacts/corpus/splits"
    train = list(read_documents(project.root / "artifacts/corpus/raw/a.parquet"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", 4)
        write_documents(splits / "train.parquet", train)
    write_documents(splits / "valid.parquet", train[:9])
    out, _ = project.run("tasks.stages.tokenizer", "own")
    assert "learned" not in out
    assert project.metrics("tokenizer-own")["learned_share"] == 1
    project.change(tokenizers__own__learned_bytes=40_000)
    out, _ = project.run("tasks.stages.tokenizer", "own")
    share = project.metrics("tokenizer-own")["learned_share"]
    assert 0 < share < 0.5
    assert f"learned from {share:.2%} of the training text" in out


def test_decontamination_finds_examples_in_any_part_of_the_text(small):
    train = small.root / "artifacts/corpus/splits/train.parquet"
    documents = list(read_documents(train))
    shutil.rmtree(train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", 2)
        patch.setattr(module, "PART_BYTES", 8_000)
        write_documents(train, documents)
        assert len(pieces_of(train)) > 2
    small.run("tasks.stages.slices", "next")
    expected = (small.root / "artifacts/slices/next.csv").read_bytes()
    (small.root / "artifacts/slices/next.csv").unlink()
    (small.root / "small_parts.py").write_text(SMALL_PARTS.replace("40_000", "8_000"))
    # Alone it takes half a second for each part, so that two are seen before the third is done and all are deleted.
    process = small.start("small_parts", "slices", "slices", "next", PLM_CORES="1", SLOW="0.5")
    wait_for_results(small, "slices-next", process, 2)
    finish(process, 0)
    assert (small.root / "artifacts/slices/next.csv").read_bytes() == expected
    (small.root / "artifacts/slices/next.csv").unlink()
    finish(small.start("small_parts", "slices", "slices", "next", PLM_CORES="3"), 0)
    assert (small.root / "artifacts/slices/next.csv").read_bytes() == expected


def wait_for_results(project, stage, process, count):
    results = project.root / "artifacts/parts" / stage
    while sum(path.name.isdecimal() for path in results.glob("*/*/*")) < count:
        assert process.poll() is None
        time.sleep(0.01)


def kept(project, stage):
    """The results that a stage keeps for its next run."""
    return {path.name for path in (project.root / "artifacts/parts" / stage / "kept").iterdir()}


@pytest.mark.slow
def test_added_text_is_read_alone_and_gives_the_same_bytes(tmp_path):
    grown = Project(source(tmp_path / "grown"))
    grown.change(sources={"own": {"reader": "folder", "input": "records"}})
    (grown.root / "small_parts.py").write_text(SMALL_PARTS.replace("40_000", "20_000"))
    documents = corpus(random.Random(4))
    (grown.root / "records").mkdir()
    for number in range(20):
        lines = [json.dumps({"text": document.text}) + "\n" for document in documents[8 * number : 8 * number + 8]]
        (grown.root / f"records/{number:02}.jsonl").write_text("".join(lines))
    last = grown.root / "records/19.jsonl"
    added = last.read_text()
    last.unlink()
    stages = {"ingest": "ingest-own", "clean": "clean", "deduplicate": "deduplicate", "pack": "pack-own"}

    def read(project):
        finish(project.start("small_parts", "ingest", "ingest", "own", PLM_CORES="1"), 0)
        for stage in STAGES:
            if stage == "pack" and not (project.root / "artifacts/tokenizers/own").exists():
                project.run("tasks.stages.tokenizer", "own")
            run(project, stage, PLM_CORES="1")
        return {stage: kept(project, name) for stage, name in stages.items()}

    before = read(grown)
    last.write_text(added)
    anew = grown.copied(tmp_path / "anew")
    shutil.rmtree(anew.root / "artifacts/parts")
    after = read(grown)
    assert read(anew) == after
    assert grown.files() == anew.files()
    (grown.root / "records/00.jsonl").rename(grown.root / "records/renamed.jsonl")
    finish(grown.start("small_parts", "ingest", "ingest", "own", PLM_CORES="1"), 0)
    ids = [document.id for document in read_documents(grown.root / "artifacts/corpus/raw/own.parquet")]
    assert any("renamed.jsonl" in name for name in ids)
    assert not any("00.jsonl" in name for name in ids)
    for stage in stages:
        new = after[stage] - before[stage]
        assert new
        assert len(new) < len(after[stage]) / (1.5 if stage == "deduplicate" else 3)


@pytest.mark.parametrize("stage", ["clean", pytest.param("deduplicate", marks=pytest.mark.slow)])
def test_killed_workers_do_not_repeat_finished_parts(project, tmp_path, stage):
    calm = project.copied(tmp_path / "calm")
    if stage == "deduplicate":
        for checkout in (calm, project):
            run(checkout, "clean", PLM_CORES="1")
    run(calm, stage, PLM_CORES="1")
    process = project.start("small_parts", stage, STAGES[stage], PLM_CORES="3", SLOW="0.7")
    wait_for_results(project, stage, process, 2)
    others = psutil.Process(process.pid).children()
    assert len(others) == 2
    others[0].kill()
    wait_for_results(project, stage, process, 3)
    process.kill()
    process.communicate()
    other = project.root / "artifacts/parts" / stage / "0123456789abcdef"  # of other parameters
    (other / "documents").mkdir(parents=True)
    process = project.start("small_parts", stage, STAGES[stage], PLM_CORES="3")
    out, _ = finish(process, 0)
    assert f"{stage}: resuming with the finished parts in artifacts/parts/{stage}/" in out
    assert project.files() == calm.files()
    assert [path.name for path in (project.root / "artifacts/parts" / stage).iterdir()] == ["kept"]
