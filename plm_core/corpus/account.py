"""What was removed from a part of the corpus and what is left, recorded and counted.

Used by the stage deduplicate; the stage clean uses the same file names. Documents and paragraphs read are those kept
plus those removed, in total and for each source.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from plm_core.corpus.document import Document
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.removal import Removal, removal_writer
from plm_core.corpus.tables import RowWriter

KEPT, REMOVED, COUNTS = "kept.parquet", "removed.parquet", "counts.json"
"""The files with what is left of a part, what was removed from it, and the counts of both."""


class Account:
    """The account of one part; ``accounted`` opens it."""

    def __init__(self, removed: RowWriter[Removal]) -> None:
        self.removals = Counter[str]()
        """Removals by level and rule; then the same with the source as a prefix: ``news/removed_...``."""
        self.sizes = Counter[str]()
        """The documents, paragraphs and bytes (UTF-8) of a side; then the same by source."""
        self._removed = removed

    def take(self, removals: Iterable[Removal]) -> None:
        """Record removals."""
        for removal in removals:
            _count(self.removals, removal.source, f"removed_{removal.level}_{removal.rule}")
            if removal.paragraph is None:
                paragraphs = len(removal.text.split(BETWEEN))
                _count(self.removals, removal.source, "removed_paragraphs_with_documents", paragraphs)
            self._removed.write(removal)

    def kept(self, document: Document, removals: list[Removal]) -> bool:
        """Record its removals; return whether anything is left. A document that lost all its paragraphs is counted."""
        self.take(removals)
        if not document.text and all(removal.paragraph is not None for removal in removals):
            _count(self.removals, document.source, "removed_documents_emptied")
        return bool(document.text)

    def measured(self, documents: Iterable[Document], side: str) -> Iterator[Document]:
        """Yield the documents left on a side, adding up their sizes."""
        for document in documents:
            _count(self.sizes, document.source, f"{side}_documents")
            _count(self.sizes, document.source, f"{side}_paragraphs", len(paragraphs_of(document.text)))
            _count(self.sizes, document.source, f"{side}_bytes", len(document.text.encode()))
            yield document


@contextlib.contextmanager
def accounted(folder: Path) -> Iterator[Account]:
    """Yield an account, written into the folder when the block succeeds."""
    with removal_writer(folder / REMOVED) as removed:
        account = Account(removed)
        yield account
    (folder / COUNTS).write_text(json.dumps([account.removals, account.sizes]), encoding="utf-8")


def summed(folders: Iterable[Path]) -> tuple[Counter[str], Counter[str]]:
    """The removals and the sizes of several parts."""
    removals, sizes = Counter[str](), Counter[str]()
    for folder in folders:
        of_part, left = json.loads((folder / COUNTS).read_bytes())
        removals.update(of_part)
        sizes.update(left)
    return removals, sizes


def _count(counts: Counter[str], source: str, name: str, number: int = 1) -> None:
    counts[name] += number
    counts[f"{source}/{name}"] += number
