"""Where text comes from. One file a source, one line here; a source is a function from its settings to a stream.

Used by the ingest stage. A stream is a generator of documents, and of the records that are none, in between.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.sources import folder, sotu

SOURCES: dict[str, Callable[["IngestConfig"], Iterator[Document | Quarantined]]] = {
    "sotu": lambda c: sotu.read(c.input),
    "folder": lambda c: folder.read(c.input, c.pattern, c.text_field, c.id_field, c.max_record_bytes),
}


@dataclass(frozen=True)
class IngestConfig:
    """Section ``ingest`` of the parameters."""

    source: str
    """Which source reads the input: ``sotu`` or ``folder``."""
    input: str
    """The file or folder it reads, relative to the project; DVC watches it, so that new text starts a new run."""
    pattern: str = "**/*"
    """Which files of a folder are read, such as ``**/*.jsonl.gz``; ``**`` stands for any folders below."""
    text_field: str = "text"
    """JSON lines, CSV and Parquet: the field that holds the text."""
    id_field: str | None = None
    """JSON lines, CSV and Parquet: the field that holds a unique id; null: the file's name and the line or row."""
    max_record_bytes: int = 100_000_000
    """A longer record (a line, a row, a whole text file; bytes after decompression) is quarantined."""
    max_quarantined: float = 0.01
    """The largest share of records, from 0 to 1, that may be quarantined; beyond it the stage fails."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source: found {self.source!r}; expected one of {', '.join(SOURCES)}")
        if set("*?") & set(self.input):
            raise ValueError(
                f"input: found {self.input!r}; expected the folder alone, which DVC watches, "
                "and what follows it in ingest.pattern"
            )
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise ValueError(f"pattern: found {self.pattern!r}; expected a pattern of names in ingest.input")
        if not 0 < self.max_record_bytes <= 1_000_000_000:
            raise ValueError(f"max_record_bytes: {self.max_record_bytes} is not between 1 and 1000000000")
        if not 0 <= self.max_quarantined <= 1:
            raise ValueError(f"max_quarantined: {self.max_quarantined} is not between 0 and 1")


def open_source(config: IngestConfig) -> Iterator[Document | Quarantined]:
    """The stream of a source: documents with unique ids, and the records that had to be quarantined.

    Raises, while it is read:
        BadInput: the input is missing or of a wrong kind; the message names it.
        OSError: a file cannot be opened, or the disk fails.
    """
    return SOURCES[config.source](config)
