"""A team's own text: a file, or the files of a folder, in the formats of ``plm_core/corpus/records.py``.

The source ``folder``. A record that cannot be used does not stop it: it comes out as ``Quarantined``.
"""

import reprlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.corpus.lines import COMPRESSIONS
from plm_core.corpus.quarantine import Quarantined, Refused, quarantined
from plm_core.corpus.records import READABLE, SURROGATE, Record, format_of, records


def read(
    folder: str, pattern: str, text_field: str, id_field: str | None, max_record_bytes: int
) -> Iterator[Document | Quarantined]:
    """Yield one document a text file, or one a record of the other formats, in the order of the sorted file names.

    A record's other fields become its metadata where they are text or whole numbers. Of two with the same id the
    first is kept.

    Raises:
        BadInput: a missing input, or no file that can be read; the message names the parameter.
        OSError: a file cannot be opened, or the disk fails.
    """
    root, seen = Path(folder), set[str]()
    for file in _files(root, pattern):
        name = file.name if file == root else file.relative_to(root).as_posix()
        if file.suffix.lower() in COMPRESSIONS:
            # Compressing a file must not move its documents to another side of the split.
            name = name[: -len(file.suffix)]
        for record in records(file, max_record_bytes):
            try:
                document = _document(record, name, text_field, id_field)
                if document.id in seen:
                    raise Refused("duplicate_id", f"the id {document.id!r} stands before; expected unique ids")
            except Refused as refused:
                yield quarantined(f"{file}:{record.number}", refused, record.head or _shown(record.content))
                continue
            seen.add(document.id)
            yield document


def _files(root: Path, pattern: str) -> list[Path]:
    if not root.exists():
        raise BadInput(f"{root}: does not exist; expected a file or folder with {READABLE} (ingest.input)")
    found = [root] if root.is_file() else sorted(path for path in root.glob(pattern) if path.is_file())
    files = [file for file in found if format_of(file)]
    if not files:
        where = "ingest.input" if root.is_file() else f"ingest.input, and ingest.pattern {pattern!r}"
        raise BadInput(f"{root}: nothing to read in it; expected {READABLE} ({where})")
    if others := sorted({_kind(file) for file in found if not format_of(file)}):
        what = f"{len(found) - len(files)} files of other kinds are not read ({', '.join(others)})"
        warnings.warn(f"{root}: {what}; only {READABLE} are", stacklevel=3)
    return files


def _kind(file: Path) -> str:
    """What a file seems to be; a compressed one is what is in it."""
    last = -2 if file.suffix.lower() in COMPRESSIONS else -1
    return "".join(file.suffixes[last:]) or file.name


def _document(record: Record, name: str, text_field: str, id_field: str | None) -> Document:
    if isinstance(record.content, Refused):
        raise record.content
    if isinstance(record.content, str):
        document = Document(id=name, text=record.content, source="folder")
    else:
        document = _row_document(record.content, f"{name}#{record.number}", text_field, id_field)
    for what, text in [("text", document.text), ("id", document.id), *_texts(document.metadata)]:
        if "\0" in text:
            raise Refused("nul_byte", f"a character of value 0 in {what}; expected text")
        if SURROGATE.search(text):
            raise Refused("half_surrogate", f"half a surrogate pair (\\ud800 to \\udfff) in {what}; expected text")
    return document


def _row_document(row: Mapping[str, object], default_id: str, text_field: str, id_field: str | None) -> Document:
    text, identity = row.get(text_field), default_id if id_field is None else row.get(id_field)
    if not isinstance(text, str):
        found = f"found {type(text).__name__}" if text_field in row else f"it has {', '.join(sorted(row))}"
        raise Refused("missing_text", f"no text in the field {text_field!r} ({found}; ingest.text_field)")
    if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
        raise Refused("missing_id", f"no id in the field {id_field!r}; expected text or a whole number")
    metadata = {k: v for k, v in row.items() if k not in (text_field, id_field) and isinstance(v, str | int)}
    return Document(id=str(identity), text=text, source="folder", metadata=metadata)


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
