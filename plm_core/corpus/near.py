"""Exact and near duplicates among many texts, in bounded memory: MinHash, bands, verification, connected components.

Used by ``deduplicate``. Broder 1997 (resemblance of shingle sets, min-wise hashing); Leskovec, Rajaraman and Ullman
2020, chapter 3 (bands). Signatures are computed by rensa. What grows with the text lies in a scratch folder: shingles
in a file that is mapped, keys and bands in a DuckDB database, which keeps to ``memory`` and spills what is more. In
memory a text costs some 30 bytes, whatever its length.

Rows are numbered in the order given: when texts come sorted by id, the smallest row is the smallest id, and the result
does not depend on the order in which they arrived.

Shapes: N texts, K values of a signature, P pairs.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import rensa
from duckdb import DuckDBPyConnection
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from plm_core.config import UserError
from plm_core.corpus.normalize import duplicate_key
from plm_core.corpus.shingles import batches, scrambled, words
from plm_core.sections.deduplicate import Similarity

SEED = 1
"""Of the permutations; a constant, so that equal texts are found equal in every run."""
NEIGHBOURS = 4
"""With how many members before it, by row, a member of a bucket is compared, besides the first."""
PAIRS_AT_ONCE = 1 << 14
ROWS_AT_ONCE = 1 << 15
"""Texts whose keys and bands go into the database at once."""


@dataclass(frozen=True)
class Duplicates:
    """What was found among N texts."""

    original: np.ndarray
    """``[N]`` int64: the smallest row among a text's duplicates; its own row, if it is that or has none."""
    similarity: np.ndarray
    """``[N]`` float64: its Jaccard similarity to that text; 1.0 for exact duplicates and for originals.

    It may be below the threshold where a chain of near-duplicates leads from one to the other.
    """
    exact: np.ndarray
    """``[N]`` bool: whether it is the same text as its original but for case and white space."""


def find_duplicates(texts: Iterable[str], similarity: Similarity, scratch: Path, memory: str) -> Duplicates:
    """Group texts that are exact or near duplicates of each other, directly or through others.

    Args:
        similarity: the threshold, and how candidates are found; those are then compared exactly.
        scratch: an existing folder for what does not fit in memory, about three times the size of the texts.
        memory: what the database may take, such as ``1GB``.

    Raises:
        UserError: ``memory`` is too small for one step of the work.
        OSError: the disk is full.
    """
    with _database(scratch, memory) as database:
        shingles = _index(texts, similarity, scratch, database)
        N = len(shingles)
        firsts = _firsts(database, N)
        _collect_buckets(database, firsts)
        # Two rounds: most members are near the first of their bucket, and need be compared with no other.
        edges = _verified(_fetched(database, FIRST), shingles, similarity.threshold)
        groups = _components(N, edges)
        others = (pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]] for pairs in _fetched(database, NEIGHBOURING))
        more = _verified(others, shingles, similarity.threshold)
    groups = _components(N, np.concatenate((edges, more)))
    _, smallest = np.unique(groups, return_index=True)
    original = smallest[groups][firsts]
    exact = firsts == original
    return Duplicates(original, _similarities(original, exact, shingles), exact)


@contextlib.contextmanager
def _database(scratch: Path, memory: str) -> Iterator[DuckDBPyConnection]:
    """A new database in the folder ``scratch`` that spills there. One thread: a run takes the same way every time."""
    spilled = str(scratch / "spilled")
    try:
        with duckdb.connect(
            scratch / "scratch.duckdb", config={"memory_limit": memory, "threads": 1, "temp_directory": spilled}
        ) as database:
            yield database
    except duckdb.OutOfMemoryException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"PLM_MEMORY: {memory} is too little ({reason}); expected more") from error
    except duckdb.IOException as error:
        raise OSError(f"{scratch}: {' '.join(str(error).split())}") from error


class _ShingleFile:
    """The shingles of all texts, mapped from a file."""

    def __init__(self, path: Path, ends: np.ndarray) -> None:
        self._ends = ends
        self._hashes = np.memmap(path, dtype=np.uint64, mode="r") if len(ends) and ends[-1] else np.empty(0, np.uint64)

    def __len__(self) -> int:
        """N."""
        return len(self._ends)

    def set_of(self, row: int) -> np.ndarray:
        """The different shingles of a text, sorted."""
        return np.unique(self._hashes[self._ends[row - 1] if row else 0 : self._ends[row]])


def _index(texts: Iterable[str], similarity: Similarity, scratch: Path, database: DuckDBPyConnection) -> _ShingleFile:
    """Read all texts once: keys and bands go into the database, shingles into a file."""
    database.execute("CREATE TABLE keys (high UBIGINT, low UBIGINT, row BIGINT)")
    database.execute("CREATE TABLE bands (bucket UBIGINT, row BIGINT)")
    ends: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    keys: list[bytes] = []
    bands: list[np.ndarray] = []
    row, last = 0, 0
    with (scratch / "shingles.u64").open("wb") as file:
        for group in batches(texts, str):
            found = words(group).shingles(similarity.shingle)
            file.write(found.hashes.tobytes())
            ends.append(found.ends + last)
            last += len(found.hashes)
            keys += [_key(text) for text in group]
            bands.append(_bands(found.hashes, found.ends, similarity))
            if len(keys) >= ROWS_AT_ONCE:
                row = _insert(database, row, keys, bands)
        _insert(database, row, keys, bands)
    return _ShingleFile(scratch / "shingles.u64", np.concatenate(ends))


def _key(text: str) -> bytes:
    """What exact duplicates have in common, 16 bytes."""
    return hashlib.sha256(duplicate_key(text).encode("utf-8", "surrogatepass")).digest()[:16]


def _bands(hashes: np.ndarray, ends: np.ndarray, similarity: Similarity) -> np.ndarray:
    """The buckets ``[N, b]`` uint64 that texts fall into: a hash of r values of the signature and the band's number.

    Texts without a shingle, whose signatures say nothing, are alone: their rows are 0.
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


def _insert(database: DuckDBPyConnection, row: int, keys: list[bytes], bands: list[np.ndarray]) -> int:
    """Move what was collected into the database; returns the row that comes next."""
    if not keys:
        return row
    halves = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)
    rows = np.arange(row, row + len(halves))
    buckets = np.concatenate(bands)
    places = np.repeat(rows, buckets.shape[1])
    filled = buckets.reshape(-1) != 0
    new_keys = pa.table({"high": halves[:, 0], "low": halves[:, 1], "row": rows})
    new_bands = pa.table({"bucket": buckets.reshape(-1)[filled], "row": places[filled]})
    database.from_arrow(new_keys).insert_into("keys")
    database.from_arrow(new_bands).insert_into("bands")
    keys.clear()
    bands.clear()
    return row + len(halves)


def _firsts(database: DuckDBPyConnection, N: int) -> np.ndarray:
    """The smallest row with the same key as each text, ``[N]``."""
    firsts = np.arange(N)
    query = """
        SELECT row, first FROM keys JOIN
            (SELECT high, low, min(row) AS first FROM keys GROUP BY high, low HAVING count(*) > 1) USING (high, low)
    """
    for rows in _fetched(database, query):
        firsts[rows[:, 0]] = rows[:, 1]
    return firsts


def _collect_buckets(database: DuckDBPyConnection, firsts: np.ndarray) -> None:
    """Keep the buckets with several texts; exact copies are left out, which would be in all buckets of their first."""
    database.register("copies", pa.table({"row": np.flatnonzero(firsts != np.arange(len(firsts)))}))
    database.execute("""
        CREATE TABLE members AS SELECT bucket, row FROM bands ANTI JOIN copies USING (row) SEMI JOIN
            (SELECT bucket FROM bands ANTI JOIN copies USING (row) GROUP BY bucket HAVING count(*) > 1) USING (bucket)
    """)
    database.execute("DROP TABLE bands")


FIRST = """
    SELECT DISTINCT first, row FROM
        (SELECT row, min(row) OVER (PARTITION BY bucket) AS first FROM members)
    WHERE first < row ORDER BY first, row
"""
NEIGHBOURING = f"""
    SELECT DISTINCT other, row FROM
        (SELECT row, unnest([{", ".join(f"lag(row, {k}) OVER sorted" for k in range(1, NEIGHBOURS + 1))}]) AS other
         FROM members WINDOW sorted AS (PARTITION BY bucket ORDER BY row))
    WHERE other IS NOT NULL ORDER BY other, row
"""


def _fetched(database: DuckDBPyConnection, query: str) -> Iterator[np.ndarray]:
    """The rows of a query of whole numbers as arrays, some at a time."""
    result = database.execute(query)
    while rows := result.fetchmany(PAIRS_AT_ONCE):
        yield np.array(rows, dtype=np.int64)


def _verified(candidates: Iterable[np.ndarray], shingles: _ShingleFile, threshold: float) -> np.ndarray:
    """Those pairs ``[P, 2]`` whose Jaccard similarity is at least the threshold."""
    kept = [np.zeros((0, 2), dtype=np.int64)]
    for pairs in candidates:
        kept.append(pairs[_jaccard(pairs, shingles) >= threshold])
    return np.concatenate(kept)


def _jaccard(pairs: Sequence[Sequence[int]] | np.ndarray, shingles: _ShingleFile) -> np.ndarray:
    """The Jaccard similarity of each pair's sets of shingles, ``[P]``; pairs with one first come together."""
    values = np.zeros(len(pairs))
    first = -1
    one = np.empty(0, dtype=np.uint64)
    for i, (a, b) in enumerate(pairs):
        if a != first:
            first = a
            one = shingles.set_of(a)
        other = shingles.set_of(b)
        both = np.sort(np.concatenate((one, other)), kind="stable")
        shared = int(np.count_nonzero(both[1:] == both[:-1]))
        values[i] = shared / max(1, len(one) + len(other) - shared)
    return values


def _components(N: int, edges: np.ndarray) -> np.ndarray:
    """The number of the connected component of each row, ``[N]``."""
    graph = coo_array((np.ones(len(edges), dtype=bool), (edges[:, 0], edges[:, 1])), shape=(N, N))
    return connected_components(graph, directed=False)[1]


def _similarities(original: np.ndarray, exact: np.ndarray, shingles: _ShingleFile) -> np.ndarray:
    """How similar each text is to its original, ``[N]``."""
    similarity = np.ones(len(original))
    near = np.flatnonzero(~exact)
    near = near[np.argsort(original[near], kind="stable")]
    similarity[near] = _jaccard(np.stack((original[near], near), axis=1), shingles)
    return similarity
