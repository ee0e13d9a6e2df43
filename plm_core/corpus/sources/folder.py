"""A team's own text: a file or a folder of ``.txt``, ``.jsonl`` and ``.parquet`` files. The source ``folder``."""

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_core.config import BadInput
from plm_core.corpus.document import Document

SUFFIXES = (".txt", ".jsonl", ".parquet")


def read(folder: str, text_field: str, id_field: str | None) -> Iterator[Document]:
    """Yield one document a text file, or one a row of JSON lines or Parquet, in the order of the sorted file names.

    A row's other fields become its metadata where they are text or whole numbers.

    Raises:
        BadInput: a missing input, no file with a known suffix, invalid UTF-8, broken JSON, or a row without its text or
            id field; the message names the file and the line.
    """
    root = Path(folder)
    if not root.exists():
        raise BadInput(f"{root}: does not exist; expected a file or folder with {', '.join(SUFFIXES)} (ingest.input)")
    found = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    files = [file for file in found if file.suffix.lower() in SUFFIXES]
    if not files:
        raise BadInput(f"{root}: nothing to read in it; expected {', '.join(SUFFIXES)} files (ingest.input)")
    if others := sorted({file.suffix or file.name for file in found if file.suffix.lower() not in SUFFIXES}):
        what = f"{len(found) - len(files)} files of other kinds are not read ({', '.join(others)})"
        warnings.warn(f"{root}: {what}; only {', '.join(SUFFIXES)} are", stacklevel=2)
    for file in files:
        name = file.name if file == root else file.relative_to(root).as_posix()
        if file.suffix.lower() == ".txt":
            yield Document(id=name, text="".join(_lines(file)), source="folder")
            continue
        rows = _json_rows(file) if file.suffix.lower() == ".jsonl" else _parquet_rows(file)
        for number, row in rows:
            yield _document(row, f"{name}#{number}", f"{file}:{number}", text_field, id_field)


def _document(
    row: Mapping[str, object], default_id: str, place: str, text_field: str, id_field: str | None
) -> Document:
    text = row.get(text_field)
    if not isinstance(text, str):
        raise BadInput(
            f"{place}: no text in the field {text_field!r}, only {sorted(row)}; expected text (ingest.text_field)"
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadInput(
            f"{place}: the field {text_field!r} holds half a surrogate pair (\\ud800 to \\udfff); expected text"
        )
    if id_field is not None and not isinstance(row.get(id_field), str | int):
        raise BadInput(f"{place}: no id in the field {id_field!r}; expected text or a whole number (ingest.id_field)")
    identity = default_id if id_field is None else str(row[id_field])
    metadata = {k: v for k, v in row.items() if k not in (text_field, id_field) and isinstance(v, str | int)}
    return Document(id=identity, text=text, source="folder", metadata=metadata)


def _lines(file: Path) -> Iterator[str]:
    """Lines with their ends kept; split at ``\\n`` only, so that a number means what an editor shows."""
    with file.open("rb") as raw:
        for number, line in enumerate(raw, start=1):
            try:
                yield line.decode("utf-8").removeprefix("\ufeff" if number == 1 else "")
            except UnicodeDecodeError as error:
                raise BadInput(
                    f"{file}:{number}: invalid UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
                    "expected UTF-8 text"
                ) from None


def _json_rows(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}:{number}: broken JSON ({error}); expected a JSON object a line") from None
        if not isinstance(row, dict):
            raise BadInput(f"{file}:{number}: found {type(row).__name__}; expected a JSON object a line")
        yield number, row


def _parquet_rows(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except pa.ArrowInvalid as error:
        raise BadInput(f"{file}: not a readable Parquet file ({error})") from error
