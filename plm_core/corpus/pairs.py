"""The similarity of many pairs of texts: shingles in files, pairs compared in a pool. Used by ``near``.

Broder 1997: the Jaccard similarity of two texts' sets of shingles, exactly, not from signatures. A pair (a, b) of rows
among N texts is the number a N + b, so that sorted pairs have those of the same a together.

Shapes: N texts, P pairs.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plm_core.corpus.pool import Pool, results_of
from plm_core.files import atomic_file

SHINGLES, ENDS = "shingles.u64", "ends.npy"
"""The files of a part's texts: their hashes, concatenated, and where those of each text end."""
PAIRS, SIMILARITIES = "pairs.npy", "similarities.npy"
ORIGINALS = "originals.u64"
PAIRS_AT_ONCE = 1 << 16
"""The approximate number of pairs per work item; a few seconds' work."""
SAMPLED = 1 << 8
"""The number of pairs sampled per work item to choose the boundaries."""
MOST_RANGES = 1 << 12
"""The most work items: each opens a file of every part, which would otherwise take longer than the work."""
LAST = (1 << 64) - 1


class Shingles:
    """The shingles of all texts, mapped from the files of their indexes."""

    def __init__(self, indexes: Path) -> None:
        self.parts = results_of(indexes)
        """The folders of the indexes."""
        self._ends = [np.load(part / ENDS, mmap_mode="r") for part in self.parts]
        self.begins = np.cumsum([0, *map(len, self._ends)])
        """The first row of each part, then N."""
        self._hashes: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        """N."""
        return int(self.begins[-1])

    def divided(self, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """For each part, its first row, and those of the given sorted rows that it contains."""
        begins: list[int] = self.begins[:-1].tolist()
        return list(zip(begins, np.split(rows, rows.searchsorted(begins[1:])), strict=True))

    def set_of(self, row: int) -> np.ndarray:
        """The distinct shingles of a text, sorted."""
        number = int(self.begins.searchsorted(row, side="right")) - 1
        if number not in self._hashes:
            self._hashes[number] = mapped(self.parts[number] / SHINGLES)
        ends = self._ends[number]
        place = row - int(self.begins[number])
        return np.unique(self._hashes[number][ends[place - 1] if place else 0 : ends[place]])


@functools.lru_cache(maxsize=1)
def opened(indexes: Path) -> Shingles:
    """Open the shingles of indexes that have been written."""
    return Shingles(indexes)


def mapped(file: Path) -> np.ndarray:
    """Map a file of uint64 into memory; an empty file cannot be mapped."""
    empty = not file.stat().st_size
    # As a plain array, still mapped: a slice of a memmap takes five times as long.
    return np.empty(0, dtype="<u8") if empty else np.asarray(np.memmap(file, dtype="<u8", mode="r"))


def write_numbers(file: Path, numbers: np.ndarray) -> None:
    """Write integers for ``mapped`` to read; OSError if the disk is full, which numpy's ``tofile`` may not notice."""
    file.write_bytes(numbers.astype("<u8").tobytes())


def write_pairs(file: Path, a: np.ndarray, b: np.ndarray, texts: Shingles) -> None:
    """Write pairs of rows ``[P]``, each once, in order."""
    write_numbers(file, np.unique(a.astype("<u8") * np.uint64(len(texts)) + b.astype("<u8")))


@dataclass(frozen=True)
class Comparison:
    """Some of the pairs that a job has found."""

    indexes: Path
    job: Path
    name: str
    """The file of pairs in each result of the job."""
    low: int
    high: int
    """The first and the last pair, as a number."""
    threshold: float
    """The lowest similarity that is kept."""
    groups: Path | None
    """A file with the group number of each text: pairs within a group are left out. None: no pair is."""


class Pairs:
    """Compares pairs of texts."""

    def __init__(self, indexes: Path, pool: Pool) -> None:
        self._indexes = indexes
        self._pool = pool

    def near(self, job: str, name: str, threshold: float, groups: np.ndarray | None = None) -> np.ndarray:
        """The pairs ``[P, 2]`` in the files ``name`` of a job's results that are similar enough and not in one group
        ``[N]``."""
        file = None
        if groups is not None:
            file = self._pool.folder / f"{job}-groups.npy"
            with atomic_file(file) as temporary, temporary.open("wb") as written:
                np.save(written, groups)
        return self._compared(self._pool.folder / job, name, threshold, file)[0]

    def compared(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """These pairs ``[P, 2]`` in order, and the Jaccard similarity of each, ``[P]``."""
        job = self._pool.folder / f"{self._indexes.name}-pairs"
        (job / "000000").mkdir(parents=True, exist_ok=True)
        with atomic_file(job / "000000" / ORIGINALS) as file:
            write_pairs(file, a, b, opened(self._indexes))
        return self._compared(job, ORIGINALS, 0.0, None)

    def _compared(self, job: Path, name: str, threshold: float, groups: Path | None) -> tuple[np.ndarray, np.ndarray]:
        ranges = _ranges([result / name for result in results_of(job)])
        work = [Comparison(self._indexes, job, name, *each, threshold, groups) for each in ranges]
        results = self._pool.map(f"{self._indexes.name}-{Path(name).stem}", compare, work)
        pairs = [np.zeros((0, 2), dtype=np.int64), *(np.load(result / PAIRS) for result in results)]
        values = [np.zeros(0), *(np.load(result / SIMILARITIES) for result in results)]
        return np.concatenate(pairs), np.concatenate(values)


def _ranges(files: Sequence[Path]) -> list[tuple[int, int]]:
    """The first and the last pair of each of the ranges into which the pairs of the files are divided."""
    step = max(1, PAIRS_AT_ONCE // SAMPLED)
    some = np.sort(np.concatenate([np.zeros(0, dtype="<u8"), *(mapped(file)[::step] for file in files)]))
    each = max(PAIRS_AT_ONCE // step, len(some) // MOST_RANGES + 1)
    cuts = np.unique(some[each::each]).tolist()
    return list(zip([0, *cuts], [*(cut - 1 for cut in cuts), LAST], strict=True))


def compare(work: Comparison, folder: Path) -> None:
    """Write the pairs of a range that are similar enough, in order, with their similarity."""
    texts = opened(work.indexes)
    found = [np.zeros(0, dtype="<u8")]
    for result in results_of(work.job):
        pairs = mapped(result / work.name)
        start = pairs.searchsorted(np.uint64(work.low))
        found.append(pairs[start : pairs.searchsorted(np.uint64(work.high), side="right")])
    pairs = np.stack(np.divmod(np.unique(np.concatenate(found)), np.uint64(max(1, len(texts)))), axis=1).astype(
        np.int64
    )
    if work.groups is not None:
        groups = np.load(work.groups, mmap_mode="r")
        pairs = pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]]
    values = np.zeros(len(pairs))
    first = -1
    one = np.empty(0, dtype=np.uint64)
    for i, (a, b) in enumerate(pairs.tolist()):
        if a != first:
            first = a
            one = texts.set_of(a)
        other = texts.set_of(b)
        both = np.sort(np.concatenate((one, other)), kind="stable")
        shared = int(np.count_nonzero(both[1:] == both[:-1]))
        values[i] = shared / max(1, len(one) + len(other) - shared)
    near = values >= work.threshold
    np.save(folder / PAIRS, pairs[near])
    np.save(folder / SIMILARITIES, values[near])
