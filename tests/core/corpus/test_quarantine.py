"""A bad record never stops a source: it comes out with its place and reason, and what is around it is read."""

import csv
import functools
import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined, Refused, quarantined
from plm_core.corpus.sources import SOURCES, open_source

BOM = b"\xef\xbb\xbf"


def read(path, **fields):
    return list(open_source("own", SOURCES["folder"](str(path), **fields)))


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def summary(found, root):
    """Texts of documents, places and reasons of the rest, in their order."""
    return [
        r.text if isinstance(r, Document) else (Path(r.place).relative_to(root).as_posix(), r.reason) for r in found
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
def test_the_limit_of_a_record_is_exact(tmp_path, size, end):
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
def test_a_bad_csv_row_is_quarantined_with_the_line_it_begins_with(tmp_path, line, reason):
    (tmp_path / "x.csv").write_bytes(b'key,text\nfirst,"one\n1"\n\n' + line + b"\nlast,two\nlonely")
    found = summary(read(tmp_path, id_field="key", max_record_bytes=800), tmp_path)
    assert found[:2] == ["one\n1", ("x.csv:5", reason)]
    after = 7 + line.count(b"\n")
    assert found[2:] == ["two", (f"x.csv:{after}", "wrong_fields")]


def test_a_quote_that_is_never_closed_is_one_record(tmp_path):
    (tmp_path / "x.csv").write_text('text\none\n"two\nthree\n')
    assert summary(read(tmp_path), tmp_path) == ["one", ("x.csv:3", "broken_csv")]


HEADERS = [b"te\xe9xt", b'"te"xt', b"text" + b"x" * 999, b"text,text", b"id;text", b"id|text", b"id\ttext"]


@pytest.mark.parametrize("header", HEADERS)
def test_a_csv_file_with_a_broken_header_is_one_record(tmp_path, header):
    (tmp_path / "x.csv").write_bytes(header + b"\none\ntwo\n")
    (tmp_path / "y.csv").write_bytes(b"text\nthree\n")
    assert summary(read(tmp_path, max_record_bytes=800), tmp_path) == [("x.csv:1", "broken_header"), "three"]


def test_a_csv_file_with_another_delimiter_is_refused_with_what_to_set(tmp_path):
    (tmp_path / "x.csv").write_text("id;text\n7;one, two\n")
    (found,) = read(tmp_path)
    assert found.detail.startswith(
        "'id;text' is one column, because ',' separates them; set `delimiter: \";\"` of its source"
    )
    assert found.lost_bytes == len("id;text\n7;one, two\n")


def test_two_columns_of_parquet_of_one_name_are_refused(tmp_path):
    names = ["text", "year", "text"]
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array([7]), pa.array(["b"])], names), tmp_path / "x.parquet"
    )
    (found,) = read(tmp_path)
    assert (found.place, found.reason) == (f"{tmp_path}/x.parquet:1", "broken_header")
    assert found.detail == "the name 'text' appears twice (columns 1 and 3); expected names that differ"


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 73400320\n"


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.jsonl", "x.jsonl.zst", "x.csv", "x.tsv", "x.parquet"])
def test_a_pointer_of_git_lfs_is_never_taken_for_text(tmp_path, name):
    (tmp_path / name).write_bytes(POINTER)
    (found,) = read(tmp_path)
    assert (found.place, found.reason, found.lost_bytes) == (f"{tmp_path}/{name}:1", "lfs_pointer", len(POINTER))
    assert "run `git lfs pull`" in found.detail


def test_columns_without_a_name_do_no_harm(tmp_path):
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
def test_a_bad_text_file_is_one_record_with_the_line_that_is_wrong(tmp_path, data, line, reason):
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.txt").write_text("good")
    assert summary(read(tmp_path, max_record_bytes=800), tmp_path) == [(f"a.txt:{line}", reason), "good"]


def test_bad_rows_of_parquet_are_quarantined_alone(tmp_path):
    texts = pa.array([b"one", b"b\xff", None, b"c\0", b"x" * 801, b"two"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": texts, "key": [1, 2, 3, 4, 5, 6]}), tmp_path / "x.parquet")
    found = read(tmp_path, id_field="key", max_record_bytes=800)
    reasons = ["invalid_utf8", "missing_text", "nul_byte", "too_long"]
    bad = [(f"x.parquet:{row}", reason) for row, reason in enumerate(reasons, start=2)]
    assert summary(found, tmp_path) == ["one", *bad, "two"]
    assert found[3].excerpt == "{'key': 4, 'text': 'c\\x00'}"


def test_columns_of_parquet_that_are_no_metadata_do_no_harm(tmp_path):
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


def test_every_row_of_parquet_without_text_is_counted(tmp_path):
    pq.write_table(pa.table({"score": [0.5] * 99}), tmp_path / "x.parquet")
    assert summary(read(tmp_path), tmp_path) == [(f"x.parquet:{row}", "missing_text") for row in range(1, 100)]


def test_a_file_whose_name_is_no_text_is_quarantined(tmp_path):
    (tmp_path / os.fsdecode(b"x\xff.txt")).write_text("text")
    assert [(r.place, r.reason) for r in read(tmp_path)] == [(f"{tmp_path}/x\\udcff.txt:1", "half_surrogate")]


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstd)])
def test_what_was_read_of_a_truncated_file_stays(tmp_path, ending, pack):
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
def test_a_file_that_is_not_what_its_name_says_is_one_record(tmp_path, name, data):
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
def test_what_is_not_read_of_a_damaged_file_is_measured(tmp_path, ending, pack):
    draw = random.Random(5)
    whole = pack(b"".join(json.dumps({"text": draw.randbytes(999).hex()}).encode() + b"\n" for _ in range(99)))
    for before, texts in ((b"", 0), (whole, 99)):
        (tmp_path / f"x.jsonl.{ending}").write_bytes(before + b"??" + whole)
        *documents, last = read(tmp_path)
        assert (len(documents), last.reason) == (texts, "damaged_file")
        # It is noticed a little later, within what was read ahead.
        assert 0.9 < last.lost_bytes / len(whole) <= 1


def test_a_file_that_may_not_be_read_is_an_error_of_the_machine(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        read(tmp_path)


def test_everything_that_is_kept_of_a_bad_record_is_short_printable_text(tmp_path):
    (tmp_path / "new\nline").mkdir()
    (tmp_path / "new\nline/x.jsonl").write_bytes(b"\xff\0\x1b[31m\xe2\x80\xae" + "\U0001f600".encode() * 999 + b"\n")
    (found,) = read(tmp_path)
    assert found.place == f"{tmp_path}/new\\nline/x.jsonl:1"
    assert found.excerpt.startswith("\\xff\\x00\\x1b[31m\\u202e\U0001f600")
    assert len(found.excerpt) == 200
    assert found.excerpt.isprintable()
    long = quarantined("x:1", Refused("r", "\ud800\n" * 999), "")
    assert len(long.detail) == 200
    assert long.detail.isprintable()


ROWS = [{"key": f"k{i}", "text": f"{i} \u00e4 \U0001f600 " + "word " * i, "by": "A,\n"} for i in range(7)]


@functools.cache
def plain(kind):
    """A sound file of a format."""
    if kind == "txt":
        return "\n\n".join(row["text"] for row in ROWS).encode()
    if kind == "jsonl":
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
    if kind == "parquet":
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(ROWS), out, row_group_size=3, write_page_checksum=True)
        return out.getvalue()
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ROWS[0])
    writer.writeheader()
    writer.writerows(ROWS)
    return out.getvalue().encode()


def mutated(draw, data):
    """The bytes after one to three accidents."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        else:
            new = [b"\0\0", b"\xff", draw.choice([b'"', b"\n", b"\r", b",", b"{"]), data[at : at + draw.randrange(99)]]
            data = data[:at] + new[kind - 2] + data[at:]
    return data


def unpacked(ending, data):
    """What is in a compressed file, by other means than the source's; None when it is damaged."""
    try:
        if ending == "gz":
            return gzip.decompress(data) if data else None
        return pa.input_stream(pa.py_buffer(data), compression="zstd").read() if data else None
    except (OSError, EOFError, gzip.zlib.error):
        return None


def csv_records(data):
    text = data.removeprefix(BOM).decode("utf-8", "surrogateescape")
    rows, reader = [], csv.reader(re.findall("[^\n]*\n|[^\n]+", text), strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            row = ["\udc80"]
        if row:
            rows.append(row)
    names = [name for name in rows[0] if name] if rows else []
    if len(set(names)) < len(names) or re.search("[\ud800-\udfff]", "".join(names)):
        return 1
    return max(0, len(rows) - 1)


def record_count(kind, data):
    """How many records are in the bytes of a sound or broken plain file."""
    if kind == "jsonl":
        return sum(1 for line in data.removeprefix(BOM).split(b"\n") if line.strip())
    return 1 if kind == "txt" else csv_records(data)


KINDS = ["txt", "jsonl", "csv", "parquet", *(f"{k}.{e}" for k in ("txt", "jsonl", "csv") for e in ("gz", "zst"))]


def malformed(draw, name):
    """A broken file: inside the compression or outside; and its number of records, None when it is not known."""
    kind, _, ending = name.partition(".")
    data = plain(kind)
    if kind == "parquet":
        return mutated(draw, data), None
    if not ending:
        data = mutated(draw, data)
        return data, record_count(kind, data)
    pack = gzip.compress if ending == "gz" else zstd
    data = pack(mutated(draw, data)) if draw.random() < 0.5 else mutated(draw, pack(data))
    inside = unpacked(ending, data)
    return data, None if inside is None else record_count(kind, inside)


def test_a_footer_that_arrow_ends_the_process_for_is_damage(tmp_path):
    file = tmp_path / "x.parquet"
    file.write_bytes(mutated(random.Random(9813), plain("parquet")))
    [found] = read(file)
    assert found.reason == "damaged_file"
    assert "histogram" in found.detail


@pytest.mark.parametrize("files", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_of_thousands_of_malformed_files_every_record_comes_out_once(tmp_path, files):
    reasons, documents = Counter(), 0
    for number in range(files):
        name = KINDS[number % len(KINDS)]
        kind = name.partition(".")[0]
        data, expected = malformed(random.Random(number), name)
        file = tmp_path / f"x.{name}"
        file.write_bytes(data)
        # Where a row of CSV that is too long ends is a matter of its quotes, which the count does not know.
        limit = 10_000 if kind == "csv" else (90, 400)[number // len(KINDS) % 2]
        found = read(file, id_field="key", max_record_bytes=limit)
        bad = [r for r in found if isinstance(r, Quarantined)]
        good = [r for r in found if isinstance(r, Document)]
        damaged = [r for r in bad if r.reason == "damaged_file"]
        assert len(good) + len(bad) == len(found)
        if expected is None and name != "parquet":
            whole = [r.reason for r in bad] == ["too_long" if kind == "txt" else "broken_header"]
            assert damaged == found[-1:] or whole, number
        elif expected is not None:
            assert (len(found), damaged) == (expected, []), number
        elif not damaged:
            assert len(found) == pq.read_metadata(file).num_rows, number
        assert all(r.place.startswith(f"{file}:") and r.excerpt.isprintable() and len(r.excerpt) <= 200 for r in bad)
        "".join(d.id + d.text + str(d.metadata) for d in good).encode()
        documents += len(good)
        reasons.update(r.reason for r in bad)
    assert documents > files
    assert {r for r, count in reasons.items() if count > files / 1000} >= {
        "broken_csv",
        "broken_header",
        "broken_json",
        "damaged_file",
        "invalid_utf8",
        "missing_id",
        "missing_text",
        "nul_byte",
        "too_long",
        "wrong_fields",
    }


PEAK = """
import sys
from plm_core.corpus.sources import SOURCES, open_source

def read(path, limit):
    stream = open_source("own", SOURCES["folder"](path, max_record_bytes=limit))
    return [getattr(record, "reason", "document") for record in stream]

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024

small, large, limit = sys.argv[1:]
read(small, int(limit))
before = peak()
found = read(large, int(limit))
print(*found, peak() - before)
"""
LONG = b"x" * 60_000_000
LARGE = {
    "jsonl": (b'{"text": "a"}\n', LONG + b'\n{"text": "b"}\n'),
    "csv": (b"text\na\n", b'"\n' + LONG + b'"\nb\n'),
    "txt": (b"a", LONG),
}


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", LARGE)
def test_a_long_record_is_found_without_being_held(project, tmp_path, kind, ending):
    pack = {"": bytes, ".gz": lambda data: gzip.compress(data, 1), ".zst": zstd}[ending]
    begin, rest = LARGE[kind]
    (tmp_path / f"small.{kind}{ending}").write_bytes(pack(begin))
    (tmp_path / f"large.{kind}{ending}").write_bytes(pack(begin + rest))

    def measured(limit):
        files = [str(tmp_path / f"{size}.{kind}{ending}") for size in ("small", "large")]
        run = subprocess.run(
            [sys.executable, "-c", PEAK, *files, str(limit)], cwd=project, capture_output=True, text=True, check=True
        )
        *found, grown = run.stdout.split()
        return found, int(grown)

    found, grown = measured(1_000_000)
    assert found == (["too_long"] if kind == "txt" else ["document", "too_long", "document"])
    assert grown < 20
    if kind == "jsonl":
        assert measured(100_000_000)[1] > 50, "the measurement sees what is held"
