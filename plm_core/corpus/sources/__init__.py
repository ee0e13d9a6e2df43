"""Where text comes from. One file a source, one line here; a source is a function from its settings to a stream.

Used by the ingest stage. A stream is a generator of documents, and of the records that are none, in between.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.sources import bible, folder, hub, sotu
from plm_core.corpus.sources.fields import Fields

SOURCES: dict[str, Callable[["IngestConfig"], Iterator[Document | Quarantined]]] = {
    "sotu": lambda c: sotu.read(c.input),
    "bible": lambda c: bible.read(c.input),
    "hub": lambda c: hub.read(c.input, Fields(c.text_field, c.id_field), c.max_record_bytes),
    "folder": lambda c: folder.read(c.input, c.pattern, Fields(c.text_field, c.id_field), c.max_record_bytes),
}


@dataclass(frozen=True)
class IngestConfig:
    """A section of ``sources`` in the parameters."""

    reader: str
    """Which reader: ``folder`` for text of your own, ``hub``, or a package: ``sotu``, ``bible``."""
    input: str
    """The file or folder it reads, relative to the project; DVC watches it, so that new text starts a new run.

    For ``hub`` and packages, the manifest that pins what they give.
    """
    license: str | None = None
    """The licence of a folder's text, for the card of the dataset; a manifest states its own."""
    pattern: str = "**/*"
    """Which files of a folder are read, such as ``**/*.jsonl.gz``; ``**`` stands for any folders below."""
    text_field: str = "text"
    """The field of a record that holds the text."""
    id_field: str | None = None
    """The field of a record that holds a unique id; null: the file's name and the line or row."""
    max_record_bytes: int = 100_000_000
    """A longer record (a line, a row, a whole text file; bytes after decompression) is quarantined."""
    max_quarantined: float = 0.01
    """The largest share of records, from 0 to 1, that may be quarantined; beyond it the stage fails."""
    min_quarantined: int = 10
    """Fewer quarantined records than this never fail the stage, whatever their share; 0: the share alone decides."""

    def __post_init__(self) -> None:
        if self.reader not in SOURCES:
            raise ValueError(f"reader: found {self.reader!r}; expected one of {', '.join(SOURCES)}")
        if set("*?") & set(self.input):
            raise ValueError(
                f"input: found {self.input!r}; expected the folder alone, which DVC watches, "
                "and what follows it in `pattern`"
            )
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise ValueError(f"pattern: found {self.pattern!r}; expected a pattern of names in `input`")
        if not 0 < self.max_record_bytes <= 1_000_000_000:
            raise ValueError(f"max_record_bytes: {self.max_record_bytes} is not between 1 and 1000000000")
        if not 0 <= self.max_quarantined <= 1:
            raise ValueError(f"max_quarantined: {self.max_quarantined} is not between 0 and 1")
        if self.min_quarantined < 0:
            raise ValueError(f"min_quarantined: {self.min_quarantined}; expected at least 0")


def open_source(name: str, config: IngestConfig) -> Iterator[Document | Quarantined]:
    """The stream of the source ``name``: documents with unique ids, and the records that had to be quarantined.

    Its name stands before the ids, so that they are unique among all sources.

    Raises, while it is read:
        UserError: the input is missing or of a wrong kind; the message names it.
        OSError: a file cannot be opened, or the disk fails.
    """
    for record in SOURCES[config.reader](config):
        yield replace(record, id=f"{name}/{record.id}", source=name) if isinstance(record, Document) else record


def origin_of(config: IngestConfig) -> dict[str, Any]:
    """What is known of where a source's text comes from: its reader, its licence, what its manifest pins.

    Raises:
        UserError: the manifest cannot be read.
    """
    origin: dict[str, Any] = {"reader": config.reader, "input": config.input, "license": config.license or "not stated"}
    if config.reader == "folder":
        return origin
    try:
        return origin | json.loads(Path(config.input).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{config.input}: {error}; expected a manifest (JSON)") from error
