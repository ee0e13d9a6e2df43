"""A bad record never stops a source: it comes out with its place and reason, and what is around it is read."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_core.corpus.document import Document
from plm_core.corpus.removals import EXCERPT, Refused, quarantined
from plm_core.corpus.sources import SOURCES, open_source

BOM = b"\xef\xbb\xbf"


def read(path, **fields):
    return list(open_source("own", SOURCES["folder"](str(path), **fields)))


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def summary(records, root):
    """Texts of documents, places and reasons of the rest, in their order."""
    return [
        r.text if isinstance(r, Document) else (Path(r.place).relative_to(root).as_posix(), r.reason) for r in records
    ]


JSON_LINES = [
    (b'{"text": ', "broken_json"),
    (b"[1]", "no_object"),
    (b"7", "no_object"),
    (b'{"body": "b"}', "missing_text"),
    (b'{"text": 7}', "missing_text"),
    (b'{"text": null}', "missing_text"),
    (b'{"text": "a", "key": null}', "missing_id"),
    (b'{"text": "a", "key": ""}', "missing_id"),
    (b'{"text": "a", "key": true}', "missing_id"),
    (b'{"text": "a"}', "missing_id"),
    (b'{"te\xe9t": "c"}', "invalid_utf8"),
    (b'{"text": "\xed\xa0\x80", "key": 1}', "invalid_utf8"),
    (b'{"text": "a \\ud800 b", "key": 1}', "half_surrogate"),
    (b'{"text": "a", "key": "\\udfff"}', "half_surrogate"),
    (b'{"text": "a", "key": 1, "by": "\\ud800"}', "half_surrogate"),
    (b'{"text": "a", "key": 1, "\\ud800": 1}', "half_surrogate"),
    (b'{"text": "a\0", "key": 1}', "nul_byte"),
    (b'{"text": "a \\u0000", "key": 1}', "nul_byte"),
    (b'{"text": "' + b"x" * 999 + b'", "key": 1}', "too_long"),
    (b" " * 999, "too_long"),
    (b"[" * 300, "broken_json"),
    (b'{"text": "a", "key": ' + b"9" * 300 + b"}", "document"),
    (b"{" + b'"a":{' * 90, "broken_json"),
]


@pytest.mark.parametrize(("line", "reason"), JSON_LINES)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_bad_json_line_is_quarantined_alone(tmp_path, line, reason, end):
    lines = [BOM + b'{"text": "one", "key": "first"}', b"", line, b'{"text": "two", "key": "last"}']
    (tmp_path / "x.jsonl").write_bytes(end.join(lines))
    middle = "a" if reason == "document" else ("x.jsonl:3", reason)
    assert summary(read(tmp_path, id_field="key", max_record_bytes=800), tmp_path) == ["one", middle, "two"]


@pytest.mark.parametrize("size", [98, 99, 100, 101, 199, 200])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_record_size_limit_is_exact(tmp_path, size, end):
    for name, line in (("a.jsonl", b'{"text": "' + b"x" * (size - 12) + b'"}'), ("b.txt", b"x" * size)):
        (tmp_path / name).write_bytes(line + (end if name == "a.jsonl" else b""))
    (tmp_path / "c.csv").write_bytes(b"text\n" + b"x" * size + end)
    (tmp_path / "d.csv").write_bytes(b'text\n"' + b"x\n" * (size // 2 - 1) + b"x" * (size % 2) + b'"' + end)
    pq.write_table(pa.table({"text": ["x" * size]}), tmp_path / "e.parquet")
    kinds = [getattr(record, "reason", "document") for record in read(tmp_path, max_record_bytes=99)]
    assert kinds == ["document" if size <= 99 else "too_long"] * 5


CSV_LINES = [
    (b"1", "wrong_fields"),
    (b"1,a,b", "wrong_fields"),
    (b'1,"a"b', "broken_csv"),
    (b"1,a\rb", "broken_csv"),
    (b'1,"a\xe9"', "invalid_utf8"),
    (b"1,a\0", "nul_byte"),
    (b",a", "missing_id"),
    (b"1," + b"x" * 999, "too_long"),
    (b'1,"a\nb\xff\nc"', "invalid_utf8"),
    (b'1,"' + b"x\n" * 450 + b'"', "too_long"),
]


@pytest.mark.parametrize(("line", "reason"), CSV_LINES)
def test_bad_csv_row_is_quarantined_with_its_first_line(tmp_path, line, reason):
    (tmp_path / "x.csv").write_bytes(b'key,text\nfirst,"one\n1"\n\n' + line + b"\nlast,two\nlonely")
    summaries = summary(read(tmp_path, id_field="key", max_record_bytes=800), tmp_path)
    assert summaries[:2] == ["one\n1", ("x.csv:5", reason)]
    after = 7 + line.count(b"\n")
    assert summaries[2:] == ["two", (f"x.csv:{after}", "wrong_fields")]


def test_csv_with_unclosed_quote_is_one_record(tmp_path):
    (tmp_path / "x.csv").write_text('text\none\n"two\nthree\n')
    assert summary(read(tmp_path), tmp_path) == ["one", ("x.csv:3", "broken_csv")]


HEADERS = [b"te\xe9xt", b'"te"xt', b"text" + b"x" * 999, b"text,text", b"id;text", b"id|text", b"id\ttext"]


@pytest.mark.parametrize("header", HEADERS)
def test_csv_with_broken_header_is_one_record(tmp_path, header):
    (tmp_path / "x.csv").write_bytes(header + b"\none\ntwo\n")
    (tmp_path / "y.csv").write_bytes(b"text\nthree\n")
    assert summary(read(tmp_path, max_record_bytes=800), tmp_path) == [("x.csv:1", "broken_header"), "three"]


def test_csv_with_another_delimiter_is_refused_with_advice(tmp_path):
    (tmp_path / "x.csv").write_text("id;text\n7;one, two\n")
    (record,) = read(tmp_path)
    assert record.detail.startswith(
        "'id;text' is one column, because ',' separates them; set `delimiter: \";\"` of its source"
    )
    assert record.lost_bytes == len("id;text\n7;one, two\n")


def test_parquet_with_duplicate_columns_is_refused(tmp_path):
    names = ["text", "year", "text"]
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array([7]), pa.array(["b"])], names), tmp_path / "x.parquet"
    )
    (record,) = read(tmp_path)
    assert (record.place, record.reason) == (f"{tmp_path}/x.parquet:1", "broken_header")
    assert record.detail == "the name 'text' appears twice (columns 1 and 3); expected names that differ"


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 73400320\n"


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.jsonl", "x.jsonl.zst", "x.csv", "x.tsv", "x.parquet"])
def test_a_pointer_of_git_lfs_is_never_taken_for_text(tmp_path, name):
    (tmp_path / name).write_bytes(POINTER)
    (record,) = read(tmp_path)
    assert (record.place, record.reason, record.lost_bytes) == (f"{tmp_path}/{name}:1", "lfs_pointer", len(POINTER))
    assert "run `git lfs pull`" in record.detail


def test_csv_allows_unnamed_columns(tmp_path):
    (tmp_path / "x.csv").write_text(",,text\n1,2,3\n")
    assert summary(read(tmp_path), tmp_path) == ["3"]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a\nb\xff\n", 2, "invalid_utf8"),
        (b"a\nb\n\xe2\x82", 3, "invalid_utf8"),
        (BOM + b"a\nb\0c", 2, "nul_byte"),
        (b"x" * 801, 1, "too_long"),
        ("text".encode("utf-16"), 1, "invalid_utf8"),
    ],
)
def test_bad_text_file_is_quarantined_as_one_record_with_line(tmp_path, data, line, reason):
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.txt").write_text("good")
    assert summary(read(tmp_path, max_record_bytes=800), tmp_path) == [(f"a.txt:{line}", reason), "good"]


def test_bad_parquet_rows_are_quarantined_alone(tmp_path):
    texts = pa.array([b"one", b"b\xff", None, b"c\0", b"x" * 801, b"two"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": texts, "key": [1, 2, 3, 4, 5, 6]}), tmp_path / "x.parquet")
    records = read(tmp_path, id_field="key", max_record_bytes=800)
    reasons = ["invalid_utf8", "missing_text", "nul_byte", "too_long"]
    bad = [(f"x.parquet:{row}", reason) for row, reason in enumerate(reasons, start=2)]
    assert summary(records, tmp_path) == ["one", *bad, "two"]
    assert records[3].excerpt == "{'key': 4, 'text': 'c\\x00'}"


def test_parquet_columns_that_are_no_metadata_are_harmless(tmp_path):
    columns = {
        "text": pa.array(["one", "two"]).dictionary_encode(),
        "year": pa.array([7, 13], pa.uint16()),
        "by": pa.array(["A", None], pa.large_string()),
        "beyond Python": pa.array([2**62, 0], pa.timestamp("us")),
        "a.b": pa.array([[1.0], []]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    metadata = [{"year": 7, "by": "A"}, {"year": 13}]
    assert [(r.text, r.metadata) for r in read(tmp_path)] == [("one", metadata[0]), ("two", metadata[1])]


def test_a_parquet_file_with_a_broken_name_of_a_column_is_one_record(tmp_path):
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "x.parquet", store_schema=False)
    data = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(data.replace(b"text", b"t\xfft\xff"))
    assert summary(read(tmp_path), tmp_path) == [("x.parquet:1", "damaged_file")]


FAULTS = {"crash": lambda: os.kill(os.getpid(), signal.SIGKILL), "memory": lambda: bytearray(1 << 33)}


@pytest.mark.parametrize("name", FAULTS)
def test_parquet_that_crashes_its_reader_is_quarantined(tmp_path, monkeypatch, name):
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: FAULTS[name]() and [])
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "x.parquet")
    (tmp_path / "y.txt").write_text("good")
    bad, good = read(tmp_path)
    assert (bad.place, bad.reason, good.text) == (f"{tmp_path}/x.parquet:1", "damaged_file", "good")
    assert bad.detail == "reading it crashes, or takes more than 4 GiB; everything before this place was read"
    assert bad.lost_bytes == (tmp_path / "x.parquet").stat().st_size


def test_parquet_rows_without_text_are_counted(tmp_path):
    pq.write_table(pa.table({"score": [0.5] * 99}), tmp_path / "x.parquet")
    assert summary(read(tmp_path), tmp_path) == [(f"x.parquet:{row}", "missing_text") for row in range(1, 100)]


def test_file_with_undecodable_name_is_quarantined(tmp_path):
    (tmp_path / os.fsdecode(b"x\xff.txt")).write_text("text")
    assert [(r.place, r.reason) for r in read(tmp_path)] == [(f"{tmp_path}/x\\udcff.txt:1", "half_surrogate")]


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstd)])
def test_truncated_file_keeps_its_first_records(tmp_path, ending, pack):
    draw = random.Random(5)
    lines = [json.dumps({"text": f"{i} {draw.randbytes(999).hex()}"}).encode() for i in range(499)]
    whole = pack(b"\n".join(lines))
    for share in (0.5, 0.9, 0.999):
        (tmp_path / f"x.jsonl.{ending}").write_bytes(whole[: int(share * len(whole))])
        *documents, last = read(tmp_path)
        assert [d.text for d in documents] == [json.loads(line)["text"] for line in lines[: len(documents)]]
        # zstd packs blocks of 128 kB of text: 65 lines.
        assert len(documents) > share * 499 - (10 if ending == "gz" else 70)
        assert (last.place, last.reason) == (f"{tmp_path}/x.jsonl.{ending}:{len(documents) + 1}", "damaged_file")


@pytest.mark.parametrize("name", ["x.txt.gz", "x.jsonl.gz", "x.csv.zst", "x.txt.zst", "x.parquet"])
@pytest.mark.parametrize("data", [b"", b"no such file", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"PAR1PAR1"])
def test_file_with_wrong_extension_is_one_bad_record(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    (tmp_path / "y.txt").write_text("good")
    assert summary(read(tmp_path), tmp_path) == [(f"{name}:1", "damaged_file"), "good"]


def test_a_damaged_parquet_file_keeps_the_rows_before(tmp_path):
    pq.write_table(
        pa.table({"text": [f"{i} {random.Random(i).randbytes(99).hex()}" for i in range(999)]}),
        tmp_path / "x.parquet",
        row_group_size=100,
        write_page_checksum=True,
    )
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "x.parquet").write_bytes(data)
    *documents, last = read(tmp_path)
    assert 300 < len(documents) < 600
    assert (last.place, last.reason) == (f"{tmp_path}/x.parquet:{len(documents) + 1}", "damaged_file")
    assert last.lost_bytes == len(data) * (999 - len(documents)) // 999


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstd)])
def test_unread_share_of_a_damaged_file_is_measured(tmp_path, ending, pack):
    draw = random.Random(5)
    whole = pack(b"".join(json.dumps({"text": draw.randbytes(999).hex()}).encode() + b"\n" for _ in range(99)))
    for before, texts in ((b"", 0), (whole, 99)):
        (tmp_path / f"x.jsonl.{ending}").write_bytes(before + b"??" + whole)
        *documents, last = read(tmp_path)
        assert (len(documents), last.reason) == (texts, "damaged_file")
        # It is noticed a little later, within what was read ahead.
        assert 0.9 < last.lost_bytes / len(whole) <= 1


def test_unreadable_file_permission_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        read(tmp_path)


def test_quarantine_keeps_short_printable_text(tmp_path):
    (tmp_path / "new\nline").mkdir()
    (tmp_path / "new\nline/x.jsonl").write_bytes(b"\xff\0\x1b[31m\xe2\x80\xae" + "\U0001f600".encode() * 999 + b"\n")
    (record,) = read(tmp_path)
    assert record.place == f"{tmp_path}/new\\nline/x.jsonl:1"
    assert record.excerpt.startswith("\\xff\\x00\\x1b[31m\\u202e\U0001f600")
    assert len(record.excerpt) == EXCERPT == 200
    assert record.excerpt.isprintable()
    long = quarantined("x:1", Refused("r", "\ud800\n" * 999), "")
    assert len(long.detail) == EXCERPT
    assert long.detail.isprintable()


PEAK = """
import sys
from collections import Counter
from plm_core.corpus.sources import SOURCES, open_source

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

def read(path):
    source = SOURCES["folder"](path, max_record_bytes=int(sys.argv[3]))
    return Counter(getattr(record, "reason", "document") for record in open_source("own", source))

read(sys.argv[1])
before = peak()
print(*sorted(read(sys.argv[2]).items()), peak() - before)
"""
LONG = b"x" * 60_000_000
LARGE = {
    "jsonl": (b'{"text": "a"}\n', LONG + b'\n{"text": "b"}\n'),
    "csv": (b"text\na\n", b'"\n' + LONG + b'"\nb\n'),
    "txt": (b"a", LONG),
}


def measured(project, small, large, limit):
    """What is read of the large file, and by how many megabytes more memory than the small one takes."""
    command = [sys.executable, "-c", PEAK, small, large, str(limit)]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    counts, _, grown = run.stdout.strip().rpartition(" ")
    return counts, int(grown)


@pytest.mark.parametrize(("kind", "ending"), [("jsonl", ""), ("csv", ".gz"), ("txt", ".zst"), ("jsonl", ".zst")])
def test_long_record_is_found_in_bounded_memory(project, tmp_path, kind, ending):
    pack = {"": bytes, ".gz": lambda data: gzip.compress(data, 1), ".zst": zstd}[ending]
    begin, rest = LARGE[kind]
    files = [tmp_path / f"{size}.{kind}{ending}" for size in ("small", "large")]
    for file, data in zip(files, (begin, begin + rest), strict=True):
        file.write_bytes(pack(data))
    counts, grown = measured(project, *files, 1_000_000)
    assert counts == ("('too_long', 1)" if kind == "txt" else "('document', 2) ('too_long', 1)")
    assert grown < 20
    if kind == "jsonl":
        assert measured(project, *files, 100_000_000)[1] > 50, "the measurement sees what is held"


BOMBS = {
    "shared": ({}, 1_000_000, "('too_long', 64)"),
    "prefixes": (
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        1_000_000,
        "('too_long', 64)",
    ),
    "allowed": ({}, 100_000_000, "('document', 64)"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_parquet_reading_has_bounded_memory(project, tmp_path, name):
    how, limit, expected = BOMBS[name]
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "small.parquet")
    pq.write_table(pa.table({"text": ["x" * 4_000_000] * 64}), tmp_path / "x.parquet", compression="zstd", **how)
    counts, grown = measured(project, tmp_path / "small.parquet", tmp_path / "x.parquet", limit)
    assert counts == expected
    assert grown < 200
