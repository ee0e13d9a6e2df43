"""Documents from the fields of records, or reasons why they are none. Used by the sources ``folder`` and ``hub``."""

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined, Refused, quarantined
from plm_core.corpus.records import SURROGATE, Record
from plm_core.corpus.sources.source import Records


def documents_of(records: Iterable[tuple[str, str, Record]], source: Records) -> Iterator[Document | Quarantined]:
    """Yield a document for each record, which comes with its place and its default id, or what was wrong with it."""
    for place, default_id, record in records:
        try:
            document = _document(record, default_id, source)
        except Refused as refused:
            yield quarantined(place, refused, record.head or shown(record.content))
        else:
            yield replace(document, source=place)


def _document(record: Record, default_id: str, source: Records) -> Document:
    if isinstance(record.content, Refused):
        raise record.content
    if isinstance(record.content, str):
        document = Document(default_id, record.content, "")
    else:
        document = _row_document(record.content, default_id, source)
    for what, text in [("text", document.text), ("id", document.id), *_texts(document.metadata)]:
        if "\0" in text:
            raise Refused("nul_byte", f"a NUL character in {what}; expected text")
        if SURROGATE.search(text):
            raise Refused("half_surrogate", f"a lone surrogate (\\ud800 to \\udfff) in {what}; expected text")
    return document


def _row_document(row: Mapping[str, object], default_id: str, source: Records) -> Document:
    text = row.get(source.text_field)
    identity = default_id if source.id_field is None else row.get(source.id_field)
    if not isinstance(text, str):
        found = f"found {type(text).__name__}" if source.text_field in row else f"it has {', '.join(sorted(row))}"
        raise Refused("missing_text", f"no text in the field {source.text_field!r} ({found}; text_field of its source)")
    if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
        raise Refused("missing_id", f"no id in the field {source.id_field!r}; expected text or a whole number")
    named = (source.text_field, source.id_field)
    metadata = {key: value for key, value in row.items() if key not in named and isinstance(value, str | int)}
    return Document(str(identity), text, "", metadata)


def _texts(metadata: Mapping[str, str | int]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        yield "the name of a field", key
        if isinstance(value, str):
            yield f"the field {key!r}", value


def shown(content: Mapping[str, object] | str | Refused) -> str:
    """The beginning of an id, or of a record whose bytes are not available; long fields are shortened."""
    short = reprlib.Repr()
    short.maxstring = 99
    return "" if isinstance(content, Refused) else short.repr(content)
