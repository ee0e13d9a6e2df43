"""A document and its table on disk: Parquet with the columns id, text, source, metadata. Read by every data stage."""

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path

import pyarrow as pa

from plm_core.config import UserError
from plm_core.corpus.tables import RowWriter, read_rows, row_writer
from plm_core.files import RESTORE

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "metadata")])


@dataclass(frozen=True)
class Document:
    """One text with its origin; paragraphs are separated by an empty line."""

    id: str
    """Unique and stable: the split of the document is a function of it alone."""
    text: str
    source: str
    """The name of its source; during ingestion, the place in it."""
    metadata: dict[str, str | int] = field(default_factory=dict)
    """The source's fields for it (year, author, ...)."""


def document_writer(path: Path) -> AbstractContextManager[RowWriter[Document]]:
    """Yield a writer whose documents become the Parquet file ``path`` when the block succeeds.

    The metadata are a JSON object in a string column, so that sources with different fields share one table.
    """
    return row_writer(path, SCHEMA, _row)


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write documents to a Parquet file, holding a few at a time, and return how many there were."""
    with document_writer(path) as writer:
        for document in documents:
            writer.write(document)
    return writer.count


def read_documents(path: Path, groups: slice = slice(None)) -> Iterator[Document]:
    """Yield the documents of a table in order, holding a few at a time; for a single file, those of these row groups.

    Raises:
        UserError: a file is missing, damaged, or has other columns than those above.
    """
    for row in read_rows(path, SCHEMA, groups):
        try:
            metadata = json.loads(row["metadata"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged metadata of {row['id']!r} ({error}); {RESTORE}") from error
        yield Document(row["id"], row["text"], row["source"], metadata)


def merge_documents(pieces: Sequence[tuple[Path, slice]], unique: bool = True) -> Iterator[Document]:
    """Yield the documents of several row groups, each sorted by id, in the order of their ids, holding a few of each.

    If ids need not be ``unique``, documents with the same one come in the order of their pieces.

    Raises:
        UserError: as in ``read_documents``, or an id does not come after the one before.
    """
    last: str | None = None
    for document in heapq.merge(*starmap(read_documents, pieces), key=lambda document: document.id):
        if unique or document.id != last:
            require_order(last, document.id, [path for path, _ in pieces])
        last = document.id
        yield document


def require_order(before: str | None, after: str, paths: Iterable[Path]) -> None:
    """Raise UserError unless the id ``after``, found in one of the files, comes after ``before``."""
    if before is not None and after <= before:
        names = ", ".join(map(str, paths))
        raise UserError(f"{names}: the id {after!r} comes after {before!r}; expected unique ids in order; {RESTORE}")


@dataclass(frozen=True)
class Texts:
    """The texts of some row groups, read from disk each time they are iterated."""

    pieces: Sequence[tuple[Path, slice]]
    """The row groups of files, or whole tables."""

    def __iter__(self) -> Iterator[str]:
        return (document.text for piece in self.pieces for document in read_documents(*piece))


def _row(document: Document) -> dict[str, str]:
    metadata = json.dumps(document.metadata, sort_keys=True, ensure_ascii=False)
    return {"id": document.id, "text": document.text, "source": document.source, "metadata": metadata}
