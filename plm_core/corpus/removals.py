"""What does not enter the corpus, and why: records that cannot be used, and texts that a rule removed.

A record that cannot be used goes to quarantine, with its place and the rule that it breaks. Every removal of a text has
a row with the rule and its measurement. A pass over a part of the corpus writes only what it removes; ``remaining`` is
what it left. Documents and paragraphs read are those kept plus those removed, in total and for each source.
"""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from plm_core.corpus.document import Document, RowWriter, read_rows, row_writer
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.shared.files import atomic_file

EXCERPT = 200
"""The most characters of an excerpt, and of a detail."""
KEPT, REMOVED, COUNTS = "kept.parquet", "removed.parquet", "counts.json"
"""The files with what is left of a part, what was removed from it, and the counts of both."""

SCHEMA = pa.schema(
    [
        (name, pa.int32() if name == "paragraph" else pa.string())
        for name in ("document", "paragraph", "source", "rule", "value", "text")
    ]
)


class Refused(Exception):
    """A record breaks a rule; the caller that knows its place makes a ``Quarantined`` of it."""

    def __init__(self, reason: str, detail: str, lost_bytes: int = 0) -> None:
        """``lost_bytes``: if the record stands for the rest of the file, at least this many bytes that are not read."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.lost_bytes = lost_bytes


@dataclass(frozen=True)
class Quarantined:
    """A record that was not used; all text is printable."""

    place: str
    """``file:line``: the line on which the record begins; for Parquet, the row, from 1."""
    reason: str
    """The short name of the rule, such as ``broken_json``."""
    detail: str
    """What was found and what was expected, at most 200 characters."""
    excerpt: str
    """The record's beginning, at most 200 characters."""
    lost_bytes: int = 0
    """If the record stands for the rest of the file, at least this many bytes that are not read."""


def quarantined(place: str, refused: Refused, head: bytes | str) -> Quarantined:
    """The record at ``place``, which begins with ``head``, for the reason of ``refused``."""
    text = head if isinstance(head, str) else head.decode("utf-8", errors="backslashreplace")
    # A file name may contain anything, but is needed whole to find the file.
    detail = _shortened(refused.detail)
    return Quarantined(printable(place), refused.reason, detail, _shortened(text), refused.lost_bytes)


@contextlib.contextmanager
def quarantine_writer(path: Path) -> Iterator[Callable[[Quarantined], object]]:
    """Yield a function that writes a record; they become the JSON lines of ``path`` when the block succeeds."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield lambda record: file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def printable(text: str) -> str:
    """The text with unprintable characters, such as bytes that are not UTF-8, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shortened(text: str) -> str:
    """The text, printable and shortened; only the beginning of a long one is examined."""
    shown = printable(text[: EXCERPT + 1])
    return shown if len(shown) <= EXCERPT else f"{shown[: EXCERPT - 1]}…"


@dataclass(frozen=True)
class Removal:
    """A paragraph, or a whole document, that was not kept."""

    document: str
    """The id of its document."""
    paragraph: int | None
    """Its position, from 0, in what was left of the document when the rule was applied; None: the whole document."""
    source: str
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


def read_removals(path: Path) -> Iterator[Removal]:
    """Yield the removals of a table in order; UserError as in ``read_rows``."""
    return (Removal(**row) for row in read_rows(path, SCHEMA))


def remaining(documents: Iterable[Document], removed: Path) -> Iterator[Document]:
    """Yield what is left of documents without the paragraphs that a pass has removed from them."""
    places = defaultdict[str, set[int | None]](set)
    for removal in read_removals(removed):
        places[removal.document].add(removal.paragraph)
    for document in documents:
        if gone := places.get(document.id):
            texts = enumerate(paragraphs_of(document.text))
            document = replace(document, text=BETWEEN.join(text for place, text in texts if place not in gone))
        if document.text:
            yield document


class RemovalLog:
    """What a pass removes from one part, and its counts; ``removal_log`` opens it."""

    def __init__(self, file: RowWriter[Any]) -> None:
        self.write = file.write
        self.counts = Counter[str]()
        """By name; then the same with the source as a prefix: ``news/removed_...``."""

    def count(self, source: str, name: str, number: int = 1) -> None:
        self.counts[name] += number
        self.counts[f"{source}/{name}"] += number

    def remove(self, document: Document, removals: Iterable[Removal]) -> None:
        """Write and count what was removed from a document; ``document`` is what is left of it, perhaps an empty
        text."""
        whole = False
        for removal in removals:
            self.write(removal)
            self.count(removal.source, f"removed_{removal.level}_{removal.rule}")
            if removal.paragraph is None:
                whole = True
                self.count(removal.source, "removed_paragraphs_with_documents", len(paragraphs_of(removal.text)))
        if not document.text and not whole:
            self.count(document.source, "removed_documents_emptied")

    def keep(self, document: Document, side: str) -> None:
        self.count(document.source, f"{side}_documents")
        self.count(document.source, f"{side}_paragraphs", len(paragraphs_of(document.text)))
        self.count(document.source, f"{side}_bytes", len(document.text.encode()))


@contextlib.contextmanager
def removal_log(folder: Path) -> Iterator[RemovalLog]:
    """Yield a log, written into the folder when the block succeeds."""
    with row_writer(folder / REMOVED, SCHEMA, asdict) as file:
        log = RemovalLog(file)
        yield log
    (folder / COUNTS).write_text(json.dumps(log.counts), encoding="utf-8")


def counts_of(results: Iterable[Path]) -> Counter[str]:
    """The sum of the counts in the folders of several parts."""
    total = Counter[str]()
    for result in results:
        total.update(json.loads((result / COUNTS).read_bytes()))
    return total
