"""From a record's fields to a document, or to the reason why it is none. Used by the sources ``folder`` and ``hub``."""

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined, Refused, quarantined
from plm_core.corpus.records import SURROGATE, Record


@dataclass(frozen=True)
class Fields:
    """Which fields of a record mean something; the others become metadata if they are text or whole numbers."""

    text: str
    """The field that holds the text."""
    id: str | None
    """The field that holds a unique id; None: the record's place."""


def documents_of(records: Iterable[tuple[str, str, Record]], fields: Fields) -> Iterator[Document | Quarantined]:
    """Yield a document for each record, which comes with its place and its default id, or what was wrong with it.

    Of two with the same id the first is kept. Documents have no source yet.
    """
    seen = set[str]()
    for place, default_id, record in records:
        try:
            document = _document(record, default_id, fields)
            if document.id in seen:
                raise Refused("duplicate_id", f"the id {document.id!r} stands before; expected unique ids")
        except Refused as refused:
            yield quarantined(place, refused, record.head or _shown(record.content))
            continue
        seen.add(document.id)
        yield document


def _document(record: Record, default_id: str, fields: Fields) -> Document:
    if isinstance(record.content, Refused):
        raise record.content
    if isinstance(record.content, str):
        document = Document(default_id, record.content, "")
    else:
        document = _row_document(record.content, default_id, fields)
    for what, text in [("text", document.text), ("id", document.id), *_texts(document.metadata)]:
        if "\0" in text:
            raise Refused("nul_byte", f"a character of value 0 in {what}; expected text")
        if SURROGATE.search(text):
            raise Refused("half_surrogate", f"half a surrogate pair (\\ud800 to \\udfff) in {what}; expected text")
    return document


def _row_document(row: Mapping[str, object], default_id: str, fields: Fields) -> Document:
    text, identity = row.get(fields.text), default_id if fields.id is None else row.get(fields.id)
    if not isinstance(text, str):
        found = f"found {type(text).__name__}" if fields.text in row else f"it has {', '.join(sorted(row))}"
        raise Refused("missing_text", f"no text in the field {fields.text!r} ({found}; text_field of its source)")
    if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
        raise Refused("missing_id", f"no id in the field {fields.id!r}; expected text or a whole number")
    metadata = {k: v for k, v in row.items() if k not in (fields.text, fields.id) and isinstance(v, str | int)}
    return Document(str(identity), text, "", metadata)


def _texts(metadata: Mapping[str, str | int]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        yield "the name of a field", key
        if isinstance(value, str):
            yield f"the field {key!r}", value


def _shown(content: Mapping[str, object] | str | Refused) -> str:
    """How a record begins whose bytes are not at hand; of a long field, a part."""
    short = reprlib.Repr()
    short.maxstring = 99
    return "" if isinstance(content, Refused) else short.repr(content)
