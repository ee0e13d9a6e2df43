"""A document and its table on disk: Parquet with the columns id, text, source, metadata. Read by every data stage."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_core.config import BadInput
from plm_core.files import RESTORE, atomic_file

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "metadata")])
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Document:
    """One text with its origin; paragraphs are separated by an empty line."""

    id: str
    """Unique and stable: the split of the document is a function of it alone."""
    text: str
    source: str
    """The name of the source that gave it."""
    metadata: dict[str, str | int] = field(default_factory=dict)
    """What the source knows of it (year, author, ...)."""


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write documents to a Parquet file, a few at a time, and return how many there were.

    The metadata are a JSON object in a string column, so that sources with different fields share one table.
    """
    written = 0
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        stream = iter(documents)
        while rows := [_row(document) for document in islice(stream, ROWS_AT_ONCE)]:
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
            written += len(rows)
    return written


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a Parquet file in order, holding a few at a time.

    Raises:
        BadInput: the file is missing, damaged, or has other columns than those above.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if file.schema_arrow.names != SCHEMA.names:
                raise BadInput(f"{path}: has the columns {file.schema_arrow.names}; expected {SCHEMA.names}")
            for batch in file.iter_batches(ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    yield Document(row["id"], row["text"], row["source"], json.loads(row["metadata"]))
    except FileNotFoundError:
        raise BadInput(f"{path}: missing; run the stage that writes it (`dvc repro`)") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path}: damaged, or not a corpus ({error}); {RESTORE}") from error


@dataclass(frozen=True)
class Texts:
    """The texts of a Parquet file, read from the disk anew each time that they are asked for."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        return (document.text for document in read_documents(self.path))


def _row(document: Document) -> dict[str, str]:
    metadata = json.dumps(document.metadata, sort_keys=True, ensure_ascii=False)
    return {"id": document.id, "text": document.text, "source": document.source, "metadata": metadata}
