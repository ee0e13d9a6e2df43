"""MinHash deduplication: exact and near duplicates among many texts, part by part in a ``Pool``, as clusters.

Broder 1997 (resemblance of shingle sets, min-wise hashing); Leskovec, Rajaraman and Ullman 2020, chapter 3 (bands). A
part's texts are indexed, with their keys and buckets in order; a range of keys or buckets is gathered from all indexes,
so that equal ones come together; and the candidate pairs are compared, by the Jaccard similarity of their shingles, not
of their signatures. A text takes about 30 bytes of memory, whatever its length.

Rows are numbered in the order given, so that the smallest is that of the smallest id. A pair (a, b) of rows among N
texts is the number a N + b. Shapes: N texts, of one part or of all, K values of a signature, b buckets of a text, E
entries of an index or a range, P pairs.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import rensa

from plm_core.config import UserError
from plm_core.configs.stage_configs import Similarity
from plm_core.corpus.normalize import duplicate_key
from plm_core.corpus.part_pool import Pool, results_of
from plm_core.corpus.shingles import batches, scrambled, words
from plm_core.shared.files import atomic_file

SEED = 1
"""The seed of the permutations; a constant, so that every run finds the same duplicates."""
NEIGHBOURS = 4
"""The number of preceding members, by row, that a member of a bucket is compared with, in addition to the first."""
ENTRIES_AT_ONCE = 1 << 18
"""The approximate number of entries of a range, about 50 MB of memory. It has more if there would be over
``MOST_RANGES`` ranges, or if very many texts are copies of one."""
PAIRS_AT_ONCE = 1 << 16
"""The approximate number of pairs of a range; a few seconds' work."""
SAMPLED = 1 << 8
"""The number of pairs sampled per range to choose the boundaries."""
MOST_RANGES = 1 << 12
"""The most ranges: each opens a file of every part, which would otherwise take longer than the work."""
LAST = (1 << 64) - 1

SHINGLES, ENDS = "shingles.u64", "ends.npy"
"""Files of an index: the shingles of its texts, concatenated, and where those of each text end."""
KEYS = ("keys-high.u64", "keys-low.u64", "keys-rows.u64")
"""Both halves of the key that exact duplicates share, and the row; sorted by the first half."""
BUCKETS = ("buckets.u64", "buckets-rows.u64")
"""The same for the buckets that texts fall into."""
COPIES = "copies.npy"
CANDIDATES = "pairs.u64"
"""The file of a range of buckets: each member with its bucket's first, and with a few members before it."""
PAIRS, SIMILARITIES = "pairs.npy", "similarities.npy"


@dataclass(frozen=True)
class Duplicates:
    """The duplicates among N texts."""

    original: np.ndarray
    """``[N]`` int64: the smallest row among a text's duplicates; its own row if it is that one or has no duplicates."""
    similarity: np.ndarray
    """``[N]`` float64: its Jaccard similarity to that text; 1.0 for exact duplicates and for originals.

    It may be below the threshold if a chain of near-duplicates leads from one to the other.
    """
    exact: np.ndarray
    """``[N]`` bool: whether it differs from its original only in case and whitespace."""


def find_duplicates(indexes: Path, similarity: Similarity, pool: Pool) -> Duplicates:
    """Group texts that are exact or near duplicates of each other, directly or through others.

    ``indexes`` is a folder whose subfolders, by name, were written by ``write_index`` for each part. The pool's folder
    takes about as much disk space again.

    Raises:
        UserError: there are 2^31 texts or more, which scipy's graphs cannot number.
        OSError: the disk is full.
    """
    index = open_indexes(indexes)
    N = len(index)
    name = indexes.name
    if N >> 31:
        name = f"deduplicate.{name}"
        raise UserError(f"{name}: {N:,} of them to compare; expected fewer than {1 << 31:,}: set {name}: off")

    firsts = np.arange(N)
    for result in pool.map(f"{name}-copies", find_copies, [(indexes, *limits) for limits in _ranges(N)]):
        rows, first = np.load(result / COPIES)
        firsts[rows] = first
    copies = pool.folder / f"{name}-copies.u64"
    with atomic_file(copies) as file:
        write_numbers(file, np.flatnonzero(firsts != np.arange(N)))
    entries = sum((part / BUCKETS[0]).stat().st_size // 8 for part in index.parts)
    work = [(indexes, copies, *limits) for limits in _ranges(entries)]
    candidates = pool.map(f"{name}-candidates", find_candidates, work)

    def compared(files: list[Path], threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """The pairs ``[P, 2]`` in files that are similar enough, in order, and how similar."""
        work = [(indexes, files, *limits, threshold) for limits in _pair_ranges(files)]
        results = pool.map(f"{name}-{files[0].stem}", compare, work) if files else []
        pairs = [np.zeros((0, 2), dtype=np.int64), *(np.load(result / PAIRS) for result in results)]
        values = [np.zeros(0), *(np.load(result / SIMILARITIES) for result in results)]
        return np.concatenate(pairs), np.concatenate(values)

    edges, _ = compared([result / CANDIDATES for result in candidates], similarity.threshold)
    cluster = _components(N, edges)
    _, smallest = np.unique(cluster, return_index=True)
    original = smallest[cluster][firsts]
    exact = firsts == original

    near = np.flatnonzero(~exact)
    originals = pool.folder / f"{name}-originals.u64"
    with atomic_file(originals) as file:
        write_pairs(file, original[near], near, N)
    similarities = np.ones(N)
    pairs, values = compared([originals], 0.0)
    similarities[pairs[:, 1]] = values
    return Duplicates(original, similarities, exact)


def write_index(texts: Iterable[str], similarity: Similarity, folder: Path) -> None:
    """Write what the search needs of the texts of a part into an existing folder."""
    ends = [np.zeros(0, dtype=np.int64)]
    keys = [np.zeros((0, 2), dtype="<u8")]
    buckets = [np.zeros((0, similarity.bands), dtype="<u8")]
    last = 0
    with (folder / SHINGLES).open("wb") as shingles:
        for group in batches(texts, str):
            hashed = words(group).shingles(similarity.shingle)
            shingles.write(hashed.hashes.tobytes())
            keys.append(np.frombuffer(b"".join(map(_key, group)), dtype="<u8").reshape(-1, 2))
            buckets.append(_buckets(hashed.hashes, hashed.ends, similarity))
            ends.append(hashed.ends + last)
            last += len(hashed.hashes)
    np.save(folder / ENDS, np.concatenate(ends))
    high, low = np.concatenate(keys).T
    rows = np.arange(len(high), dtype="<u8")
    every = np.concatenate(buckets)
    filled = every != 0
    by_bucket = (every[filled], np.repeat(rows, filled.sum(axis=1)))
    for names, columns in ((KEYS, (high, low, rows)), (BUCKETS, by_bucket)):
        order = np.argsort(columns[0], kind="stable")
        for name, column in zip(names, columns, strict=True):
            write_numbers(folder / name, column[order])


def _ranges(entries: int) -> list[tuple[int, int]]:
    """The least and the greatest hash of each of the ranges into which this many entries are divided."""
    count = min(MOST_RANGES, entries // ENTRIES_AT_ONCE + 1)
    bounds = [(number << 64) // count for number in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _gathered(indexes: Path, names: Sequence[str], low: int, high: int) -> list[np.ndarray]:
    """The columns ``[E]`` of all indexes for a range of the first column; the last one holds rows among all texts."""
    index = open_indexes(indexes)
    gathered: list[list[np.ndarray]] = [[np.zeros(0, dtype="<u8")] for _ in names]
    for part, begin in zip(index.parts, index.begins, strict=False):
        columns = [map_uint64(part / name) for name in names]
        start = columns[0].searchsorted(np.uint64(low))
        stop = columns[0].searchsorted(np.uint64(high), side="right")
        for some, column in zip(gathered, columns, strict=True):
            some.append(column[start:stop])
        gathered[-1][-1] = gathered[-1][-1] + np.uint64(begin)
    return [np.concatenate(some) for some in gathered]


def find_copies(work: tuple[Path, int, int], folder: Path) -> None:
    """Write the rows of texts whose key, in a range of keys, occurs in an earlier row, and the first such row."""
    high, low, rows = _gathered(work[0], KEYS, *work[1:])
    order = np.lexsort((rows, low, high))
    high, low, rows = high[order], low[order], rows[order]
    begins = _begins(high, low)
    copies = begins != np.arange(len(rows))
    np.save(folder / COPIES, np.stack((rows, rows[begins]))[:, copies])


def find_candidates(work: tuple[Path, Path, int, int], folder: Path) -> None:
    """Write the pairs to be compared: texts that share a bucket in a range, except copies, which share all buckets."""
    indexes, copies, *bounds = work
    buckets, rows = _gathered(indexes, BUCKETS, *bounds)
    again = map_uint64(copies)
    left = again.searchsorted(rows) == again.searchsorted(rows, side="right")
    order = np.lexsort((rows[left], buckets[left]))
    buckets, rows = buckets[left][order], rows[left][order]
    begins = _begins(buckets)
    N = len(open_indexes(indexes))
    later = begins != np.arange(len(rows))
    near = [np.flatnonzero(begins[k:] == begins[:-k]) for k in range(1, NEIGHBOURS + 1)]
    before = np.concatenate([begins[later], *near])
    after = np.concatenate([np.flatnonzero(later), *(some + k for k, some in enumerate(near, start=1))])
    write_pairs(folder / CANDIDATES, rows[before], rows[after], N)


def _begins(*columns: np.ndarray) -> np.ndarray:
    """For each entry, where its run of equal entries begins, ``[E]``; the columns are sorted."""
    begins = np.arange(len(columns[0]))
    same = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    begins[1:][same] = 0
    return np.maximum.accumulate(begins)


def _key(text: str) -> bytes:
    """The key that exact duplicates share, 16 bytes."""
    return hashlib.sha256(duplicate_key(text).encode("utf-8", "surrogatepass")).digest()[:16]


def _buckets(hashes: np.ndarray, ends: np.ndarray, similarity: Similarity) -> np.ndarray:
    """The buckets ``[N, b]`` uint64 that texts fall into: a hash of r values of the signature and the band's number.

    Texts without a shingle have meaningless signatures and are not paired: their rows are 0.
    """
    K = similarity.bands * similarity.rows
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), ends)).astype(np.uint64)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, K, SEED)
    signatures = np.array(matrix.to_rows(), dtype=np.uint64).reshape(-1, similarity.bands, similarity.rows)
    buckets = np.zeros(signatures.shape[:2], dtype=np.uint64) + np.arange(1, similarity.bands + 1, dtype=np.uint64)
    for value in range(similarity.rows):
        buckets = scrambled(buckets ^ signatures[:, :, value]) + np.uint64(1)
    buckets[np.diff(ends, prepend=0) == 0] = 0
    return buckets


def _components(N: int, edges: np.ndarray) -> np.ndarray:
    """The number of the connected component of each row, ``[N]``."""
    # Imported here, because the check of all parameters, which needs none of it, would take 0.1 s longer.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges), dtype=bool), (edges[:, 0], edges[:, 1])), shape=(N, N))
    return connected_components(graph, directed=False)[1]


def _pair_ranges(files: Sequence[Path]) -> list[tuple[int, int]]:
    """The first and the last pair of each of the ranges into which the pairs of the files are divided."""
    step = max(1, PAIRS_AT_ONCE // SAMPLED)
    some = np.sort(np.concatenate([np.zeros(0, dtype="<u8"), *(map_uint64(file)[::step] for file in files)]))
    size = max(PAIRS_AT_ONCE // step, len(some) // MOST_RANGES + 1)
    cuts = np.unique(some[size::size]).tolist()
    return list(zip([0, *cuts], [*(cut - 1 for cut in cuts), LAST], strict=True))


def compare(work: tuple[Path, list[Path], int, int, float], folder: Path) -> None:
    """Write those of the files' pairs in a range that are at least as similar (Jaccard) as a threshold, in order."""
    indexes, files, low, high, threshold = work
    index = open_indexes(indexes)
    some = [np.zeros(0, dtype="<u8")]
    for file in files:
        pairs = map_uint64(file)
        start = pairs.searchsorted(np.uint64(low))
        some.append(pairs[start : pairs.searchsorted(np.uint64(high), side="right")])
    both = np.divmod(np.unique(np.concatenate(some)), np.uint64(max(1, len(index))))
    pairs = np.stack(both, axis=1).astype(np.int64)
    values = np.zeros(len(pairs))
    first = -1
    left = np.empty(0, dtype=np.uint64)
    for i, (a, b) in enumerate(pairs.tolist()):
        if a != first:
            first = a
            left = index.set_of(a)
        right = index.set_of(b)
        united = np.sort(np.concatenate((left, right)), kind="stable")
        shared = int(np.count_nonzero(united[1:] == united[:-1]))
        values[i] = shared / max(1, len(left) + len(right) - shared)
    near = values >= threshold
    np.save(folder / PAIRS, pairs[near])
    np.save(folder / SIMILARITIES, values[near])


class SignatureIndex:
    """The shingles of all texts, mapped from the files that ``write_index`` wrote for each part."""

    def __init__(self, indexes: Path) -> None:
        self.parts = results_of(indexes)
        self._ends = [np.load(part / ENDS, mmap_mode="r") for part in self.parts]
        self.begins = np.cumsum([0, *map(len, self._ends)])
        """The first row of each part, then N."""
        self._hashes: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self.begins[-1])

    def divided(self, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """For each part, its first row, and those of the given sorted rows that it contains."""
        begins: list[int] = self.begins[:-1].tolist()
        return list(zip(begins, np.split(rows, rows.searchsorted(begins[1:])), strict=True))

    def set_of(self, row: int) -> np.ndarray:
        """The distinct shingles of a text, sorted."""
        number = int(self.begins.searchsorted(row, side="right")) - 1
        if number not in self._hashes:
            self._hashes[number] = map_uint64(self.parts[number] / SHINGLES)
        ends = self._ends[number]
        place = row - int(self.begins[number])
        return np.unique(self._hashes[number][ends[place - 1] if place else 0 : ends[place]])


@functools.lru_cache(maxsize=1)
def open_indexes(indexes: Path) -> SignatureIndex:
    """Open the indexes in the subfolders of a folder."""
    return SignatureIndex(indexes)


def map_uint64(file: Path) -> np.ndarray:
    """Map a file of uint64 into memory; an empty file cannot be mapped."""
    empty = not file.stat().st_size
    # As a plain array, still mapped: a slice of a memmap takes five times as long.
    return np.empty(0, dtype="<u8") if empty else np.asarray(np.memmap(file, dtype="<u8", mode="r"))


def write_numbers(file: Path, numbers: np.ndarray) -> None:
    """Write integers for ``map_uint64``; numpy's ``tofile`` may not notice that the disk is full."""
    file.write_bytes(numbers.astype("<u8").tobytes())


def write_pairs(file: Path, a: np.ndarray, b: np.ndarray, N: int) -> None:
    """Write pairs of rows ``[P]`` among N texts, each once, in order."""
    write_numbers(file, np.unique(a.astype("<u8") * np.uint64(N) + b.astype("<u8")))
