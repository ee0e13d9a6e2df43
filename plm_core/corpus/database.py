"""The scratch database for what does not fit in memory. Used by ``near``."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from plm_core.config import UserError


@contextlib.contextmanager
def open_database(scratch: Path, memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A new DuckDB database in the folder ``scratch`` that takes at most ``memory`` (such as ``1GB``) and spills there.

    One thread, so that a run takes the same way every time.

    Raises, here and in the block:
        UserError: ``memory`` is too small for one step of the work.
        OSError: the disk is full.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "threads": 1,
        "temp_directory": str(scratch / "spilled"),
    }
    try:
        with duckdb.connect(scratch / "scratch.duckdb", config=settings) as database:
            yield database
    except duckdb.OutOfMemoryException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"PLM_MEMORY: {memory} is too little ({reason}); expected more") from error
    except duckdb.IOException as error:
        raise OSError(f"{scratch}: {' '.join(str(error).split())}") from error
