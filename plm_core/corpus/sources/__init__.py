"""Where text comes from. One file a source, one line here; a source is a function from its settings to a stream.

Used by the ingest stage. A stream is a ``datasets.IterableDataset`` with the features of ``Document``, so that mixing,
filtering and sharding are that library's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.corpus.sources import folder, sotu

if TYPE_CHECKING:
    from datasets import IterableDataset

SOURCES: dict[str, Callable[["IngestConfig"], Iterator[Document]]] = {
    "sotu": lambda config: sotu.read(config.input),
    "folder": lambda config: folder.read(config.input, config.text_field, config.id_field),
}


@dataclass(frozen=True)
class IngestConfig:
    """Section ``ingest`` of the parameters."""

    source: str
    """Which source reads the input: ``sotu`` or ``folder``."""
    input: str
    """The file or folder it reads, relative to the project; DVC watches it, so that new text starts a new run."""
    text_field: str = "text"
    """JSON lines and Parquet: the field that holds the text."""
    id_field: str | None = None
    """JSON lines and Parquet: the field that holds a unique id; null: the file's name and the row's number."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source: found {self.source!r}; expected one of {', '.join(SOURCES)}")


def open_source(config: IngestConfig) -> "IterableDataset":
    """The stream of a source's documents; columns id, text, source, metadata (a dictionary).

    Raises, while it is read:
        BadInput: the input is missing, empty or damaged; the message names the file and the line.
    """
    from datasets import IterableDataset

    return IterableDataset.from_generator(_rows, gen_kwargs={"config": config})


def _rows(config: IngestConfig) -> Iterator[dict[str, object]]:
    count = 0
    seen: set[str] = set()
    for document in SOURCES[config.source](config):
        if document.id in seen:
            raise BadInput(f"{config.input}: two documents have the id {document.id!r}; expected unique ids")
        seen.add(document.id)
        count += 1
        yield vars(document)
    if count == 0:
        raise BadInput(f"{config.input}: no document in it; expected at least one text for source {config.source!r}")
