"""Exact and near duplicates among many texts, in bounded memory: MinHash, bands, verification, connected components.

Used by ``deduplicate``. Broder 1997 (resemblance of shingle sets, min-wise hashing); Leskovec, Rajaraman and Ullman
2020, chapter 3 (bands). Signatures are computed by rensa. Texts are read, and pairs are compared, part by part in a
``Pool``; what joins them lies in a DuckDB database, which keeps to ``memory`` and spills what is more. In memory a text
costs some 30 bytes, whatever its length.

Rows are numbered in the order given: when texts come sorted by id, the smallest row is the smallest id, and the result
does not depend on the order in which they arrived.

Shapes: N texts, of one part or of all, K values of a signature, b buckets of a text, P pairs.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
from plm_core.corpus.pairs import ENDS, SHINGLES, Pairs, Shingles, mapped
from plm_core.corpus.pool import Pool, results_of
from plm_core.corpus.shingles import batches, scrambled, words
from plm_core.files import scratch_folder
from plm_core.sections.deduplicate import Similarity

SEED = 1
"""Of the permutations; a constant, so that equal texts are found equal in every run."""
NEIGHBOURS = 4
"""With how many members before it, by row, a member of a bucket is compared, besides the first."""
ROWS_AT_ONCE = 1 << 15
"""How many texts' keys and bands go into the database at once."""
KEYS, BANDS = "keys.u64", "bands.u64"
"""Files of an index beside the shingles: what exact duplicates share, ``[N, 2]``, and the buckets, ``[N, b]``."""
FETCHED = 1 << 14
"""How many rows are fetched from the database at once."""


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


def write_index(texts: Iterable[str], similarity: Similarity, folder: Path) -> None:
    """Write what the search has to know of the texts of a part into an existing folder."""
    ends: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    last = 0
    with (
        (folder / SHINGLES).open("wb") as shingles,
        (folder / KEYS).open("wb") as keys,
        (folder / BANDS).open("wb") as bands,
    ):
        for group in batches(texts, str):
            found = words(group).shingles(similarity.shingle)
            shingles.write(found.hashes.tobytes())
            keys.writelines(map(_key, group))
            bands.write(_bands(found.hashes, found.ends, similarity).tobytes())
            ends.append(found.ends + last)
            last += len(found.hashes)
    np.save(folder / ENDS, np.concatenate(ends))


def find_duplicates(indexes: Path, similarity: Similarity, pool: Pool, memory: str) -> Duplicates:
    """Group texts that are exact or near duplicates of each other, directly or through others.

    Args:
        indexes: a folder whose folders, by name, are what ``write_index`` made of each part.
        similarity: how candidates were found, and the threshold for those, which are compared exactly.
        pool: who compares; beside the indexes its folder takes about as much as they do.
        memory: what the database may take, such as ``1GB``.

    Raises:
        UserError: ``memory`` is too small for one step of the work.
        OSError: the disk is full.
    """
    pairs = Pairs(indexes, pool)
    shingles = Shingles(indexes)
    N = len(shingles)
    with scratch_folder(pool.folder / "database") as scratch, _database(scratch, memory) as database:
        _fill(database, indexes, similarity.bands)
        firsts = _firsts(database, N)
        _collect_buckets(database, firsts)
        # Two rounds: most members are near the first of their bucket, and need be compared with no other.
        edges = pairs.near("first", _fetched(database, FIRST), similarity.threshold)
        groups = _components(N, edges)
        others = (found[groups[found[:, 0]] != groups[found[:, 1]]] for found in _fetched(database, NEIGHBOURING))
        more = pairs.near("neighbouring", others, similarity.threshold)
    groups = _components(N, np.concatenate((edges, more)))
    _, smallest = np.unique(groups, return_index=True)
    original = smallest[groups][firsts]
    exact = firsts == original
    return Duplicates(original, _similarities(original, exact, pairs), exact)


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


def _fill(database: DuckDBPyConnection, indexes: Path, bands: int) -> None:
    """Move the keys and buckets of all texts into the database."""
    database.execute("CREATE TABLE keys (high UBIGINT, low UBIGINT, row BIGINT)")
    database.execute("CREATE TABLE bands (bucket UBIGINT, row BIGINT)")
    row = 0
    for part in results_of(indexes):
        keys = mapped(part / KEYS).reshape(-1, 2)
        buckets = mapped(part / BANDS).reshape(-1, bands)
        for start, stop in pairwise([*range(0, len(keys), ROWS_AT_ONCE), len(keys)]):
            rows = np.arange(row + start, row + stop)
            some = keys[start:stop]
            database.from_arrow(pa.table({"high": some[:, 0], "low": some[:, 1], "row": rows})).insert_into("keys")
            flat = buckets[start:stop].reshape(-1)
            filled = {"bucket": flat[flat != 0], "row": np.repeat(rows, bands)[flat != 0]}
            database.from_arrow(pa.table(filled)).insert_into("bands")
        row += len(keys)


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
    while rows := result.fetchmany(FETCHED):
        yield np.array(rows, dtype=np.int64)


def _components(N: int, edges: np.ndarray) -> np.ndarray:
    """The number of the connected component of each row, ``[N]``."""
    graph = coo_array((np.ones(len(edges), dtype=bool), (edges[:, 0], edges[:, 1])), shape=(N, N))
    return connected_components(graph, directed=False)[1]


def _similarities(original: np.ndarray, exact: np.ndarray, pairs: Pairs) -> np.ndarray:
    """How similar each text is to its original, ``[N]``."""
    similarity = np.ones(len(original))
    near = np.flatnonzero(~exact)
    near = near[np.argsort(original[near], kind="stable")]
    for found, values in pairs.compared("originals", [np.stack((original[near], near), axis=1)]):
        similarity[found[:, 1]] = values
    return similarity
