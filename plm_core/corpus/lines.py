"""A file as bytes and lines of a bounded size, plain or compressed. Used by ``records``."""

import gzip
import io
import re
from typing import IO, Any

import zstandard

from plm_core.corpus.quarantine import Refused

COMPRESSIONS = (".gz", ".zst")
HEAD = 1024
"""Bytes kept of a record's beginning, enough for an excerpt of 4-byte characters."""
PIECE = 1 << 16
"""Bytes read at once when a line is skipped."""
ZSTD_PIECE = 1 << 7
"""Packed bytes given to zstd at once: four of them can unfold to 128 kB, and what they unfold to is held."""
LONGEST_WINDOW = 1 << 31
"""How far back zstd may refer, as in files that are packed with ``zstd --long=31``."""
MOST_VALUES = 1_000_000
"""The most fields of a record, or values in its lists and objects. Each takes up to a hundred bytes of memory, however
few it takes in the file."""
UNCOUNTED = 1 << 20
"""Records of up to this many bytes are not checked for their number of values."""
BOM = b"\xef\xbb\xbf"

Stream = IO[bytes] | gzip.GzipFile


class _Zstd(io.RawIOBase):
    """The bytes in a zstd file. Unlike ``zstandard``'s stream it notices when the file ends within a frame."""

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


def opened(raw: IO[bytes], packing: str) -> Stream:
    """The bytes of an open file as a stream, decompressed when its name ends with one of ``COMPRESSIONS``.

    Raises, here or while the stream is read:
        OSError: the file cannot be read, then with an ``errno``; or it is not a compressed file, then without.
        EOFError, zlib.error, zstandard.ZstdError: it is damaged or truncated.
    """
    if packing not in COMPRESSIONS:
        return raw
    if not raw.read(1):
        raise EOFError("the file is empty; a compressed file never is")
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if packing == ".gz" else io.BufferedReader(_Zstd(raw), PIECE)


class Lines:
    """The lines of a stream as bytes, with the place and beginning of their record.

    An iterator that continues after raising Refused, which a generator cannot: ``csv.reader`` relies on it.
    """

    def __init__(self, stream: Stream, limit: int, marks: re.Pattern[bytes], quotes: bool) -> None:
        """``marks`` finds separators of values, and quotes, within which separators do not count.

        With ``quotes``, a record continues over line ends while a quote is open.
        """
        self.start = 1
        """The first line of the record."""
        self.head = b""
        """How the record begins."""
        self._stream = stream
        self._limit = limit
        self._marks = marks
        self._number = 0
        self._size = 0
        self._counts_quotes = quotes
        self._quotes = 0
        self._values = 0

    def begin(self) -> None:
        """Begin a new record with the next line."""
        self.start = self._number + 1
        self.head = b""
        self._size = 0
        self._quotes = 0
        self._values = 0

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        line = self._stream.readline(self._limit + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._size += len(line)
        if self._size > UNCOUNTED:
            self._count_values(line)
        self._quotes += self._counts_quotes and line.count(b'"')
        if self._number == 1:
            line = line.removeprefix(BOM)
        if len(self.head) < HEAD:
            self.head += line[: HEAD - len(self.head)]
        short = self._size - line.endswith(b"\n") <= self._limit
        if short and self._values <= MOST_VALUES:
            return line
        ended = line.endswith(b"\n")
        del line
        self._skip_record(ended)
        if not short:
            raise too_long(self._limit)
        raise Refused("too_many_values", f"more than {MOST_VALUES} values; expected at most this many in a record")

    def _count_values(self, line: bytes) -> None:
        quoted = self._quotes % 2 == 1
        for mark in self._marks.finditer(line):
            if mark[0] == b'"':
                quoted = not quoted
            elif not quoted:
                self._values += 1
                if self._values > MOST_VALUES:
                    return

    def _skip_record(self, ended: bool) -> None:
        """Skip to the end of the record, a piece at a time; ``ended``: whether the last line was read whole."""
        while not ended or self._quotes % 2:
            piece = self._stream.readline(PIECE)
            if not piece:
                return
            self._number += ended
            self._quotes += self._counts_quotes and piece.count(b'"')
            ended = piece.endswith(b"\n")


def decoded(data: bytes) -> str:
    """The text of UTF-8 bytes.

    Raises:
        Refused: invalid UTF-8, or a NUL, which does not occur in text and ends it for many programs.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = error.start - data.rfind(b"\n", 0, error.start)
        found = f"byte 0x{data[error.start]:02x} at column {column}"
        raise Refused("invalid_utf8", f"{found}; expected UTF-8 text") from None
    if "\0" in text:
        raise Refused("nul_byte", "a NUL character; expected text")
    return text


def too_long(limit: int) -> Refused:
    """The refusal of a record of more than ``limit`` bytes."""
    return Refused("too_long", f"more than {limit} bytes; expected at most this many (max_record_bytes of its source)")
