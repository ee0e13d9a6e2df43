"""The scratch database for what does not fit in memory: sorting and grouping. Used by ``near`` and by ingest."""

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb

from plm_core.corpus.document import Document

ROWS_AT_ONCE = 64
"""Documents fetched at once; they may be long."""


def open_database(scratch: Path, memory: str) -> duckdb.DuckDBPyConnection:
    """A new DuckDB database in the folder ``scratch`` that takes at most ``memory`` (such as ``1GB``) and spills there.

    One thread, so that a run takes the same way every time.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "threads": 1,
        "temp_directory": str(scratch / "spilled"),
    }
    return duckdb.connect(scratch / "scratch.duckdb", config=settings)


def sorted_documents(path: Path, scratch: Path, memory: str) -> Iterator[Document]:
    """Yield the documents of a Parquet file in the order of their ids, character by character.

    Raises:
        OSError, duckdb.Error: the disk is full.
    """
    with open_database(scratch, memory) as database:
        result = database.execute("SELECT id, text, source, metadata FROM read_parquet(?) ORDER BY id", [str(path)])
        while rows := result.fetchmany(ROWS_AT_ONCE):
            for identity, text, source, metadata in rows:
                yield Document(identity, text, source, json.loads(metadata))
