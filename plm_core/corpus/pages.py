"""How large the pages of a Parquet file are once decompressed, before one of them is. Used by ``records``.

Arrow decompresses whole pages and believes their headers, but shows nothing of these; the figures in the file's footer
may be other ones. So the headers are read here: structs in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), of which Parquet's PageHeader
(parquet.thrift) has type, uncompressed and compressed size as its first fields.
"""

from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
UNCOMPRESSED, COMPRESSED = 2, 3
"""Fields of a PageHeader."""
DEEPEST = 8
"""Structs in structs; a PageHeader has three."""


class Damaged(ValueError):
    """These bytes are no page header."""


def largest_pages(path: Path, group: pq.RowGroupMetaData, columns: set[str]) -> int:
    """Bytes of the largest page of each of these columns in a row group, decompressed, together.

    Raises:
        Damaged: what stands where a page should begin is none.
    """
    chunks = [group.column(i) for i in range(group.num_columns)]
    with path.open("rb") as file:
        return sum(_largest_page(file, chunk) for chunk in chunks if chunk.path_in_schema in columns)


def _largest_page(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    offsets = [chunk.data_page_offset, chunk.dictionary_page_offset]
    begin = min(offset for offset in offsets if offset)
    end = begin + chunk.total_compressed_size
    largest = 0
    file.seek(begin)
    while file.tell() < end:
        sizes = _struct(file, 0)
        largest = max(largest, sizes.get(UNCOMPRESSED, 0))
        if (compressed := sizes.get(COMPRESSED, -1)) < 0:
            raise Damaged("a page without a size")
        file.seek(compressed, 1)
    return largest


def _struct(file: BinaryIO, depth: int) -> dict[int, int]:
    """The whole numbers among the fields of a struct, by the fields' numbers; the others are skipped."""
    if depth > DEEPEST:
        raise Damaged("structs in structs without an end")
    numbers = {}
    field = 0
    while head := _byte(file):
        field = field + (head >> 4) if head >> 4 else _zigzag(file)
        if (kind := head & 15) in (I16, I32, I64):
            numbers[field] = _zigzag(file)
        else:
            _skip(file, kind, depth)
    return numbers


def _skip(file: BinaryIO, kind: int, depth: int) -> None:
    """Go to the end of a field's value; lists and maps do not occur in a PageHeader."""
    if kind in (BYTE, DOUBLE):
        file.seek(1 if kind == BYTE else 8, 1)
    elif kind == BINARY:
        file.seek(_varint(file), 1)
    elif kind == STRUCT:
        _struct(file, depth + 1)
    elif kind not in (TRUE, FALSE):
        raise Damaged(f"a field of type {kind}")


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
    raise Damaged("a number without an end")


def _zigzag(file: BinaryIO) -> int:
    value = _varint(file)
    return (value >> 1) ^ -(value & 1)
