"""How similar two texts are, for many pairs of them: shingles in files, pairs compared in a pool. Used by ``near``.

Broder 1997: the Jaccard similarity of two texts' sets of shingles, exactly, not from signatures.

Shapes: N texts, P pairs.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from plm_core.corpus.pool import Pool, results_of
from plm_core.files import scratch_folder

SHINGLES, ENDS = "shingles.u64", "ends.npy"
"""What is known of the texts of a part: the hashes one text behind the other, and where those of each text end."""
SIMILARITIES = "similarities.npy"
PAIRS_AT_ONCE = 1 << 16
"""How many pairs are compared in one go; some seconds' work."""


class Shingles:
    """The shingles of all texts, mapped from the files of their indexes."""

    def __init__(self, indexes: Path) -> None:
        self._parts = results_of(indexes)
        self._ends = [np.load(part / ENDS, mmap_mode="r") for part in self._parts]
        self._begins = np.cumsum([0, *map(len, self._ends)])
        self._hashes: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        """N."""
        return int(self._begins[-1])

    def set_of(self, row: int) -> np.ndarray:
        """The different shingles of a text, sorted."""
        number = int(self._begins.searchsorted(row, side="right")) - 1
        if number not in self._hashes:
            self._hashes[number] = mapped(self._parts[number] / SHINGLES)
        ends = self._ends[number]
        place = row - int(self._begins[number])
        return np.unique(self._hashes[number][ends[place - 1] if place else 0 : ends[place]])


def mapped(file: Path) -> np.ndarray:
    """A file of uint64, not read until it is asked for; one without bytes cannot be mapped."""
    empty = not file.stat().st_size
    # As a plain array, still mapped: a slice of a memmap takes five times as long.
    return np.empty(0, dtype="<u8") if empty else np.asarray(np.memmap(file, dtype="<u8", mode="r"))


class Pairs:
    """Compares pairs of texts, given as their rows."""

    def __init__(self, indexes: Path, pool: Pool) -> None:
        self._indexes = indexes
        self._pool = pool

    def near(self, name: str, candidates: Iterable[np.ndarray], threshold: float) -> np.ndarray:
        """Those pairs ``[P, 2]`` whose Jaccard similarity is at least the threshold."""
        kept = [np.zeros((0, 2), dtype=np.int64)]
        for pairs, values in self.compared(name, candidates):
            kept.append(pairs[values >= threshold])
        return np.concatenate(kept)

    def compared(self, name: str, candidates: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs ``[P, 2]``, some at a time, and the Jaccard similarity of each, ``[P]``."""
        job = f"{self._indexes.name}-{name}"
        files: list[Path] = []
        with scratch_folder(self._pool.folder / f"{job}-pairs") as folder:
            for pairs in _regrouped(candidates):
                files.append(folder / f"{len(files):06d}.npy")
                np.save(files[-1], pairs)
            results = self._pool.map(job, compare, [(file, self._indexes) for file in files])
            for file, result in zip(files, results, strict=True):
                yield np.load(file), np.load(result / SIMILARITIES)


def _regrouped(arrays: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The same rows, ``PAIRS_AT_ONCE`` at a time."""
    held: list[np.ndarray] = []
    for array in arrays:
        held.append(array)
        while sum(map(len, held)) >= PAIRS_AT_ONCE:
            whole = np.concatenate(held)
            yield whole[:PAIRS_AT_ONCE]
            held = [whole[PAIRS_AT_ONCE:]]
    if sum(map(len, held)):
        yield np.concatenate(held)


def compare(work: tuple[Path, Path], folder: Path) -> None:
    """Write the Jaccard similarity of each pair of a file; pairs with one first come together there."""
    file, indexes = work
    shingles = _opened(indexes)
    pairs = np.load(file)
    values = np.zeros(len(pairs))
    first = -1
    one = np.empty(0, dtype=np.uint64)
    for i, (a, b) in enumerate(pairs.tolist()):
        if a != first:
            first = a
            one = shingles.set_of(a)
        other = shingles.set_of(b)
        both = np.sort(np.concatenate((one, other)), kind="stable")
        shared = int(np.count_nonzero(both[1:] == both[:-1]))
        values[i] = shared / max(1, len(one) + len(other) - shared)
    np.save(folder / SIMILARITIES, values)


@functools.lru_cache(maxsize=1)
def _opened(indexes: Path) -> Shingles:
    return Shingles(indexes)
