"""A file as a stream of records: text, JSON lines, CSV, TSV or Parquet, all but the last plain or compressed.

Used by sources, surveys, and examples of tasks and evaluation sets. At most one record of a line format is in memory;
one longer than allowed is refused without being held. Nothing found *in* a file raises an exception here: a bad record
is yielded with the reason why it was refused, and the unreadable rest of a damaged file is one bad record.
"""

import csv
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from plm_core.corpus.lines import BOM, COMPRESSIONS, HEAD, Lines, Stream, decoded, opened, too_long
from plm_core.corpus.pages import Damaged, largest_pages, row_groups
from plm_core.corpus.quarantine import Refused

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
READABLE = f"{', '.join(FORMATS)}; all but the last also with {' or '.join(COMPRESSIONS)}"
MARKS = {kind: re.compile(marks) for kind, marks in ((".jsonl", rb'\\.|[",[{]'), (".csv", b'[",]'), (".tsv", b"\t"))}
"""The characters that separate the values of a record, and quote them."""
SURROGATE = re.compile("[\ud800-\udfff]")

ROWS_AT_ONCE = 64
"""The most rows of Parquet in memory."""
BYTES_AT_ONCE = 1 << 25
"""The most bytes of these rows, unless a single row has more."""
PAGES = 1 << 29
"""The most bytes of Parquet pages that are in memory together, one per column; more are refused."""


@dataclass(frozen=True)
class Record:
    """One record of a file."""

    number: int
    """The line on which it begins, or its row in Parquet; from 1."""
    content: Mapping[str, object] | str | Refused
    """Its fields; the text, for a text file; or why it cannot be used."""
    head: bytes = b""
    """How it begins in the file; empty for Parquet."""


def format_of(file: Path) -> str | None:
    """The one of ``FORMATS`` that the file's name implies, or None if it is not readable."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    suffix = "".join(suffixes[-2:-1] if packed else suffixes[-1:])
    return suffix if suffix in FORMATS and not (packed and suffix == ".parquet") else None


def records(file: Path, limit: int, header: Sequence[str] | None = None) -> Iterator[Record]:
    """Yield the records of a file that ``format_of`` knows; one of more than ``limit`` bytes is refused.

    ``header`` names the columns of a table without a header line.

    Raises:
        OSError: the file itself cannot be read (permissions, a failing disk), as opposed to what is in it.
    """
    kind = format_of(file)
    assert kind, f"{file} is of no known format"
    if kind == ".parquet":
        yield from _parquet_records(file, limit)
        return
    lines = None
    # This limit is process-wide, 131,072 characters by default; Lines refuses a long record before the reader does.
    before = csv.field_size_limit(max(csv.field_size_limit(), limit + 1))
    try:
        with opened(file) as stream:
            if kind == ".txt":
                yield _text_record(stream, limit)
                return
            lines = Lines(stream, limit, MARKS[kind], quotes=kind == ".csv")
            yield from _json_records(lines) if kind == ".jsonl" else _table_records(lines, kind == ".csv", header)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        yield _damage(error, lines.start if lines else 1, lines.head if lines else b"")
    finally:
        csv.field_size_limit(before)


def within(row: Mapping[str, object], limit: int) -> Mapping[str, object] | Refused:
    """The row, or its refusal if its texts have more than ``limit`` bytes together."""
    texts = [value for value in row.values() if isinstance(value, str)]
    # A character has at most 4 bytes, so short rows need not be encoded.
    if 4 * sum(map(len, texts)) <= limit or sum(len(t.encode("utf-8", "surrogatepass")) for t in texts) <= limit:
        return row
    return too_long(limit)


def _text_record(stream: Stream, limit: int) -> Record:
    data = stream.read(limit + 1)
    if len(data) > limit:
        return Record(1, too_long(limit), data[:HEAD])
    try:
        return Record(1, decoded(data.removeprefix(BOM)), data[:HEAD])
    except Refused as refused:
        position = data.find(b"\0") if refused.reason == "nul_byte" else _first_invalid(data)
        begin = data.rfind(b"\n", 0, position) + 1
        return Record(data.count(b"\n", 0, position) + 1, refused, data[begin : begin + HEAD])


def _json_records(lines: Lines) -> Iterator[Record]:
    while True:
        lines.begin()
        content: Mapping[str, object] | Refused
        try:
            line = next(lines, None)
            if line is None:
                return
            if not line.strip():
                continue
            content = _json_object(decoded(line))
        except Refused as refused:
            content = refused
        yield Record(lines.start, content, lines.head)


def _json_object(text: str) -> Mapping[str, object]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused("broken_json", f"{error}; expected one JSON object per line") from None
    if not isinstance(row, dict):
        raise Refused("no_object", f"found {type(row).__name__}; expected one JSON object per line")
    return row


def _table_records(lines: Lines, comma: bool, header: Sequence[str] | None) -> Iterator[Record]:
    """Rows under a header, in the file or given: with commas, quoted as in RFC 4180, or with tabs and no quoting."""
    # Invalid UTF-8 must not end the record, or its other lines would be taken for records.
    text = map(partial(str, encoding="utf-8", errors="surrogateescape"), lines)
    reader = csv.reader(text, strict=True) if comma else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    while True:
        lines.begin()
        content: Mapping[str, object] | Refused
        try:
            row = next(reader, None)
            if row is None:
                return
            if not row:
                continue
            _require_utf8(row)
            if header is None:
                header = _header(row)
                continue
            if len(row) != len(header):
                raise Refused("wrong_fields", f"{len(row)} fields; expected the {len(header)} of the header")
            content = dict(zip(header, row, strict=True))
        except csv.Error as error:
            content = Refused("broken_csv", f"{error}; expected quoting as in RFC 4180")
        except Refused as refused:
            content = refused
        if header is None and isinstance(content, Refused):
            detail = f"{content.detail}; without a header the rest of the file is not read"
            yield Record(lines.start, Refused("broken_header", detail), lines.head)
            return
        yield Record(lines.start, content, lines.head)


def _header(row: list[str]) -> list[str]:
    # Tables with an index or with empty columns have empty names.
    if twice := sorted(name for name, count in Counter(row).items() if name and count > 1):
        raise Refused("broken_header", f"the name {twice[0]!r} appears twice; expected names that differ")
    return row


def _require_utf8(row: list[str]) -> None:
    for column, field in enumerate(row, start=1):
        if found := SURROGATE.search(field):
            byte = ord(found.group()) - 0xDC00
            raise Refused("invalid_utf8", f"byte 0x{byte:02x} in field {column}; expected UTF-8 text")


def _parquet_records(file: Path, limit: int) -> Iterator[Record]:
    number = 0
    try:
        with pq.ParquetFile(file, buffer_size=1 << 20, page_checksum_verification=True) as table:
            columns = _useful(table.schema_arrow)
            for group, described in enumerate(row_groups(file)):
                pages = largest_pages(file, described, set(columns))
                if pages > max(PAGES, limit):
                    rows = table.metadata.row_group(group).num_rows
                    yield Record(number + 1, _large_pages(pages, rows))
                    number += rows
                    continue
                # No row is longer than a page, not even if rows share a text that occurs in it once.
                rows = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // max(1, pages)))
                for batch in table.iter_batches(rows, row_groups=[group], columns=columns):
                    for content in _rows(batch, limit):
                        number += 1
                        yield Record(number, content)
            if number != (told := table.metadata.num_rows):
                raise Damaged(f"{number} rows, though it says {told}")
    # The last two are for the name of a column, and the header of a page.
    except (OSError, pa.ArrowException, UnicodeDecodeError, Damaged) as error:
        yield _damage(error, number + 1, b"")


def _large_pages(size: int, rows: int) -> Refused:
    found = f"{rows} rows in pages of {size} bytes"
    return Refused("too_long", f"{found}; expected at most {PAGES}: write the file with smaller row groups")


def _useful(schema: pa.Schema) -> list[str]:
    """The columns of text and integers. Python cannot represent every date of others, and vectors are expensive."""
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_boolean)
    kinds = [(f.name, f.type.value_type if types.is_dictionary(f.type) else f.type) for f in schema]
    return [name for name, kind in kinds if any(test(kind) for test in tests)]


def _rows(batch: pa.RecordBatch, limit: int) -> Iterator[Mapping[str, object] | Refused]:
    if batch.nbytes <= limit:
        try:
            yield from batch.to_pylist()
            return
        except UnicodeDecodeError:
            pass  # nothing was yielded; continue row by row, to find the bad ones
    for position in range(batch.num_rows):
        row = batch.slice(position, 1)
        try:
            yield row.to_pylist()[0] if _text_bytes(row) <= limit else too_long(limit)
        except UnicodeDecodeError as error:
            yield Refused("invalid_utf8", f"byte 0x{error.object[error.start]:02x}; expected UTF-8 text")


def _text_bytes(row: pa.RecordBatch) -> int:
    """The bytes of all texts of a batch, before decoding."""
    plain = [c.dictionary_decode() if types.is_dictionary(c.type) else c for c in row.columns]
    texts = [c.cast(pa.large_binary()) for c in plain if not (types.is_integer(c.type) or types.is_boolean(c.type))]
    return sum(pc.sum(pc.binary_length(c)).as_py() or 0 for c in texts)


def _first_invalid(data: bytes) -> int:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _damage(error: Exception, number: int, head: bytes) -> Record:
    """The record for the rest of a damaged file. An error of the machine has an errno; libraries' own errors do not."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return Record(number, Refused("damaged_file", f"{error}; what is before this place was read"), head)
