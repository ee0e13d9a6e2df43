"""Deduplication of documents and of their paragraphs, each removal with the text that it repeats.

Used by the stage deduplicate. Of texts that are duplicates of each other, directly or through others, the first by id
is kept; of paragraphs, the first of the first document. In which order sources deliver changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_core.corpus.document import Document
from plm_core.corpus.near import Duplicates, find_duplicates
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.removal import Removal
from plm_core.sections.deduplicate import DeduplicateConfig


@dataclass(frozen=True)
class Deduplicated:
    """A document behind the deduplication."""

    document: Document
    """With the paragraphs that it keeps; maybe none: then its text is empty."""
    group: str
    """The id of the first of its duplicates, itself included: one group is on one side of the split."""
    removals: list[Removal]
    """What was taken out of it: paragraphs, or the document as a whole."""


def deduplicate(
    read: Callable[[], Iterable[Document]], config: DeduplicateConfig, scratch: Path, memory: str
) -> Iterator[Deduplicated]:
    """Yield every document, in the order of ``read``, with what it keeps.

    Args:
        read: gives the documents sorted by id, the same ones every time that it is called.
        config: what is looked for.
        scratch: an existing folder for what does not fit in memory.
        memory: what the database of ``find_duplicates`` may take, such as ``1GB``.

    Raises:
        UserError: ``memory`` is too small for one step of the work.
        OSError: the disk is full.
    """
    documents = _Originals(None)
    if config.documents != "off":
        documents = _search((document.text for document in read()), config, scratch / "documents", memory)
    removed = documents.repeated if config.documents == "keep_one" else frozenset[int]()
    paragraphs = _Originals(None)
    if config.paragraphs == "keep_one":
        kept = (document for row, document in enumerate(read()) if row not in removed)
        texts = (text for document in kept for text in paragraphs_of(document.text))
        paragraphs = _search(texts, config, scratch / "paragraphs", memory)
    for row, document in enumerate(read()):
        repeat = documents.look_up(document.id)
        group = repeat.name if repeat else document.id
        if repeat and row in removed:
            removal = Removal(document.id, None, document.source, repeat.rule, repeat.value, document.text)
            yield Deduplicated(replace(document, text=""), group, [removal])
        else:
            yield _without_repeated(document, group, paragraphs)


class _Repeat(NamedTuple):
    name: str
    """Of the text that is repeated."""
    rule: str
    value: str


class _Originals:
    """Goes through texts in the order in which they were searched, and says of each what it repeats."""

    def __init__(self, found: Duplicates | None) -> None:
        """With None, no text repeats another."""
        self.repeated: frozenset[int] = frozenset()
        """The rows of texts that repeat one before."""
        self._found = found
        self._row = -1
        self._names: dict[int, str] = {}
        if found:
            rows = np.flatnonzero(found.original != np.arange(len(found.original)))
            self.repeated = frozenset(rows.tolist())
            self._needed = frozenset(found.original[rows].tolist())

    def look_up(self, name: str) -> _Repeat | None:
        """What the next text, which has this name, repeats."""
        self._row += 1
        if self._found is None:
            return None
        if self._row not in self.repeated:
            if self._row in self._needed:
                self._names[self._row] = name
            return None
        original = self._names[int(self._found.original[self._row])]
        if self._found.exact[self._row]:
            return _Repeat(original, "exact_duplicate", original)
        return _Repeat(original, "near_duplicate", f"{original} (similarity {self._found.similarity[self._row]:.2f})")


def _search(texts: Iterable[str], config: DeduplicateConfig, scratch: Path, memory: str) -> _Originals:
    scratch.mkdir()
    return _Originals(find_duplicates(texts, config.similarity, scratch, memory))


def _without_repeated(document: Document, group: str, paragraphs: _Originals) -> Deduplicated:
    kept, removals = [], []
    for position, text in enumerate(paragraphs_of(document.text)):
        if repeat := paragraphs.look_up(f"{document.id}#{position}"):
            removals.append(Removal(document.id, position, document.source, repeat.rule, repeat.value, text))
        else:
            kept.append(text)
    return Deduplicated(replace(document, text=BETWEEN.join(kept)), group, removals)
