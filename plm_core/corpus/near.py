"""Exact and near duplicates among many texts, part by part: MinHash, bands, verification, connected components.

Used by ``deduplicate``. Broder 1997 (resemblance of shingle sets, min-wise hashing); Leskovec, Rajaraman and Ullman
2020, chapter 3 (bands). Signatures are computed by rensa. A ``Pool`` does all but the last step: a part's texts are
indexed, with their keys and buckets in order; a range of keys or buckets is gathered from all indexes, so that equal
ones come together; and pairs are compared. A text takes about 30 bytes of memory, whatever its length.

Rows are numbered in the order given: when texts come sorted by id, the smallest row is the smallest id, and the result
does not depend on the order in which they arrived.

Shapes: N texts, of one part or of all, K values of a signature, b buckets of a text, E entries of an index or a range.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import rensa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from plm_core.config import UserError
from plm_core.corpus.normalize import duplicate_key
from plm_core.corpus.pairs import ENDS, MOST_RANGES, SHINGLES, Pairs, mapped, opened, write_numbers, write_pairs
from plm_core.corpus.pool import Pool
from plm_core.corpus.shingles import batches, scrambled, words
from plm_core.files import atomic_file
from plm_core.sections.deduplicate import Similarity

SEED = 1
"""The seed of the permutations; a constant, so that every run finds the same duplicates."""
NEIGHBOURS = 4
"""The number of preceding members, by row, that a member of a bucket is compared with, in addition to the first."""
ENTRIES_AT_ONCE = 1 << 18
"""The approximate number of entries of a range, about 50 MB of memory. It has more if there would be over
``MOST_RANGES`` ranges, or if very many texts are copies of one."""
KEYS = ("keys-high.u64", "keys-low.u64", "keys-rows.u64")
"""Files of an index: both halves of the key that exact duplicates share, and the row; sorted by the first half."""
BUCKETS = ("buckets.u64", "buckets-rows.u64")
"""The same for the buckets that texts fall into."""
COPIES = "copies.npy"
FIRST, NEIGHBOURING = "first.u64", "neighbouring.u64"
"""Files of a range of buckets: the pairs of a member and its bucket's first, and of a member and some before it."""


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


def write_index(texts: Iterable[str], similarity: Similarity, folder: Path) -> None:
    """Write what the search needs of the texts of a part into an existing folder."""
    ends = [np.zeros(0, dtype=np.int64)]
    keys = [np.zeros((0, 2), dtype="<u8")]
    bands = [np.zeros((0, similarity.bands), dtype="<u8")]
    last = 0
    with (folder / SHINGLES).open("wb") as shingles:
        for group in batches(texts, str):
            found = words(group).shingles(similarity.shingle)
            shingles.write(found.hashes.tobytes())
            keys.append(np.frombuffer(b"".join(map(_key, group)), dtype="<u8").reshape(-1, 2))
            bands.append(_bands(found.hashes, found.ends, similarity))
            ends.append(found.ends + last)
            last += len(found.hashes)
    np.save(folder / ENDS, np.concatenate(ends))
    high, low = np.concatenate(keys).T
    buckets = np.concatenate(bands)
    rows = np.arange(len(high), dtype="<u8")
    _write_sorted(folder, KEYS, (high, low, rows))
    filled = buckets != 0
    _write_sorted(folder, BUCKETS, (buckets[filled], np.repeat(rows, filled.sum(axis=1))))


def find_duplicates(indexes: Path, similarity: Similarity, pool: Pool) -> Duplicates:
    """Group texts that are exact or near duplicates of each other, directly or through others.

    Args:
        indexes: a folder whose subfolders, by name, were written by ``write_index`` for each part.
        similarity: how candidates were found, and the threshold for their exact comparison.
        pool: runs the work; its folder takes about as much disk space as the indexes, in addition to them.

    Raises:
        UserError: there are 2^31 texts or more, which scipy's graphs cannot number.
        OSError: the disk is full.
    """
    texts = opened(indexes)
    N = len(texts)
    if N >> 31:
        name = f"deduplicate.{indexes.name}"
        raise UserError(f"{name}: {N:,} of them to compare; expected fewer than {1 << 31:,}: set {name}: off")
    firsts = np.arange(N)
    ranges = _ranges(N)
    for result in pool.map(f"{indexes.name}-copies", find_copies, [(indexes, *each) for each in ranges]):
        rows, first = np.load(result / COPIES)
        firsts[rows] = first
    copies = pool.folder / f"{indexes.name}-copies.u64"
    with atomic_file(copies) as file:
        write_numbers(file, np.flatnonzero(firsts != np.arange(N)))
    ranges = _ranges(sum((part / BUCKETS[0]).stat().st_size // 8 for part in texts.parts))
    work = [(indexes, copies, *each) for each in ranges]
    pool.map(f"{indexes.name}-candidates", find_candidates, work)
    pairs = Pairs(indexes, pool)
    # Two rounds: most members are near the first of their bucket, and need no other comparison.
    edges = pairs.near(f"{indexes.name}-candidates", FIRST, similarity.threshold)
    more = pairs.near(f"{indexes.name}-candidates", NEIGHBOURING, similarity.threshold, _components(N, edges))
    groups = _components(N, np.concatenate((edges, more)))
    _, smallest = np.unique(groups, return_index=True)
    original = smallest[groups][firsts]
    exact = firsts == original
    return Duplicates(original, _similarities(original, exact, pairs), exact)


def _write_sorted(folder: Path, names: Sequence[str], columns: Sequence[np.ndarray]) -> None:
    """Write columns ``[E]`` as files, in the order of the first."""
    order = np.argsort(columns[0], kind="stable")
    for name, column in zip(names, columns, strict=True):
        write_numbers(folder / name, column[order])


def _ranges(entries: int) -> list[tuple[int, int]]:
    """The least and the greatest hash of each of the ranges into which this many entries are divided."""
    count = min(MOST_RANGES, entries // ENTRIES_AT_ONCE + 1)
    bounds = [(number << 64) // count for number in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _gathered(indexes: Path, names: Sequence[str], low: int, high: int) -> list[np.ndarray]:
    """The columns ``[E]`` of a range of their first from all indexes; the last of them are rows among all texts."""
    texts = opened(indexes)
    found: list[list[np.ndarray]] = [[np.zeros(0, dtype="<u8")] for _ in names]
    for part, begin in zip(texts.parts, texts.begins, strict=False):
        columns = [mapped(part / name) for name in names]
        start = columns[0].searchsorted(np.uint64(low))
        stop = columns[0].searchsorted(np.uint64(high), side="right")
        for some, column in zip(found, columns, strict=True):
            some.append(column[start:stop])
        found[-1][-1] = found[-1][-1] + np.uint64(begin)
    return [np.concatenate(some) for some in found]


def find_copies(work: tuple[Path, int, int], folder: Path) -> None:
    """Write the rows of texts whose key, in a range of keys, occurs in an earlier row, and the first such row."""
    high, low, rows = _gathered(work[0], KEYS, *work[1:])
    order = np.lexsort((rows, low, high))
    high, low, rows = high[order], low[order], rows[order]
    begins = _begins(high, low)
    copies = begins != np.arange(len(rows))
    np.save(folder / COPIES, np.stack((rows, rows[begins]))[:, copies])


def find_candidates(work: tuple[Path, Path, int, int], folder: Path) -> None:
    """Write the pairs to be compared, of texts that share a bucket of a range.

    Exact copies are left out, because they would be in all buckets of their first.
    """
    indexes, copies, *bounds = work
    buckets, rows = _gathered(indexes, BUCKETS, *bounds)
    again = mapped(copies)
    left = again.searchsorted(rows) == again.searchsorted(rows, side="right")
    order = np.lexsort((rows[left], buckets[left]))
    buckets, rows = buckets[left][order], rows[left][order]
    begins = _begins(buckets)
    texts = opened(indexes)
    later = begins != np.arange(len(rows))
    write_pairs(folder / FIRST, rows[begins[later]], rows[later], texts)
    near = [np.flatnonzero(begins[k:] == begins[:-k]) for k in range(1, NEIGHBOURS + 1)]
    before = np.concatenate(near)
    after = np.concatenate([some + k for k, some in enumerate(near, start=1)])
    write_pairs(folder / NEIGHBOURING, rows[before], rows[after], texts)


def _begins(*columns: np.ndarray) -> np.ndarray:
    """The beginning of the run of equal entries that each entry is in, ``[E]``; the columns are in order."""
    begins = np.arange(len(columns[0]))
    same = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    begins[1:][same] = 0
    return np.maximum.accumulate(begins)


def _key(text: str) -> bytes:
    """The key that exact duplicates share, 16 bytes."""
    return hashlib.sha256(duplicate_key(text).encode("utf-8", "surrogatepass")).digest()[:16]


def _bands(hashes: np.ndarray, ends: np.ndarray, similarity: Similarity) -> np.ndarray:
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
    graph = coo_array((np.ones(len(edges), dtype=bool), (edges[:, 0], edges[:, 1])), shape=(N, N))
    return connected_components(graph, directed=False)[1]


def _similarities(original: np.ndarray, exact: np.ndarray, pairs: Pairs) -> np.ndarray:
    """The similarity of each text to its original, ``[N]``."""
    similarity = np.ones(len(original))
    near = np.flatnonzero(~exact)
    found, values = pairs.compared(original[near], near)
    similarity[found[:, 1]] = values
    return similarity
