"""What was removed from the corpus, with the rule and its measurement, and the table on disk.

Used by the stages that remove: clean and deduplicate. Every removal from the corpus has such a row.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from plm_core.corpus.tables import RowWriter, read_rows, row_writer

SCHEMA = pa.schema(
    [
        ("document", pa.string()),
        ("paragraph", pa.int32()),
        ("source", pa.string()),
        ("rule", pa.string()),
        ("value", pa.string()),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Removal:
    """A paragraph, or a whole document, that was not kept."""

    document: str
    """The id of its document."""
    paragraph: int | None
    """Its position, from 0, in what was left of the document when the rule was applied; None: the whole document."""
    source: str
    """The source of its document."""
    rule: str
    """The short name of the rule, used in counts."""
    value: str
    """What the rule measured and what it allows, in printable text that is the same in every run."""
    text: str
    """The removed text: for a document, what was left of it when the rule was applied."""

    @property
    def level(self) -> str:
        """``documents`` or ``paragraphs``, as counts are named."""
        return "documents" if self.paragraph is None else "paragraphs"


def removal_writer(path: Path) -> AbstractContextManager[RowWriter[Removal]]:
    """Yield a writer whose removals become the Parquet file ``path`` when the block succeeds."""
    return row_writer(path, SCHEMA, asdict)


def read_removals(path: Path) -> Iterator[Removal]:
    """Yield the removals of a Parquet file in order, holding a few at a time.

    Raises:
        UserError: the file is missing, damaged, or has other columns than those above.
    """
    for row in read_rows(path, SCHEMA):
        yield Removal(**row)
