"""A document, and tables of rows in Parquet, written and read a few rows at a time. Used by every data stage.

A table is one Parquet file, or a folder of them in the order of their names, which other tools read too. Stages work on
a table of documents in parts that hold about as much text each. Where a part ends depends only on the files, never on
the number of processes, so results are byte-identical; and where text is added, only the parts near it change.
"""

import contextlib
import heapq
import json
import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plm_core.config import UserError
from plm_core.shared.files import RESTORE, atomic_file, atomic_folder, sha256_text

T = TypeVar("T")
Row = dict[str, Any]
Piece = tuple[Path, slice]
"""Row groups of a file."""

ROWS_AT_ONCE = 1024
"""The most rows that are held in memory, and that a row group of the file has."""
CHARACTERS_AT_ONCE = 1 << 20
"""Rows are written as soon as those held have this many characters, so that only a few long texts are in memory."""
PART_BYTES = 1 << 24
"""A part ends as soon as its rows have this many bytes, or more if there would be more than ``MOST_PARTS``."""
MOST_PARTS = 1 << 12
"""The most parts: each has several files, and DVC and file systems are slow with very many."""

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "metadata")])
"""The columns of documents; their metadata are JSON, so that sources with different fields share one table."""


@dataclass(frozen=True)
class Document:
    """One text with its origin; paragraphs are separated by an empty line."""

    id: str
    """Unique and stable: the split of the document is a function of it alone."""
    text: str
    source: str
    """The name of its source; during ingestion, the place in it."""
    metadata: dict[str, str | int] = field(default_factory=dict)
    """The source's fields for it (year, author, ...)."""


class RowWriter(Generic[T]):
    """Takes the rows of one table; ``row_writer`` opens it."""

    def __init__(self, file: pq.ParquetWriter, schema: pa.Schema, to_row: Callable[[T], Row]) -> None:
        self.count = 0
        self._file, self._schema, self._to_row = file, schema, to_row
        self._held: list[Row] = []
        self._characters = 0

    def write(self, item: T) -> None:
        row = self._to_row(item)
        self._held.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        self.count += 1
        if len(self._held) == ROWS_AT_ONCE or self._characters >= CHARACTERS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the rows held, if any, as a row group of their own."""
        if self._held:
            self._file.write_table(pa.Table.from_pylist(self._held, self._schema))
            self._held = []
            self._characters = 0


@contextlib.contextmanager
def row_writer(path: Path, schema: pa.Schema, to_row: Callable[[T], Row]) -> Iterator[RowWriter[T]]:
    """Yield a writer whose rows become the Parquet file ``path`` when the block succeeds, and vanish otherwise.

    ``to_row`` makes a row with the columns of ``schema`` from what the writer is given. Equal rows give equal bytes.
    """
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as file,
    ):
        writer = RowWriter(file, schema, to_row)
        yield writer
        writer.flush()


@contextlib.contextmanager
def _opened(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; UserError as in ``read_rows``."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(schema):
                present, expected = (
                    ", ".join(f"{column.name} ({column.type})" for column in columns)
                    for columns in (file.schema_arrow, schema)
                )
                raise UserError(f"{path}: has the columns {present}; expected {expected}")
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro`)") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the machine, not of the file
        raise UserError(f"{path}: damaged, or not a Parquet file ({error}); {RESTORE}") from error


def read_rows(table: Path, schema: pa.Schema, groups: slice = slice(None)) -> Iterator[Row]:
    """Yield the rows of a table in order, optionally only of these row groups of a file, holding at most one row group.

    Raises:
        UserError: a file is missing, damaged, or has other columns than ``schema``.
    """
    for path in files_of(table):
        with _opened(path, schema) as file:
            for group in range(file.num_row_groups)[groups]:
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group]):
                    yield from batch.to_pylist()


def files_of(table: Path) -> list[Path]:
    """The Parquet files of a table, in order."""
    return sorted(table.glob("*.parquet")) if table.is_dir() else [table]


def gather_parts(files: Sequence[Path], table: Path) -> None:
    """Combine the files of parts into a table, leaving out empty ones unless all are empty."""
    filled = [file for file in files if pq.read_metadata(file).num_rows]
    with atomic_folder(table, checksums=False) as folder:
        for number, file in enumerate(filled or files[:1]):
            place = folder / f"{number:05d}.parquet"
            try:
                os.link(file, place)  # the original stays, because a restarted stage looks for it
            except OSError:  # not every file system supports links
                shutil.copyfile(file, place)


def document_writer(path: Path) -> AbstractContextManager[RowWriter[Document]]:
    """Yield a writer whose documents become the Parquet file ``path`` when the block succeeds."""

    def row(document: Document) -> Row:
        return vars(document) | {"metadata": json.dumps(document.metadata, sort_keys=True, ensure_ascii=False)}

    return row_writer(path, SCHEMA, row)


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write documents to a Parquet file and return how many there were."""
    with document_writer(path) as writer:
        for document in documents:
            writer.write(document)
    return writer.count


def read_documents(path: Path, groups: slice = slice(None)) -> Iterator[Document]:
    """Yield the documents of a table; arguments and UserError as in ``read_rows``."""
    for row in read_rows(path, SCHEMA, groups):
        try:
            metadata = json.loads(row["metadata"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged metadata of {row['id']!r} ({error}); {RESTORE}") from error
        yield Document(row["id"], row["text"], row["source"], metadata)


@dataclass(frozen=True)
class Texts:
    """The texts of some row groups, read from disk each time they are iterated."""

    pieces: Sequence[Piece]
    """The row groups of files, or whole tables."""

    def __iter__(self) -> Iterator[str]:
        return (document.text for piece in self.pieces for document in read_documents(*piece))


@dataclass(frozen=True)
class Part:
    """The documents with ids from ``first`` on and before ``stop``; None: without a bound."""

    pieces: tuple[Piece, ...]
    """The files and row groups that contain them, among others; each is sorted by id."""
    first: str | None = None
    stop: str | None = None

    def documents(self, unique: bool = True) -> Iterator[Document]:
        """Yield them in the order of their ids, holding a few of each piece.

        If ids need not be ``unique``, documents with the same one come in the order of their pieces.

        Raises:
            UserError: as in ``read_documents``, or an id does not come after the one before.
        """
        last: str | None = None
        for document in heapq.merge(*starmap(read_documents, self.pieces), key=lambda document: document.id):
            if unique or document.id != last:
                _require_order(last, document.id, [path for path, _ in self.pieces])
            last = document.id
            if self.stop is not None and document.id >= self.stop:
                return
            if self.first is None or document.id >= self.first:
                yield document


def _require_order(before: str | None, after: str, paths: Iterable[Path]) -> None:
    if before is not None and after <= before:
        names = ", ".join(map(str, paths))
        raise UserError(f"{names}: the id {after!r} comes after {before!r}; expected unique ids in order; {RESTORE}")


def in_parts(sizes: Sequence[int], total: int, names: Sequence[str], most: int | None = None) -> Iterator[slice]:
    """Group consecutive items of these sizes into parts of at least ``PART_BYTES``, except the last.

    ``total`` is the size of all items, here and in other calls, which make at most about ``most`` parts. A part that is
    large enough ends where the hash of the next item's name says so, one time in eight, or when it is twice as large.
    So where text is added, cuts soon fall where they fell before (Muthitacharoen et al. 2001, "A Low-bandwidth Network
    File System", section 3.1).
    """
    least = PART_BYTES
    while total > least * (most or MOST_PARTS):
        least *= 2
    begin = size = 0
    for end, more in enumerate(sizes, start=1):
        size += more
        if end == len(sizes) or size >= 2 * least or (size >= least and int(sha256_text(names[end])[-1], 16) % 8 == 0):
            yield slice(begin, end)
            begin = end
            size = 0


def _group_sizes(table: Path) -> dict[Path, list[int]]:
    """The bytes of each row group of the files of a table of documents."""
    sizes = {}
    for path in files_of(table):
        with _opened(path, SCHEMA) as file:
            sizes[path] = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
    return sizes


def pieces_of(table: Path) -> list[Piece]:
    """The row groups of a table of documents in pieces, in file order, whatever the order of ids."""
    sizes = _group_sizes(table)
    total = sum(map(sum, sizes.values()))
    return [
        (file, groups)
        for file, own in sizes.items()
        for groups in in_parts(own, total, list(map(str, range(len(own)))))
    ]


def sample_row_groups(table: Path, most: int) -> tuple[list[Piece], float]:
    """Row groups of about ``most`` bytes, at least one, evenly spread over a table, and their share of it."""
    sizes = _group_sizes(table)
    total = sum(map(sum, sizes.values()))
    if total <= most:
        return [(file, slice(None)) for file in sizes], 1.0
    every = [(file, slice(number, number + 1)) for file, own in sizes.items() for number in range(len(own))]
    count = max(1, len(every) * most // total)
    return [every[i * len(every) // count] for i in range(count)], count / len(every)


def parts_of(tables: Iterable[Path], unique: bool = True) -> list[Part]:
    """The parts, at least one, of tables of documents that are sorted by id; UserError if one is not, or damaged."""
    firsts: dict[Path, list[str]] = {}
    groups: list[tuple[str, int]] = []
    for path, own in (item for table in tables for item in _group_sizes(table).items()):
        with _opened(path, SCHEMA) as file:
            ids = [file.read_row_group(i, columns=["id"]).column(0)[0].as_py() for i in range(len(own))]
        for before, after in pairwise(ids):
            if unique or before != after:
                _require_order(before, after, [path])
        firsts[path] = ids
        groups += zip(ids, own, strict=True)
    groups.sort()
    sizes = [size for _, size in groups]
    cuts = [groups[part.start][0] for part in in_parts(sizes, sum(sizes), [first for first, _ in groups])][1:]
    parts = []
    for first, stop in zip([None, *cuts], [*cuts, None], strict=True):
        # If ids are not unique, an id that begins a group may also occur in the groups before it.
        before_first = bisect_right if unique else bisect_left
        pieces = []
        for path, ids in firsts.items():
            begin = 0 if first is None else max(0, before_first(ids, first) - 1)
            end = len(ids) if stop is None else bisect_left(ids, stop)
            if begin < end:
                pieces.append((path, slice(begin, end)))
        parts.append(Part(tuple(pieces), first, stop))
    return parts
