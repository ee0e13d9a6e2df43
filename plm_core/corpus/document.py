"""A document and its table on disk: Parquet with the columns id, text, source, metadata. Read by every data stage."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_core.config import BadInput

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
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        rows: list[dict[str, str]] = []
        for document in documents:
            metadata = json.dumps(document.metadata, sort_keys=True, ensure_ascii=False)
            rows.append({"id": document.id, "text": document.text, "source": document.source, "metadata": metadata})
            if len(rows) == ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                written, rows = written + len(rows), []
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return written + len(rows)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a Parquet file in order, holding a few at a time.

    Raises:
        BadInput: the file is missing or not a Parquet file with the columns above.
    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=SCHEMA.names):
                for row in batch.to_pylist():
                    yield Document(row["id"], row["text"], row["source"], json.loads(row["metadata"]))
    except FileNotFoundError:
        raise BadInput(f"{path}: missing; run the stage that writes it (`dvc repro`)") from None
    except pa.ArrowInvalid as error:
        raise BadInput(f"{path}: not a readable corpus ({error}); expected Parquet with {SCHEMA.names}") from error
