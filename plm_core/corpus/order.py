"""Documents in the order of their ids, however many there are: an external merge sort. Used by ingest."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count
from operator import attrgetter
from pathlib import Path

from plm_core.corpus.document import Document, read_documents, write_documents

CHARACTERS_AT_ONCE = 1 << 26
"""Characters of documents that are sorted in memory; what is more goes to the disk, sorted, and is merged."""
OBJECTS = 500
"""What a document's objects take besides its characters, in as many of them."""
MOST_RUNS = 256
"""So many sorted files become one: all are open while they are merged, and a process may have some thousand."""
BY_ID = attrgetter("id")


class Sorter:
    """Takes documents in any order, and gives them in the order of their ids, character by character."""

    def __init__(self, scratch: Path, characters: int = CHARACTERS_AT_ONCE) -> None:
        """``scratch`` is an existing folder, for as much as is added."""
        self._limit = characters
        self._names = (scratch / f"run-{number:05d}.parquet" for number in count())
        self._runs: list[Path] = []
        self._held: list[Document] = []
        self._size = 0

    def add(self, document: Document) -> None:
        """Take a document; raises OSError when the disk is full."""
        self._held.append(document)
        fields = sum(len(str(value)) for value in document.metadata.values())
        self._size += len(document.text) + len(document.id) + fields + OBJECTS
        if self._size >= self._limit:
            self._runs.append(self._written(sorted(self._held, key=BY_ID)))
            self._held = []
            self._size = 0
        if len(self._runs) == MOST_RUNS:
            merged = self._written(self.documents())
            for run in self._runs:
                run.unlink()
            self._runs = [merged]

    def documents(self) -> Iterator[Document]:
        """All documents; of each run on the disk, some are in memory."""
        return heapq.merge(*map(read_documents, self._runs), sorted(self._held, key=BY_ID), key=BY_ID)

    def _written(self, documents: Iterable[Document]) -> Path:
        run = next(self._names)
        write_documents(run, documents)
        return run
