"""Stage ingest keeps what it cannot read, counts it, and ends when it is more than the share that is allowed."""

import gzip
import json
import random
import re
import resource
import shutil

import pytest
from projects import finish

from plm_core.corpus.document import read_documents

QUARANTINED = "artifacts/corpus/quarantined/own.jsonl"


def kept(project):
    return [json.loads(line) for line in (project.root / QUARANTINED).read_text().splitlines()]


BAD = {
    "data/bad.jsonl": b'{"key": "x", "text": "good"}\n{"key": "y", "te\xe9t": "b"}\n',
    "data/worse.csv": b"key,text\nz,good,too\n",
}


def spoil(project, floor=0):
    for name, data in BAD.items():
        (project.root / name).write_bytes(data)
    project.change(sources__own__min_quarantined=floor)


def test_too_large_a_share_of_bad_records_is_refused_and_they_can_be_looked_at(small):
    spoil(small)
    before = small.files()
    assert before.pop(QUARANTINED) == b""
    _, err = small.run("tasks.stages.ingest", "own", code=2)
    after = small.files()
    assert after.pop(QUARANTINED)
    assert after == before
    (line,) = err.splitlines()
    assert line.startswith("error: data/bad.jsonl:2: invalid_utf8 (byte 0xe9 at column 17; expected UTF-8 text)")
    assert "the first of 2 quarantined records of 40 (5.00%; see artifacts/corpus/quarantined/own.jsonl)" in line
    assert "at most 0.01 (sources.own.max_quarantined), or fewer than 0 (sources.own.min_quarantined)" in line
    assert [(row["place"], row["reason"]) for row in kept(small)] == [
        ("data/bad.jsonl:2", "invalid_utf8"),
        ("data/worse.csv:2", "wrong_fields"),
    ]


def test_the_share_that_is_allowed_is_quarantined_and_counted(small, documents):
    spoil(small)
    small.change(sources__own__max_quarantined=0.049)
    small.run("tasks.stages.ingest", "own", code=2)
    small.change(sources__own__max_quarantined=0.05)
    out, _ = small.run("tasks.stages.ingest", "own")
    assert "38 documents" in out
    assert "{'invalid_utf8': 1, 'wrong_fields': 1}" in out
    assert small.metrics("ingest-own") == {
        "records_read": 40,
        "documents": 38,
        "bytes": sum(len(d.text.encode()) for d in documents) + len("good"),
        "quarantined": 2,
        "quarantined_invalid_utf8": 1,
        "quarantined_wrong_fields": 1,
    }
    ids = [d.id for d in read_documents(small.root / "artifacts/corpus/raw/own.parquet")]
    assert ids == sorted([*(f"own/{d.id}" for d in documents), "own/x"])
    assert len(kept(small)) == 2


@pytest.mark.slow
def test_a_failed_dvc_repro_leaves_the_quarantine_to_be_looked_at(small):
    spoil(small)
    out, err = small.run("dvc", "repro", "ingest@own", code=255)
    assert "sources.own.max_quarantined" in out + err
    assert len(kept(small)) == 2
    small.change(sources__own__max_quarantined=0.05)
    small.run("dvc", "repro", "ingest@own")
    assert small.run("dvc", "status", "ingest@own")[0].count("up to date") == 1


def test_a_few_bad_records_end_nothing_whatever_their_share(small):
    spoil(small, floor=3)
    out, _ = small.run("tasks.stages.ingest", "own")
    assert f"38 documents, 0.1 MB; quarantined: {{'invalid_utf8': 1, 'wrong_fields': 1}} (see {QUARANTINED})" in out
    small.change(sources__own__min_quarantined=2)
    small.run("tasks.stages.ingest", "own", code=2)


def test_ingest_fails_when_no_document_is_left(small):
    for path in (small.root / "data").rglob("*.jsonl"):
        path.unlink()
    (small.root / "data/x.jsonl").write_text("{\n")
    small.change(sources__own__max_quarantined=1.0)
    _, err = small.run("tasks.stages.ingest", "own", code=2)
    assert err.startswith("error: data: no documents in it")


def test_ingest_fails_on_a_large_damaged_file(small):
    lines = (json.dumps({"key": i, "text": random.Random(i).randbytes(99).hex()}) + "\n" for i in range(2000))
    packed = gzip.compress("".join(lines).encode())
    (small.root / "data/most.jsonl.gz").write_bytes(gzip.compress(b'{"key": "one", "text": "a"}\n') + b"??" + packed)
    _, err = small.run("tasks.stages.ingest", "own", code=2)
    (line,) = err.splitlines()
    assert re.match(
        r"error: data/most\.jsonl\.gz:2: damaged_file \(.*\); \d\d\d,\d\d\d bytes of the file are not read", line
    )
    assert "% of the source; expected a share of at most 0.01 (sources.own.max_quarantined): repair or replace" in line
    assert kept(small)[0]["lost_bytes"] > 100_000
    (small.root / "data/most.jsonl.gz").write_bytes(packed[:500])  # how much there was, nobody can say
    out, _ = small.run("tasks.stages.ingest", "own")
    assert "quarantined: {'damaged_file': 1}" in out


def test_pointers_of_git_lfs_fail_the_stage_however_few_they_are(small):
    for name in ("a.txt", "b.txt"):
        (small.root / f"data/{name}").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 7\n")
    small.change(sources__own__max_quarantined=1.0)
    _, err = small.run("tasks.stages.ingest", "own", code=2)
    expected = "a pointer of Git LFS, not the file itself; run `git lfs pull` to get it (the first of 2 such files)"
    assert err == f"error: data/a.txt:1: {expected}\n"
    assert [row["reason"] for row in kept(small)] == ["lfs_pointer"] * 2


def test_a_full_disk_is_one_line_that_names_the_file_and_the_last_documents_stay(small):
    """The kernel refuses files of more than a kilobyte, as a full disk refuses all."""
    before = small.files()
    shutil.rmtree(small.root / "artifacts/parts/ingest-own")  # what it keeps
    process = small.start("tasks.stages.ingest", "own")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    _, err = finish(process, code=1)
    assert re.fullmatch(
        r"error: \[Errno 27\] File too large: 'artifacts/parts/ingest-own/\S+/documents\.parquet'\n", err
    )
    assert small.files() == before
