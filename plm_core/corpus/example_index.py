"""An index that finds n-grams of evaluation examples in documents. Used by ``decontaminate``.

An index consists of arrays only, so that processes can share it in memory.

Shapes: G n-grams of the examples, P parts of examples, E examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plm_core.corpus.shingles import Words, words


@dataclass(frozen=True)
class Found:
    """An evaluation example found in a document."""

    evaluation: str
    """The name of the evaluation set."""
    example: str
    """The example's name: the document and its paragraph, or the file's line and the field."""
    overlap: float
    """The share of the n-grams of the example, or of its best-matching part, that the document contains."""
    paragraphs: list[int]
    """The paragraphs of the document that they touch, in order."""


@dataclass(frozen=True)
class Index:
    """The n-grams of evaluation examples."""

    overlap: float
    """The share of the n-grams of a part of an example that a document must contain."""
    tables: dict[int, "Table"]
    """The n-grams for each n that occurs."""
    sizes: np.ndarray
    """``[P]``, the number of distinct n-grams of each part."""
    example: np.ndarray
    """``[P]``, the example that each part belongs to."""
    names: np.ndarray
    """The names of the examples, concatenated in UTF-8: the evaluation set, a zero, and the name in it."""
    ends: np.ndarray
    """``[E + 1]``, where in ``names`` each begins, and where the last one ends."""

    def find(self, documents: Sequence[Sequence[str]]) -> list[list[Found]]:
        """The examples found in each document, which is given as its paragraphs."""
        flat = words([paragraph for document in documents for paragraph in document])
        last = np.cumsum([len(document) for document in documents])
        edges = np.concatenate((np.zeros(1, dtype=np.int64), flat.ends))
        starts = edges[:-1]
        ends = edges[last]
        joined = Words(flat.hashes, ends)
        results: list[dict[int, Found]] = [{} for _ in documents]
        for n, table in self.tables.items():
            shingles = joined.shingles(n)
            shared, entry = table.matches(shingles.hashes)
            if not len(shared):
                continue
            place, part = shingles.places[shared], table.parts[entry]
            document = np.searchsorted(ends, place, side="right")
            order = np.lexsort((entry, part, document))
            document, part, entry, place = document[order], part[order], entry[order], place[order]
            bounds = np.flatnonzero(np.diff(document, prepend=-1) | np.diff(part, prepend=-1))
            # An n-gram that is repeated within the document counts once.
            new = np.concatenate(([True], np.diff(entry) != 0))
            new[bounds] = True
            counts = np.add.reduceat(new, bounds)
            for first, stop, number in zip(bounds, [*bounds[1:], len(part)], counts, strict=True):
                overlap = int(number) / int(self.sizes[part[first]])
                if overlap >= self.overlap:
                    row = int(document[first])
                    example = int(self.example[part[first]])
                    before = int(last[row - 1]) if row else 0
                    touched = _touched(place[first:stop], n, starts, before)
                    results[row][example] = self._joined(example, overlap, touched, results[row].get(example))
        return [list(found.values()) for found in results]

    def _joined(self, example: int, overlap: float, touched: set[int], other: Found | None) -> Found:
        """Combine the matches of several parts of one example."""
        if other:
            overlap = max(overlap, other.overlap)
            touched = touched | set(other.paragraphs)
        evaluation, name = self.names[slice(*self.ends[example : example + 2])].tobytes().decode().split("\0", 1)
        return Found(evaluation, name, overlap, sorted(touched))


def _touched(places: np.ndarray, n: int, starts: np.ndarray, before: int) -> set[int]:
    """The paragraphs touched by n-grams at ``places``, counted from the document's first, which ``before`` others
    precede.

    ``starts``: the word with which each paragraph begins.
    """
    spans = np.searchsorted(starts, np.concatenate((places, places + n - 1)), side="right") - 1
    return {p - before for low, high in set(map(tuple, spans.reshape(2, -1).T.tolist())) for p in range(low, high + 1)}


class Table:
    """The n-grams of examples, for one n."""

    def __init__(self, grams: np.ndarray, parts: np.ndarray) -> None:
        """``grams`` ``[G]`` uint64, and the part of an example that each belongs to."""
        order = np.argsort(grams, kind="stable")
        self.parts = parts[order]
        """``[G]``, in the order of entries."""
        self._grams = grams[order]
        # Almost no n-gram of a text is one of an example: their lowest bits rule most out, without a search.
        self._mask = np.uint64((1 << (4 * len(grams)).bit_length()) - 1)
        self._seen = np.zeros(int(self._mask) + 1, dtype=bool)
        self._seen[grams & self._mask] = True

    def matches(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the hashes are n-grams here, and their entries; several if examples share one."""
        maybe = np.flatnonzero(self._seen[hashes & self._mask])
        first = np.searchsorted(self._grams, hashes[maybe], side="left")
        count = np.searchsorted(self._grams, hashes[maybe], side="right") - first
        nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return np.repeat(maybe, count), nth + np.repeat(first, count)
