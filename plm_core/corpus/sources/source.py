"""The base of all sources: a section of ``sources`` in the parameters that yields documents.

A source is a file next to this one with a subclass, whose fields are those of its section. Those of records, ``folder``
and ``hub``, make their documents from the fields of each.
"""

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field, NonNegativeInt

from plm_core.config import Share, UserError, section
from plm_core.corpus.document import Document
from plm_core.corpus.records import SURROGATE, Record
from plm_core.corpus.removals import Quarantined, Refused, quarantined


class Readable(Protocol):
    """A source, or a part of one."""

    def read(self) -> Iterator[Document | Quarantined]:
        """As ``Source.read``."""


@section
class Source(ABC):
    """A source."""

    input: str
    """The file or folder it reads, relative to the project. DVC compares it at each run, and new text is read.

    For ``hub`` and packages, the manifest that pins their content.
    """
    max_quarantined: Share = 0.01
    """The largest share of records that may be quarantined; beyond it the stage fails."""
    min_quarantined: NonNegativeInt = 10
    """Fewer quarantined records than this never fail the stage, whatever their share; 0: the share alone decides."""

    def __post_init__(self) -> None:
        if set("*?") & set(self.input):
            raise ValueError(
                f"input: found {self.input!r}; expected the folder alone, which DVC watches, "
                "and what follows it in `pattern`"
            )

    def parts(self) -> Sequence[Readable]:
        """Parts that can be read in parallel, in order; UserError as in ``read``."""
        return [self]

    @abstractmethod
    def read(self) -> Iterator[Document | Quarantined]:
        """The documents, and the records that had to be quarantined.

        The ``source`` of a document is its place, such as ``file:line``. Its id should be unique in the source: of
        documents with the same one, ``ingest`` keeps the first.

        Raises, while it is read:
            UserError: the input is missing or of a wrong kind; the message names it.
            OSError: a file cannot be opened, or the disk or the hub fails.
        """

    def origin(self) -> dict[str, Any]:
        """The origin of the text: all that the manifest says, including the licence; UserError if there is none."""
        try:
            manifest = json.loads(Path(self.input).read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise ValueError(f"found {type(manifest).__name__}")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.input}: {error}; expected a manifest (a JSON object)") from error
        return {"input": self.input, "license": "not stated"} | manifest


@section
class Records(Source):
    """A source of records with fields."""

    text_field: str = "text"
    """The field of a record that holds the text."""
    id_field: str | None = None
    """The field of a record that holds a unique id; null: the file's name and the line or row."""
    max_record_bytes: Annotated[int, Field(gt=0, le=1_000_000_000)] = 100_000_000
    """A longer record (a line, a row, a whole text file; bytes after decompression) is quarantined."""


def documents_of(records: Iterable[tuple[str, str, Record]], source: Records) -> Iterator[Document | Quarantined]:
    """Yield a document for each record, which comes with its place and its default id, or what was wrong with it."""
    for place, default_id, record in records:
        try:
            yield _document(record, default_id, place, source)
        except Refused as refused:
            yield quarantined(place, refused, record.head or shorten(record.content))


def _document(record: Record, identity: object, place: str, source: Records) -> Document:
    row = record.content
    if isinstance(row, Refused):
        raise row
    text: object = row
    metadata: dict[str, str | int] = {}
    if not isinstance(row, str):
        text = row.get(source.text_field)
        if not isinstance(text, str):
            problem = f"found {type(text).__name__}" if source.text_field in row else f"it has {', '.join(sorted(row))}"
            why = f"no text in the field {source.text_field!r} ({problem}; text_field of its source)"
            raise Refused("missing_text", why)
        identity = identity if source.id_field is None else row.get(source.id_field)
        if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
            raise Refused("missing_id", f"no id in the field {source.id_field!r}; expected text or a whole number")
        named = (source.text_field, source.id_field)
        metadata = {key: value for key, value in row.items() if key not in named and isinstance(value, str | int)}
    document = Document(str(identity), str(text), place, metadata)
    fields = [(f"the field {key!r}", value) for key, value in metadata.items() if isinstance(value, str)]
    names = [("the name of a field", key) for key in metadata]
    for what, value in [("text", document.text), ("id", document.id), *names, *fields]:
        if "\0" in value:
            raise Refused("nul_byte", f"a NUL character in {what}; expected text")
        if SURROGATE.search(value):
            raise Refused("half_surrogate", f"a lone surrogate (\\ud800 to \\udfff) in {what}; expected text")
    return document


def shorten(content: Mapping[str, object] | str | Refused) -> str:
    """The beginning of an id, or of a record whose bytes are not available; long fields are shortened."""
    short = reprlib.Repr()
    short.maxstring = 99
    return "" if isinstance(content, Refused) else short.repr(content)
