"""A document, and tables of documents: Parquet with the columns id, text, source, metadata. Read by every data stage.

Stages work on a table in parts that hold about as much text each. Where a part ends depends only on the files, never on
the number of processes, so that results are byte-identical.
"""

import heapq
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from pathlib import Path

import pyarrow as pa

from plm_core.config import UserError
from plm_core.corpus.tables import RowWriter, files_of, group_bytes, parquet_file, read_rows, row_writer
from plm_core.files import RESTORE

PART_BYTES = 1 << 24
"""A part ends as soon as its rows have this many bytes, or more if there would be more than ``MOST_PARTS``."""
MOST_PARTS = 1 << 12
"""The most parts: each has several files, and DVC and file systems are slow with very many."""

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "metadata")])


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


def document_writer(path: Path) -> AbstractContextManager[RowWriter[Document]]:
    """Yield a writer whose documents become the Parquet file ``path`` when the block succeeds.

    The metadata are a JSON object in a string column, so that sources with different fields share one table.
    """
    return row_writer(path, SCHEMA, _row)


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write documents to a Parquet file, holding a few at a time, and return how many there were."""
    with document_writer(path) as writer:
        for document in documents:
            writer.write(document)
    return writer.count


def read_documents(path: Path, groups: slice = slice(None)) -> Iterator[Document]:
    """Yield the documents of a table in order, holding a few at a time; for a single file, those of these row groups.

    Raises:
        UserError: a file is missing, damaged, or has other columns than those above.
    """
    for row in read_rows(path, SCHEMA, groups):
        try:
            metadata = json.loads(row["metadata"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged metadata of {row['id']!r} ({error}); {RESTORE}") from error
        yield Document(row["id"], row["text"], row["source"], metadata)


def merge_documents(pieces: Sequence[tuple[Path, slice]], unique: bool = True) -> Iterator[Document]:
    """Yield the documents of several row groups, each sorted by id, in the order of their ids, holding a few of each.

    If ids need not be ``unique``, documents with the same one come in the order of their pieces.

    Raises:
        UserError: as in ``read_documents``, or an id does not come after the one before.
    """
    last: str | None = None
    for document in heapq.merge(*starmap(read_documents, pieces), key=lambda document: document.id):
        if unique or document.id != last:
            require_order(last, document.id, [path for path, _ in pieces])
        last = document.id
        yield document


def require_order(before: str | None, after: str, paths: Iterable[Path]) -> None:
    """Raise UserError unless the id ``after``, found in one of the files, comes after ``before``."""
    if before is not None and after <= before:
        names = ", ".join(map(str, paths))
        raise UserError(f"{names}: the id {after!r} comes after {before!r}; expected unique ids in order; {RESTORE}")


@dataclass(frozen=True)
class Texts:
    """The texts of some row groups, read from disk each time they are iterated."""

    pieces: Sequence[tuple[Path, slice]]
    """The row groups of files, or whole tables."""

    def __iter__(self) -> Iterator[str]:
        return (document.text for piece in self.pieces for document in read_documents(*piece))


def _row(document: Document) -> dict[str, str]:
    metadata = json.dumps(document.metadata, sort_keys=True, ensure_ascii=False)
    return {"id": document.id, "text": document.text, "source": document.source, "metadata": metadata}


@dataclass(frozen=True)
class Part:
    """The documents with ids from ``first`` on and before ``stop``; None: without a bound."""

    pieces: tuple[tuple[Path, slice], ...]
    """The files and row groups that contain them, among others."""
    first: str | None = None
    stop: str | None = None

    def documents(self, unique: bool = True) -> Iterator[Document]:
        """Yield them in the order of their ids, which need not be ``unique``.

        Raises:
            UserError: as in ``merge_documents``.
        """
        for document in merge_documents(self.pieces, unique):
            if self.stop is not None and document.id >= self.stop:
                return
            if self.first is None or document.id >= self.first:
                yield document


def pieces_of(table: Path) -> list[tuple[Path, slice]]:
    """The row groups of a table of documents in pieces, in file order, whatever the order of ids.

    Raises:
        UserError: a file is missing or damaged.
    """
    sizes = {file: group_bytes(file, SCHEMA) for file in files_of(table)}
    least = least_bytes(sum(map(sum, sizes.values())))
    return [(file, groups) for file, found in sizes.items() for groups in in_parts(found, least)]


def parts_of(tables: Iterable[Path], unique: bool = True) -> list[Part]:
    """The parts of one or more tables of documents, each sorted by id, which need not be ``unique``; at least one part.

    Raises:
        UserError: a file is missing or damaged, or not sorted.
    """
    firsts: dict[Path, list[str]] = {}
    groups: list[tuple[str, int]] = []
    for file in (file for table in tables for file in files_of(table)):
        with parquet_file(file, SCHEMA) as rows:
            ids = [rows.read_row_group(i, columns=["id"]).column(0)[0].as_py() for i in range(rows.num_row_groups)]
        for before, after in pairwise(ids):
            if unique or before != after:
                require_order(before, after, [file])
        firsts[file] = ids
        groups += zip(ids, group_bytes(file, SCHEMA), strict=True)
    groups.sort()
    sizes = [size for _, size in groups]
    cuts = [groups[part.start][0] for part in in_parts(sizes, least_bytes(sum(sizes)))][1:]

    def between(first: str | None, stop: str | None) -> Part:
        # If ids are not unique, the groups before one that begins with an id may contain it too.
        before = bisect_right if unique else bisect_left
        pieces = []
        for file, ids in firsts.items():
            begin = 0 if first is None else max(0, before(ids, first) - 1)
            end = len(ids) if stop is None else bisect_left(ids, stop)
            if begin < end:
                pieces.append((file, slice(begin, end)))
        return Part(tuple(pieces), first, stop)

    return [between(*bounds) for bounds in zip([None, *cuts], [*cuts, None], strict=True)]


def some_of(table: Path, most: int) -> tuple[list[tuple[Path, slice]], float]:
    """Row groups of about ``most`` bytes, evenly spread over a table, and their share of the table; at least one, and
    all if the table is not larger.

    Raises:
        UserError: a file is missing or damaged.
    """
    sizes = {(file, number): size for file in files_of(table) for number, size in enumerate(group_bytes(file, SCHEMA))}
    total = sum(sizes.values())
    if total <= most:
        return [(file, slice(None)) for file in files_of(table)], 1.0
    every = [(file, slice(number, number + 1)) for file, number in sizes]
    count = max(1, len(every) * most // total)
    return [every[i * len(every) // count] for i in range(count)], count / len(every)


def in_parts(sizes: Sequence[int], least: int) -> Iterator[slice]:
    """Group consecutive items of these sizes into parts, each of at least ``least`` bytes except the last."""
    begin = size = 0
    for end, more in enumerate(sizes, start=1):
        size += more
        if size >= least or end == len(sizes):
            yield slice(begin, end)
            begin = end
            size = 0


def least_bytes(total: int, most: int | None = None) -> int:
    """The size at which a part ends, given the total; ``most`` is the largest number of parts."""
    return max(PART_BYTES, total // (most or MOST_PARTS))
