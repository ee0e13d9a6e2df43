"""A file as a stream of records: text, JSON lines, CSV, TSV or Parquet, all but the last plain or compressed.

At most one record of a line format is in memory; one longer than allowed is refused without being held. Nothing found
*in* a file raises an exception here: a bad record is yielded with the reason why it was refused, and the unreadable
rest of a damaged file is one bad record.
"""

import csv
import gzip
import io
import json
import math
import os
import pickle
import re
import resource
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import types

from plm_core.corpus.removals import Refused

COMPRESSIONS = (".gz", ".zst")
HEAD = 1024
"""Bytes kept of a record's beginning, enough for an excerpt of 4-byte characters."""
PIECE = 1 << 16
"""Bytes read at once when a line is skipped."""
ZSTD_PIECE = 1 << 7
"""Compressed bytes given to zstd at once: four of them can expand to 128 kB, which are held in memory."""
LONGEST_WINDOW = 1 << 31
"""How far back zstd may refer, as in files that are compressed with ``zstd --long=31``."""
BOM = b"\xef\xbb\xbf"
FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
READABLE = (
    "Only .txt, .jsonl, .csv, .tsv and .parquet files are read. All except .parquet may be compressed (.gz, .zst)."
)
DELIMITERS = ",;|\t"
"""What separates the columns of a .csv, the most usual first."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
"""The beginning of a file that stands for another one in a clone without Git LFS."""
SURROGATE = re.compile("[\ud800-\udfff]")

ROWS_AT_ONCE = 8
"""The most rows of Parquet in memory."""
BYTES_AT_ONCE = 1 << 25
"""The most bytes of these rows if they are of similar size, unless a single row has more."""
MEMORY = 1 << 32
"""The bytes of memory that reading a Parquet file may take, besides four times its longest record."""
PIPE = 1 << 20
"""The buffer size, in bytes, of the pipe from the process that reads a Parquet file."""
READ_BEFORE = "everything before this place was read"

Stream = IO[bytes] | gzip.GzipFile


class _Zstd(io.RawIOBase):
    """The content of a zstd file. Unlike ``zstandard``'s stream it notices when the file ends within a frame."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW)
        self._frame: Any = None
        self._packed = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            packed = self._packed or self._raw.read(ZSTD_PIECE)
            if not packed and self._frame:
                raise EOFError("the file ends within a zstd frame")
            if not packed:
                return 0
            self._frame = self._frame or self._unpacker.decompressobj()
            self._unpacked = memoryview(self._frame.decompress(packed))
            self._packed = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count


class Lines:
    """The lines of a stream as bytes, with the place and beginning of their record.

    An iterator that continues after raising Refused, which a generator cannot: ``csv.reader`` relies on it.
    """

    def __init__(self, stream: Stream, limit: int, quotes: bool) -> None:
        """With ``quotes``, a record continues over line ends while a quote is open."""
        self._stream, self._limit, self._quotes = stream, limit, quotes
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new record with the next line."""
        self.start = self._number + 1
        """The first line of the record."""
        self.head = b""
        """How the record begins."""
        self._size = 0
        self._open = False

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        line = self._stream.readline(self._limit + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._size += len(line)
        self._count_quotes(line)
        if self._number == 1:
            line = line.removeprefix(BOM)
        if len(self.head) < HEAD:
            self.head += line[: HEAD - len(self.head)]
        ended = line.endswith(b"\n")
        if self._size - ended <= self._limit:
            return line
        del line
        while not ended or self._open:  # skip the rest of the record, a piece at a time
            piece = self._stream.readline(PIECE)
            if not piece:
                break
            self._number += ended
            self._count_quotes(piece)
            ended = piece.endswith(b"\n")
        raise too_long(self._limit)

    def _count_quotes(self, piece: bytes) -> None:
        self._open ^= self._quotes and piece.count(b'"') % 2 == 1


def decoded(data: bytes) -> str:
    """The text of UTF-8 bytes; Refused if it is invalid, or has a NUL, which ends a text for many programs."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = error.start - data.rfind(b"\n", 0, error.start)
        problem = f"byte 0x{data[error.start]:02x} at column {column}"
        raise Refused("invalid_utf8", f"{problem}; expected UTF-8 text") from None
    if "\0" in text:
        raise Refused("nul_byte", "a NUL character; expected text")
    return text


def too_long(limit: int) -> Refused:
    """The refusal of a record of more than ``limit`` bytes."""
    return Refused("too_long", f"more than {limit} bytes; expected at most this many (max_record_bytes of its source)")


Content = Mapping[str, object] | str | Refused
"""The fields of a record; the text, for a text file; or why it cannot be used."""


@dataclass(frozen=True)
class Record:
    """One record of a file."""

    number: int
    """The line on which it begins, or its row in Parquet; from 1."""
    content: Content
    head: bytes = b""
    """How it begins in the file; empty for Parquet."""


def format_of(file: Path) -> str | None:
    """The one of ``FORMATS`` that the file's name implies, or None if it is not readable."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    suffix = "".join(suffixes[-2:-1] if packed else suffixes[-1:])
    return suffix if suffix in FORMATS and not (packed and suffix == ".parquet") else None


def records(
    file: Path, limit: int, header: Sequence[str] | None = None, delimiter: str = ",", split: str | int | None = None
) -> Iterator[Record]:
    """Yield the records of a file that ``format_of`` knows; one of more than ``limit`` bytes is refused.

    ``header`` names the columns of a table without one; ``delimiter`` and ``split`` are those of the source ``folder``.

    Raises:
        OSError: the file itself cannot be read (permissions, a failing disk), as opposed to what is in it.
    """
    kind = format_of(file)
    assert kind, f"{file} is of no known format"
    lines = None
    # This limit is process-wide, 131,072 characters by default; Lines refuses a long record before the reader does.
    before = csv.field_size_limit(max(csv.field_size_limit(), limit + 1))
    with file.open("rb") as raw:
        size = file.stat().st_size
        try:
            if raw.read(len(LFS_POINTER)) == LFS_POINTER:
                raise Refused("lfs_pointer", "a pointer of Git LFS, not the file itself; run `git lfs pull` to get it")
            raw.seek(0)
            if kind == ".parquet":
                yield from _parquet_records(file, limit, size)
                return
            stream: Stream = raw
            if (packing := file.suffix.lower()) in COMPRESSIONS:
                if not size:
                    raise EOFError("the file is empty; a compressed file never is")
                stream = gzip.GzipFile(fileobj=raw) if packing == ".gz" else io.BufferedReader(_Zstd(raw), PIECE)
            if kind == ".txt" and split is None:
                yield _text_record(stream, limit, size)
                return
            lines = Lines(stream, limit, quotes=kind == ".csv")
            if kind == ".txt":
                yield from _records_of(lines, partial(_split_text, lines, split))
            elif kind == ".jsonl":
                yield from _records_of(lines, partial(_json_object, lines))
            else:
                yield from _table_records(lines, delimiter if kind == ".csv" else "", header)
        except Refused as refused:  # the whole file
            refused.lost_bytes = size
            yield Record(lines.start if lines else 1, refused, lines.head if lines else b"")
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            yield _damage(error, lines.start if lines else 1, lines.head if lines else b"", size - raw.tell())
        finally:
            csv.field_size_limit(before)


def within_limit(row: Mapping[str, object], limit: int) -> Mapping[str, object] | Refused:
    """The row, or its refusal if its texts have more than ``limit`` bytes together."""
    texts = [value for value in row.values() if isinstance(value, str)]
    # A character has at most 4 bytes, so short rows need not be encoded.
    if 4 * sum(map(len, texts)) <= limit or sum(len(t.encode("utf-8", "surrogatepass")) for t in texts) <= limit:
        return row
    return too_long(limit)


def _text_record(stream: Stream, limit: int, size: int) -> Record:
    data = stream.read(limit + 1)
    if len(data) > limit:
        why = f"more than {limit} bytes; expected at most max_record_bytes of its source, or `split` to divide it"
        return Record(1, Refused("too_long", why, size), data[:HEAD])
    try:
        return Record(1, decoded(data.removeprefix(BOM)), data[:HEAD])
    except Refused as refused:
        position = data.find(b"\0") if refused.reason == "nul_byte" else _first_invalid(data)
        begin = data.rfind(b"\n", 0, position) + 1
        return Record(data.count(b"\n", 0, position) + 1, refused, data[begin : begin + HEAD])


def _records_of(lines: Lines, read: Callable[[], Content | None]) -> Iterator[Record]:
    """A record for each call of ``read`` until it raises StopIteration; none if it returns None, as for blank lines."""
    while True:
        lines.begin()
        content: Content | None
        try:
            content = read()
        except StopIteration:
            return
        except Refused as refused:
            content = refused
        if content is not None:
            yield Record(lines.start, content, lines.head)


def _split_text(lines: Lines, split: str | int | None) -> str:
    """The next document of a text: a line, a paragraph, or ``split`` to twice as many lines until a blank one."""
    least, most = (split, 2 * split) if isinstance(split, int) else (0, 1 if split == "lines" else math.inf)
    held: list[bytes] = []
    filled = 0
    while True:
        line = next(lines, b"") if held else next(lines)
        blank = not line.strip()
        if not held and blank:
            lines.begin()
            continue
        held.append(line)
        filled += not blank
        if not line or filled >= most or (blank and filled >= least):
            return decoded(b"".join(held)).strip()


def _json_object(lines: Lines) -> Mapping[str, object] | None:
    line = next(lines)
    if not line.strip():
        return None
    text = decoded(line)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused("broken_json", f"{error}; expected one JSON object per line") from None
    if not isinstance(row, dict):
        raise Refused("no_object", f"found {type(row).__name__}; expected one JSON object per line")
    return row


def _table_records(lines: Lines, delimiter: str, header: Sequence[str] | None) -> Iterator[Record]:
    """Rows under a header, in the file or given, quoted as in RFC 4180; without a delimiter: tabs, nothing quoted."""
    # Invalid UTF-8 must not end the record, or its other lines would be taken for records.
    text = map(partial(str, encoding="utf-8", errors="surrogateescape"), lines)
    plain = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    reader = csv.reader(text, strict=True, delimiter=delimiter) if delimiter else plain

    def fields() -> list[str]:
        try:
            row = next(reader)
        except csv.Error as error:
            raise Refused("broken_csv", f"{error}; expected quoting as in RFC 4180") from None
        for column, field in enumerate(row, start=1):
            if match := SURROGATE.search(field):
                byte = ord(match.group()) - 0xDC00
                raise Refused("invalid_utf8", f"byte 0x{byte:02x} in field {column}; expected UTF-8 text")
        return row

    try:
        while not header:
            lines.begin()
            header = fields()
            _require_names(header, delimiter)
    except StopIteration:
        return
    except Refused as refused:
        raise Refused("broken_header", f"{refused.detail}; without a header the file is not read") from None
    names = header

    def record() -> Content | None:
        row = fields()
        if row and len(row) != len(names):
            raise Refused("wrong_fields", f"{len(row)} fields; expected the {len(names)} of the header")
        return dict(zip(names, row, strict=True)) if row else None

    yield from _records_of(lines, record)


def _require_names(row: Sequence[str], delimiter: str = "") -> None:
    """Refuse names of columns if two are the same, or if they were not separated."""
    # Tables with an index or with empty columns have empty names.
    if twice := next((name for name, count in Counter(row).items() if name and count > 1), None):
        places = " and ".join(str(place) for place, name in enumerate(row, start=1) if name == twice)
        problem = f"the name {twice!r} appears twice (columns {places})"
        raise Refused("broken_header", f"{problem}; expected names that differ")
    if delimiter and len(row) == 1 and (other := next((mark for mark in DELIMITERS if mark in row[0]), None)):
        problem = f"{row[0][:50]!r} is one column, because {delimiter!r} separates them"
        raise Refused("broken_header", f"{problem}; set `delimiter: {json.dumps(other)}` of its source, or save it so")


def _parquet_records(file: Path, limit: int, size: int) -> Iterator[Record]:
    # Another process reads the file, because a malformed one may crash Arrow or expand to more than fits into memory.
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.close(reading)
            with os.fdopen(writing, "wb", PIPE) as out:
                _send_parquet(file, limit, out)
        finally:
            os._exit(0)
    os.close(writing)
    number = rows = 0
    failure: tuple[str, str] | OSError | None
    try:
        with os.fdopen(reading, "rb", PIPE) as stream:
            batches = pa.ipc.open_stream(stream)
            rows = int(batches.schema.metadata[b"rows"])
            for batch in batches:
                for content in _rows(batch, limit):
                    number += 1
                    yield Record(number, content)
            failure = pickle.load(stream)
            if not failure and number != rows:
                failure = ("damaged_file", f"{number} rows, though it says {rows}; {READ_BEFORE}")
    except (EOFError, OSError, pa.ArrowException):
        failure = ("damaged_file", f"reading it crashes, or takes more than {MEMORY >> 30} GiB; {READ_BEFORE}")
    finally:
        os.kill(child, signal.SIGKILL)  # it may not have been read to its end
        os.waitpid(child, 0)
    if isinstance(failure, OSError):
        raise failure
    if failure:
        reason, detail = failure
        lost = max(0, size * (rows - number) // rows) if rows else size
        yield Record(number + 1, Refused(reason, detail, lost))


def _send_parquet(file: Path, limit: int, out: IO[bytes]) -> None:
    """Write the rows of a file as an Arrow stream, whose metadata say how many there are, and then what went wrong."""
    most = MEMORY + 4 * limit
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    rows = 0
    writer = None
    failure: tuple[str, str] | OSError | None = None
    try:
        with pq.ParquetFile(file, buffer_size=1 << 20, page_checksum_verification=True) as table:
            rows = table.metadata.num_rows
            _require_names(table.schema_arrow.names)
            # Python cannot represent every date of other columns, and vectors are expensive.
            tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_boolean)
            kinds = [(f.name, f.type.value_type if types.is_dictionary(f.type) else f.type) for f in table.schema_arrow]
            columns = [name for name, kind in kinds if any(test(kind) for test in tests)]
            for position in range(table.num_row_groups):
                group = table.metadata.row_group(position)
                at_once = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * group.num_rows // max(1, group.total_byte_size)))
                for batch in table.iter_batches(at_once, row_groups=[position], columns=columns, use_threads=False):
                    writer = writer or pa.ipc.new_stream(out, batch.schema.with_metadata({"rows": str(rows)}))
                    writer.write_batch(batch)
    except Refused as refused:
        failure = (refused.reason, refused.detail)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last is for the name of a column
        failure = ("damaged_file", f"{error}; {READ_BEFORE}")
        if isinstance(error, OSError) and error.errno is not None:
            failure = error  # of the machine, not of the file
    (writer or pa.ipc.new_stream(out, pa.schema([], {"rows": str(rows)}))).close()
    pickle.dump(failure, out)


def _rows(batch: pa.RecordBatch, limit: int) -> Iterator[Mapping[str, object] | Refused]:
    if batch.nbytes <= min(limit, BYTES_AT_ONCE):
        try:
            yield from batch.to_pylist()
            return
        except UnicodeDecodeError:
            pass  # nothing was yielded; continue row by row, to find the bad ones
    for position in range(batch.num_rows):
        row = batch.slice(position, 1)
        try:
            yield within_limit(row.to_pylist()[0], limit)
        except UnicodeDecodeError as error:
            yield Refused("invalid_utf8", f"byte 0x{error.object[error.start]:02x}; expected UTF-8 text")


def _first_invalid(data: bytes) -> int:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _damage(error: Exception, number: int, head: bytes, lost: int) -> Record:
    """The record for the rest of a damaged file. An error of the machine has an errno; libraries' own errors do not."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return Record(number, Refused("damaged_file", f"{error}; {READ_BEFORE}", lost), head)
