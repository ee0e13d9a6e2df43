"""Figures of a corpus for its card: sizes, lengths, what was removed by which rule, with examples. Used by card."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from plm_core.corpus.document import Document, read_documents
from plm_core.corpus.normalize import paragraphs_of
from plm_core.corpus.removal import Removal, read_removals

EXAMPLES = 3
"""How many examples of a rule are kept."""
EXCERPT = 280
"""The most characters of an example."""


@dataclass
class Sizes:
    """How much text there is, and how long it is."""

    documents: int = 0
    paragraphs: int = 0
    words: int = 0
    """Separated by white space."""
    bytes: int = 0
    """UTF-8."""
    document_words: Counter[int] = field(default_factory=Counter)
    """How many documents have up to so many words, and more than half of that: powers of two."""
    paragraph_words: Counter[int] = field(default_factory=Counter)
    """The same for paragraphs."""

    def add(self, document: Document) -> None:
        """Count a document in."""
        lengths = [len(text.split()) for text in paragraphs_of(document.text)]
        self.documents += 1
        self.paragraphs += len(lengths)
        self.words += sum(lengths)
        self.bytes += len(document.text.encode())
        self.document_words[_bin(sum(lengths))] += 1
        self.paragraph_words.update(map(_bin, lengths))


def sizes(path: Path) -> dict[str, Sizes]:
    """The sizes of a corpus file by source, sorted by name.

    Raises:
        UserError: the file is missing or damaged.
    """
    found: dict[str, Sizes] = {}
    for document in read_documents(path):
        found.setdefault(document.source, Sizes()).add(document)
    return dict(sorted(found.items()))


def total(parts: Iterable[Sizes]) -> Sizes:
    """All of them together."""
    whole = Sizes()
    for part in parts:
        for each in fields(Sizes):
            setattr(whole, each.name, getattr(whole, each.name) + getattr(part, each.name))
    return whole


@dataclass
class Rule:
    """What one rule removed."""

    level: str
    """``documents`` or ``paragraphs``."""
    name: str
    by_source: Counter[str] = field(default_factory=Counter)
    """How many texts of each source."""
    bytes: int = 0
    """UTF-8, of all of them."""
    examples: list[Removal] = field(default_factory=list)
    """The longest ones, and of equally long ones the first."""


def rules(paths: Iterable[Path]) -> list[Rule]:
    """What each rule removed, in the order in which they first did.

    Raises:
        UserError: a file is missing or damaged.
    """
    found: dict[tuple[str, str], Rule] = {}
    for path in paths:
        for removal in read_removals(path):
            rule = found.setdefault((removal.level, removal.rule), Rule(removal.level, removal.rule))
            rule.by_source[removal.source] += 1
            rule.bytes += len(removal.text.encode())
            rule.examples = sorted([*rule.examples, removal], key=lambda r: -len(r.text))[:EXAMPLES]
    return list(found.values())


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…"


def texts_of(names: Iterable[str], path: Path) -> dict[str, str]:
    """The texts of a corpus file that are named as removals name them: ``document`` or ``document#paragraph``.

    Raises:
        UserError: the file is missing or damaged.
    """
    wanted = set(names)
    holders = wanted | {name.rpartition("#")[0] for name in wanted}
    return {name: text for name, text in _named(path, holders) if name in wanted}


def _named(path: Path, documents: set[str]) -> Iterator[tuple[str, str]]:
    for document in read_documents(path):
        if document.id in documents:
            yield document.id, document.text
            for position, text in enumerate(paragraphs_of(document.text)):
                yield f"{document.id}#{position}", text


def _bin(words: int) -> int:
    """The smallest power of two that is not below ``words``; 0 for none."""
    return 1 << (words - 1).bit_length() if words else 0
