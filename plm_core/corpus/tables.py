"""Rows to and from Parquet, a few at a time. Used by documents, removals and the hits of decontamination.

A table is one Parquet file, or a folder of them in the order of their names, which other tools read too.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plm_core.config import UserError
from plm_core.files import RESTORE, atomic_file, atomic_folder

T = TypeVar("T")
Row = dict[str, Any]

ROWS_AT_ONCE = 1024
"""The most rows that are held, and that a row group of the file has."""
CHARACTERS_AT_ONCE = 1 << 20
"""Rows are written as soon as those held have this many characters, so that few long texts are held."""


class RowWriter(Generic[T]):
    """Takes the rows of one table; ``row_writer`` opens it."""

    def __init__(self, file: pq.ParquetWriter, schema: pa.Schema, to_row: Callable[[T], Row]) -> None:
        self.count = 0
        """The number of rows written."""
        self._file = file
        self._schema = schema
        self._to_row = to_row
        self._held: list[Row] = []
        self._characters = 0

    def write(self, item: T) -> None:
        """Add a row at the end."""
        row = self._to_row(item)
        self._held.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        self.count += 1
        if len(self._held) == ROWS_AT_ONCE or self._characters >= CHARACTERS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the rows held, if any, as a row group of their own."""
        if self._held:
            self._file.write_table(pa.Table.from_pylist(self._held, self._schema))
            self._held = []
            self._characters = 0


@contextlib.contextmanager
def row_writer(path: Path, schema: pa.Schema, to_row: Callable[[T], Row]) -> Iterator[RowWriter[T]]:
    """Yield a writer whose rows become the Parquet file ``path`` when the block succeeds, and vanish otherwise.

    ``to_row`` makes a row with the columns of ``schema`` from what the writer is given. Equal rows give equal bytes. A
    table without rows still has its columns.
    """
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as file,
    ):
        writer = RowWriter(file, schema, to_row)
        yield writer
        writer.flush()


def files_of(table: Path) -> list[Path]:
    """The Parquet files of a table, in order."""
    return sorted(table.glob("*.parquet")) if table.is_dir() else [table]


def read_rows(table: Path, schema: pa.Schema, groups: slice = slice(None)) -> Iterator[Row]:
    """Yield the rows of a table in order, optionally only of these row groups of a file, holding at most one row group.

    Raises:
        UserError: a file is missing, damaged, or has other columns than ``schema``.
    """
    for path in files_of(table):
        with parquet_file(path, schema) as file:
            for group in range(file.num_row_groups)[groups]:
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group]):
                    yield from batch.to_pylist()


@contextlib.contextmanager
def parquet_file(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for the block.

    Raises:
        UserError: the file is missing, has other columns than ``schema``, or turns out to be damaged in the block.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(schema):
                found = _columns(file.schema_arrow)
                expected = _columns(schema)
                raise UserError(f"{path}: has the columns {found}; expected {expected}")
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro`)") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the machine, not of the file
        raise UserError(f"{path}: damaged, or not a Parquet file ({error}); {RESTORE}") from error


def group_bytes(path: Path, schema: pa.Schema) -> list[int]:
    """The bytes of each row group of a file.

    Raises:
        UserError: as in ``parquet_file``.
    """
    with parquet_file(path, schema) as file:
        return [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]


def gather(files: Sequence[Path], table: Path) -> None:
    """Combine the files of parts into a table; those without a row are left out, unless all are empty."""
    filled = [file for file in files if pq.read_metadata(file).num_rows]
    with atomic_folder(table, checksums=False) as folder:
        for number, file in enumerate(filled or files[:1]):
            place = folder / f"{number:05d}.parquet"
            try:
                os.link(file, place)  # it also stays where it is, where a restarted stage looks for it
            except OSError:  # not every file system supports links
                shutil.copyfile(file, place)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
