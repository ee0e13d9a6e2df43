"""The decompressed size of the pages of a Parquet file, read before any is decompressed. Used by ``records``.

Arrow decompresses whole pages and trusts their headers, but does not expose them; the figures in the file's footer may
differ. So the headers are read here, and also the footer, because Arrow's Python reads a column's part of it unguarded:
a damaged place in it ended the process. Both are structs in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), their fields are in parquet.thrift
(https://github.com/apache/parquet-format).
"""

from io import BytesIO
from os import SEEK_CUR, SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
ROW_GROUPS = 4
"""A field of FileMetaData."""
COLUMNS = 1
"""A field of a RowGroup."""
META_DATA = 3
"""A field of a ColumnChunk."""
PATH_IN_SCHEMA, TOTAL_COMPRESSED_SIZE, DATA_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = 3, 7, 9, 11
"""Fields of a ColumnMetaData."""
UNCOMPRESSED, COMPRESSED = 2, 3
"""Fields of a PageHeader."""
DEEPEST = 9
"""The deepest nesting of structs and lists; a FileMetaData has seven levels."""
FIXED = {BYTE: 1, DOUBLE: 8}
"""Bytes of a value."""
LONG_LIST = 15
"""The marker that a list's length follows its first byte."""
LONGEST_NAME = 1 << 16
"""Longer byte strings are a page's statistics, and are not kept."""

Struct = dict[int, Any]
"""The fields of a struct, by their numbers."""
T = TypeVar("T")


class Damaged(ValueError):
    """These bytes are not a page header, or not a footer."""


def row_groups(path: Path) -> list[Struct]:
    """The row groups of a file, from its footer.

    Raises:
        Damaged: the footer is not one.
    """
    with path.open("rb") as file:
        file.seek(-8, SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, SEEK_END)
        footer = BytesIO(file.read(length))
    return _field(_struct(footer, 0), ROW_GROUPS, list)


def largest_pages(path: Path, group: Struct, columns: set[str]) -> int:
    """Bytes of the largest page of each of these columns in one of ``row_groups``, decompressed, in total.

    Raises:
        Damaged: there is no page where one should begin.
    """
    chunks = [_field(chunk, META_DATA, dict) for chunk in _field(group, COLUMNS, list)]
    with path.open("rb") as file:
        return sum(_largest_page(file, chunk) for chunk in chunks if _name(chunk) in columns)


def _name(chunk: Struct) -> str:
    return ".".join(str(part, "utf-8") for part in _field(chunk, PATH_IN_SCHEMA, list) if isinstance(part, bytes))


def _largest_page(file: BinaryIO, chunk: Struct) -> int:
    begin = _field(chunk, DATA_PAGE_OFFSET, int)
    # Some writers give zero if there is no dictionary.
    if chunk.get(DICTIONARY_PAGE_OFFSET):
        begin = min(begin, _field(chunk, DICTIONARY_PAGE_OFFSET, int))
    if begin < 0:
        raise Damaged("a page before the file")
    end = begin + _field(chunk, TOTAL_COMPRESSED_SIZE, int)
    largest = 0
    file.seek(begin)
    while file.tell() < end:
        header = _struct(file, 0)
        largest = max(largest, _field(header, UNCOMPRESSED, int))
        _skip(file, _field(header, COMPRESSED, int))
    return largest


def _field(struct: Any, number: int, kind: type[T]) -> T:
    """Return a field; in a damaged file it may be missing, of another kind or outside a struct."""
    value = struct.get(number) if isinstance(struct, dict) else None
    if not isinstance(value, kind):
        raise Damaged(f"field {number} is not there")
    return value


def _struct(file: BinaryIO, depth: int) -> Struct:
    if depth > DEEPEST:
        raise Damaged("structs nested too deeply")
    fields = {}
    number = 0
    while head := _byte(file):
        number = number + (head >> 4) if head >> 4 else _zigzag(file)
        if (kind := head & 15) not in (TRUE, FALSE):
            fields[number] = _value(file, kind, depth)
    return fields


def _value(file: BinaryIO, kind: int, depth: int) -> int | bytes | list[Any] | Struct:
    """A field's value, or an item of a list. Maps and sets do not occur."""
    if kind in (I16, I32, I64):
        return _zigzag(file)
    if kind == STRUCT:
        return _struct(file, depth + 1)
    if kind == LIST:
        head = _byte(file)
        length = head >> 4 if head >> 4 < LONG_LIST else _varint(file)
        return [_value(file, head & 15, depth + 1) for _ in range(length)]
    if kind == BINARY:
        size = _varint(file)
    elif kind in FIXED:
        size = FIXED[kind]
    else:
        raise Damaged(f"a value of type {kind}")
    if size > LONGEST_NAME:
        _skip(file, size)
        return b""
    return file.read(size)


def _skip(file: BinaryIO, size: int) -> None:
    if not 0 <= size < 1 << 31:
        raise Damaged(f"a size of {size} bytes")
    file.seek(size, SEEK_CUR)


def _byte(file: BinaryIO) -> int:
    if not (data := file.read(1)):
        raise Damaged("the file ends in it")
    return data[0]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise Damaged("a number that does not end")


def _zigzag(file: BinaryIO) -> int:
    value = _varint(file)
    return (value >> 1) ^ -(value & 1)
