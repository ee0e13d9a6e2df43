"""Cleaning: normal form, length rule, exact deduplication of paragraphs, each removal with its reason.

Used by the clean stage. Nothing vanishes: a paragraph that is not kept comes out as a ``Removal``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plm_core.corpus.document import Document
from plm_core.corpus.normalize import duplicate_key, normalize, paragraphs
from plm_core.files import sha256_text


@dataclass(frozen=True)
class CleanConfig:
    """Section ``clean`` of the parameters."""

    min_words: int
    """A paragraph with fewer words (separated by white space) is removed: headings, page numbers."""
    max_words: int
    """A paragraph with more words is removed: tables and dumps that lost their line ends."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_words <= self.max_words:
            raise ValueError(f"min_words: {self.min_words} is not between 0 and max_words ({self.max_words})")


@dataclass(frozen=True)
class Removal:
    """A paragraph that was not kept."""

    document: str
    """The id of its document."""
    paragraph: int
    """Its position there, from 0."""
    rule: str
    """``too_short``, ``too_long`` or ``duplicate``."""
    value: str
    """What the rule measured: the number of words, or where the kept copy stands (document id # paragraph)."""
    text: str
    """The paragraph, in normal form."""


def clean(documents: Iterable[Document], config: CleanConfig) -> Iterator[tuple[Document, list[Removal]]]:
    """Yield each document with the paragraphs that it keeps (maybe none: then its text is empty), and its removals.

    The first copy of a paragraph is kept, in the order of the documents: give them sorted by id, and the result
    does not depend on the order in which a source delivers.
    """
    first: dict[str, str] = {}
    for document in documents:
        kept: list[str] = []
        removals: list[Removal] = []
        for position, text in enumerate(paragraphs(normalize(document.text))):
            rule, value = _judge(text, config)
            if rule is None:
                place = f"{document.id}#{position}"
                # 16 bytes of digest instead of the paragraph: memory grows with the count, not with the text.
                original = first.setdefault(sha256_text(duplicate_key(text))[:32], place)
                rule, value = (None, "") if original == place else ("duplicate", original)
            if rule is None:
                kept.append(text)
            else:
                removals.append(Removal(document.id, position, rule, value, text))
        yield Document(document.id, "\n\n".join(kept), document.source, document.metadata), removals


def _judge(text: str, config: CleanConfig) -> tuple[str | None, str]:
    words = len(text.split())
    if words < config.min_words:
        return "too_short", str(words)
    if words > config.max_words:
        return "too_long", str(words)
    return None, ""
