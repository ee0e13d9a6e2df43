"""Documents in the order of their ids, however many there are: an external merge sort. Used by ingest."""

import heapq
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from plm_core.corpus.document import Document, read_documents, write_documents

CHARACTERS_AT_ONCE = 1 << 26
"""Characters of documents that are sorted in memory; what is more goes to the disk, sorted, and is merged."""
OBJECTS = 500
"""What a document's objects take besides its characters, in as many of them."""
BY_ID = attrgetter("id")


class Sorter:
    """Takes documents in any order, and gives them in the order of their ids, character by character."""

    def __init__(self, scratch: Path, characters: int = CHARACTERS_AT_ONCE) -> None:
        """``scratch`` is an existing folder, for as much as is added."""
        self._scratch = scratch
        self._limit = characters
        self._runs: list[Path] = []
        self._held: list[Document] = []
        self._size = 0

    def add(self, document: Document) -> None:
        """Take a document; raises OSError when the disk is full."""
        self._held.append(document)
        fields = sum(len(str(value)) for value in document.metadata.values())
        self._size += len(document.text) + len(document.id) + fields + OBJECTS
        if self._size >= self._limit:
            run = self._scratch / f"run-{len(self._runs):05d}.parquet"
            write_documents(run, sorted(self._held, key=BY_ID))
            self._runs.append(run)
            self._held = []
            self._size = 0

    def documents(self) -> Iterator[Document]:
        """All documents; of each run on the disk, some are in memory."""
        return heapq.merge(*map(read_documents, self._runs), sorted(self._held, key=BY_ID), key=BY_ID)
