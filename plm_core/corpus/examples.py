"""Evaluation sets outside the corpus, as files: the examples that ``decontaminate`` searches for.

Used by the stage deduplicate.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from plm_core.config import UserError, section
from plm_core.corpus.quarantine import Refused
from plm_core.corpus.records import records
from plm_core.files import sha256_file

LONGEST = 100_000_000
"""The bytes of the longest record allowed in an evaluation set."""


@section
class ExampleFile:
    """An evaluation set outside the corpus; the digest makes it a parameter that DVC tracks."""

    name: str
    """Its name in the report, such as ``sst-2``."""
    file: str
    """JSON lines, CSV, TSV or Parquet, in which each text field is an example, or text, in which each line is one."""
    sha256: str
    """The file's digest."""


def read_examples(given: ExampleFile) -> Iterator[tuple[str, str, str]]:
    """Yield the evaluation set, name and text of every text field of its records; for text files, of every line.

    Raises:
        UserError: the file is missing, not the one that ``sha256`` names, holds no text, or a record of it cannot be
            read.
    """
    path = Path(given.file)
    if not path.is_file():
        raise UserError(f"{path}: missing; expected the examples of {given.name} (decontaminate.examples)")
    if (found := sha256_file(path)) != given.sha256:
        raise UserError(f"decontaminate.examples: {path} is {found}; expected {given.sha256}")
    empty = True
    for record in records(path, LONGEST):
        if isinstance(record.content, Refused):
            raise UserError(f"{path}:{record.number}: {record.content}")
        for place, text in _texts(record.content, record.number):
            empty = False
            yield given.name, f"{path.name}:{place}", text
    if empty:
        raise UserError(f"{path}: holds no text; expected the examples of {given.name} (decontaminate.examples)")


def _texts(content: Mapping[str, object] | str, number: int) -> Iterator[tuple[str, str]]:
    """The texts of a record, including those in lists, with the place of each."""
    if isinstance(content, str):
        for line, text in enumerate(content.splitlines(), start=1):
            if text.strip():
                yield str(line), text
        return
    for name, value in content.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and each.strip():
                yield f"{number} {name}", each
