"""A corpus in parts that hold about as much text each. Used by the stages that work on them.

Where a part ends depends only on the files, never on the number of processes, so that results are byte-identical.
"""

import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from plm_core.corpus.document import SCHEMA, Document, merge_documents, require_order
from plm_core.corpus.tables import files_of, parquet_file
from plm_core.files import atomic_folder

PART_BYTES = 1 << 24
"""A part ends as soon as its rows have this many bytes, or more if there would be more than ``MOST_PARTS``."""
MOST_PARTS = 1 << 12
"""The most parts: each has several files, and DVC and file systems are slow with very many."""


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
    sizes = {file: _sizes(file) for file in files_of(table)}
    least = least_bytes(sum(map(sum, sizes.values())))
    return [(file, groups) for file, found in sizes.items() for groups in in_parts(found, least)]


def parts_of(tables: Iterable[Path], unique: bool = True) -> list[Part]:
    """The parts of one or more tables of documents, each sorted by id, which need not be ``unique``; at least one part.

    Raises:
        UserError: a file is missing or damaged, or not sorted.
    """
    groups = {file: list(_groups(file)) for table in tables for file in files_of(table)}
    every = sorted(group for found in groups.values() for group in found)
    sizes = [size for _, size in every]
    cuts = [every[part.start][0] for part in in_parts(sizes, least_bytes(sum(sizes)))][1:]
    firsts = {file: [first for first, _ in found] for file, found in groups.items()}
    for file, ids in firsts.items():
        for before, after in pairwise(ids):
            if unique or before != after:
                require_order(before, after, [file])
    return [_between(firsts, unique, *bounds) for bounds in zip([None, *cuts], [*cuts, None], strict=True)]


def some_of(table: Path, most: int) -> tuple[list[tuple[Path, slice]], float]:
    """Row groups of about ``most`` bytes, evenly spread over a table, and their share of the table; at least one, and
    all if the table is not larger.

    Raises:
        UserError: a file is missing or damaged.
    """
    sizes = {(file, number): size for file in files_of(table) for number, size in enumerate(_sizes(file))}
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


def _sizes(file: Path) -> list[int]:
    """The bytes of each row group."""
    with parquet_file(file, SCHEMA) as table:
        return _bytes(table)


def _bytes(table: pq.ParquetFile) -> list[int]:
    return [table.metadata.row_group(number).total_byte_size for number in range(table.num_row_groups)]


def _groups(file: Path) -> Iterator[tuple[str, int]]:
    """The first id and the bytes of each row group."""
    with parquet_file(file, SCHEMA) as table:
        for number, size in enumerate(_bytes(table)):
            yield table.read_row_group(number, columns=["id"]).column(0)[0].as_py(), size


def _between(firsts: dict[Path, list[str]], unique: bool, first: str | None, stop: str | None) -> Part:
    # If ids are not unique, the groups before one that begins with an id may contain it too.
    before = bisect_right if unique else bisect_left
    pieces = []
    for file, ids in firsts.items():
        begin = 0 if first is None else max(0, before(ids, first) - 1)
        end = len(ids) if stop is None else bisect_left(ids, stop)
        if begin < end:
            pieces.append((file, slice(begin, end)))
    return Part(tuple(pieces), first, stop)


def gather(files: Sequence[Path], table: Path) -> None:
    """Combine the files of parts into a table; those without a row are left out, unless all are empty."""
    filled = [file for file in files if pq.read_metadata(file).num_rows]
    with atomic_folder(table, checksums=False) as folder:
        for number, file in enumerate(filled or files[:1]):
            _place(file, folder / f"{number:05d}.parquet")


def _place(file: Path, place: Path) -> None:
    """Put the file in another place too; it also stays in its own, where a restarted stage looks for it."""
    try:
        os.link(file, place)
    except OSError:  # not every file system supports links
        shutil.copyfile(file, place)
