"""Malformed documents of every format go through stage ingest: none ends it, and each is kept or quarantined."""

import gzip
import io
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from projects import Project, source

from plm_core.corpus.document import read_documents

BAD_TEXTS = [
    lambda draw: "",
    lambda draw: "\0" * draw.randrange(1, 9),
    lambda draw: "x" * draw.choice((4_000, 40_000)),
    lambda draw: "\u0301" * 3_000,
    lambda draw: "\ufeff\u202e\x1b[31m\x7f",
    lambda draw: "a\r\rb\x85c\u2028d",
    lambda draw: "," * draw.randrange(99) + '"' * draw.randrange(9) + "\t" * draw.randrange(9),
    lambda draw: "[" * 3_000,
    lambda draw: "said " * 99,
]
ENCODINGS = ("utf-8", "utf-16", "utf-32", "latin-1", "cp037", "utf-7", "shift_jis")


def text_of(draw):
    return draw.choice(BAD_TEXTS)(draw) if draw.random() < 0.7 else "Plain words é."


def json_line(draw):
    nested = draw.choice((3, 900, 50_000))
    text = text_of(draw)
    return draw.choice(
        [
            lambda: json.dumps({"text": text}),
            lambda: json.dumps({"text": draw.choice((None, 7, True, [text], {"a": text})), "a": text}),
            lambda: '{"text": ' * nested + "1" + "}" * nested,
            lambda: '{"text": ' + "[" * nested + "]" * nested + "}",
            lambda: '{"text": "a", "number": ' + "9" * 9_000 + "}",
            lambda: '{"text": "\\ud800", "\\udfff": 1e999, "x": NaN}',
            lambda: json.dumps([text]),
            lambda: json.dumps({"text": text})[: draw.randrange(1, 9)],
        ]
    )()


def table(draw, mark):
    rows = [mark.join(text_of(draw) for _ in range(draw.randrange(1, 4))) for _ in range(2)]
    return f"text{mark}more\n" + "\n".join(rows)


def parquet(draw):
    columns = draw.choice(
        [
            lambda: {"text": [text_of(draw), None]},
            lambda: {"text": pa.array([b"\xff\xfe", b"a"], pa.binary()).cast(pa.string(), safe=False)},
            lambda: {"text": [[["a"]], [[]]], "more": [{"a": {"b": 1}}, None]},
            lambda: {"text": [1, 2]},
            lambda: {"body": [text_of(draw)], "text ": ["a"]},
        ]
    )()
    out = io.BytesIO()
    how = {"compression": draw.choice(("zstd", "snappy", "none")), "use_dictionary": draw.random() < 0.5}
    pq.write_table(pa.table(columns), out, write_page_checksum=True, **how)
    return out.getvalue()


def malformed(kind, draw):
    """The bytes of a file of one or two documents, after what can happen to a file."""
    if kind == "parquet":
        data = parquet(draw)
    else:
        text = {
            "jsonl": lambda: json_line(draw) + "\n" + json_line(draw),
            "csv": lambda: table(draw, ","),
            "tsv": lambda: table(draw, "\t"),
            "txt": lambda: text_of(draw),
        }[kind]()
        data = text.encode(draw.choice(ENCODINGS) if draw.random() < 0.3 else "utf-8", "replace")
    accident = draw.randrange(6)
    at = draw.randrange(len(data) + 1)
    if accident == 0:
        return data[:at]
    if accident == 1:
        return data[:at] + draw.randbytes(draw.randrange(1, 99)) + data[at:]
    if accident == 2:
        return data[:at] + bytes(draw.randrange(1, 9)) + data[at:]
    return data


def write(folder, documents):
    """So many files or more documents, a fifth of each format, some of them packed."""
    folder.mkdir()
    for number in range(documents):
        draw = random.Random(number)
        kind = ("jsonl", "csv", "tsv", "txt", "parquet")[number % 5]
        data = malformed(kind, draw)
        if kind != "parquet" and draw.random() < 0.2:
            data = gzip.compress(data)[: None if draw.random() < 0.5 else -draw.randrange(1, 20)]
            kind += ".gz"
        (folder / f"{number:05}.{kind}").write_bytes(data)


def prove(project, documents):
    """Read this many malformed files with stage ingest; return what was quarantined for which reason."""
    write(project.root / "malformed", documents)
    section = {"reader": "folder", "input": "malformed", "max_quarantined": 1.0, "max_record_bytes": 30_000}
    project.change(sources={"own": section})
    project.run("tasks.stages.ingest", "own")
    metrics = project.metrics("ingest-own")
    kept = list(read_documents(project.root / "artifacts/corpus/raw/own.parquet"))
    quarantined = (project.root / "artifacts/corpus/quarantined/own.jsonl").read_text().splitlines()
    bad = [json.loads(line) for line in quarantined]
    assert metrics["records_read"] == metrics["documents"] + metrics["quarantined"] == len(kept) + len(bad)
    reasons = Counter(row["reason"] for row in bad)
    assert reasons == {k.removeprefix("quarantined_"): n for k, n in metrics.items() if k.startswith("quarantined_")}
    files = {path.name for path in (project.root / "malformed").iterdir()}
    seen = {document.id.partition("/")[2].partition("#")[0] for document in kept}
    seen |= {row["place"].partition("/")[2].partition(":")[0].removesuffix(".gz") for row in bad}
    # Without any record: a table with only its header, empty lines.
    silent = {name.removesuffix(".gz") for name in files} - seen
    for name in silent:
        path = next((project.root / "malformed").glob(f"{name}*"))
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if not name.endswith("parquet"):
            assert len(data.removeprefix(b"\xef\xbb\xbf").split()) <= 2, name
    assert len(silent) < documents / 10
    return reasons


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.proof)])
def test_of_malformed_documents_each_is_kept_or_quarantined(tmp_path, table, count):
    reasons = prove(Project(source(tmp_path / "project")), count)
    table("a malformed document of any format", count, f"kept or quarantined, each, for {len(reasons)} reasons")
    assert {"broken_json", "damaged_file", "invalid_utf8", "missing_text", "nul_byte", "too_long"} <= reasons.keys()
