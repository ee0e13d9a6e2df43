"""Documents in the order of their ids, however many there are: an external merge sort. Used by ingest."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, count
from operator import attrgetter
from pathlib import Path

from plm_core.corpus.document import Document, read_documents, write_documents

CHARACTERS_AT_ONCE = 1 << 26
"""Characters of documents that are sorted in memory; larger inputs are written to disk in sorted runs and merged."""
OBJECTS = 500
"""The memory overhead of a document, counted in characters."""
MOST_RUNS = 64
"""This many sorted files are merged into one; while open, each holds some megabytes."""
BY_ID = attrgetter("id")


class Sorter:
    """Takes documents in any order and yields them ordered by id, character by character."""

    def __init__(self, scratch: Path, characters: int = CHARACTERS_AT_ONCE) -> None:
        """``scratch`` is an existing folder on a disk with room for all that is added."""
        self._limit = characters
        self._names = (scratch / f"run-{number:05d}.parquet" for number in count())
        self._runs: list[list[Path]] = []
        """The runs by how often their content was merged."""
        self._held: list[Document] = []
        self._size = 0

    def add(self, document: Document) -> None:
        """Add a document; raises OSError if the disk is full."""
        self._held.append(document)
        fields = sum(len(str(value)) for value in document.metadata.values())
        self._size += len(document.text) + len(document.id) + fields + OBJECTS
        if self._size >= self._limit:
            self._write(sorted(self._held, key=BY_ID), 0)
            self._held = []
            self._size = 0

    def documents(self) -> Iterator[Document]:
        """All documents, those with the same id in their original order; a few of each run are in memory."""
        # What was merged more often came earlier.
        runs = chain.from_iterable(reversed(self._runs))
        return _merged([*map(read_documents, runs), sorted(self._held, key=BY_ID)])

    def _write(self, documents: Iterable[Document], merged: int) -> None:
        run = next(self._names)
        write_documents(run, documents)
        if merged == len(self._runs):
            self._runs.append([])
        runs = self._runs[merged]
        runs.append(run)
        if len(runs) == MOST_RUNS:
            self._write(_merged(map(read_documents, runs)), merged + 1)
            for run in runs:
                run.unlink()
            runs.clear()


def _merged(runs: Iterable[Iterable[Document]]) -> Iterator[Document]:
    return heapq.merge(*runs, key=BY_ID)
