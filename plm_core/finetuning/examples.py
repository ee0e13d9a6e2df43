"""Examples for fine-tuning made from the corpus's own labels, split by document. Used by the task table."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.corpus.normalize import paragraphs
from plm_core.files import sha256_text

MIN_WORDS, MAX_WORDS = 15, 200
"""Paragraphs outside say too little, or more than a small context holds."""


@dataclass(frozen=True)
class Example:
    """One or two texts and their class."""

    id: str
    """Unique within the task: the document and paragraph it comes from."""
    a: str
    """The text, or the first of the pair."""
    b: str | None
    """The second of the pair; None for a task of one text."""
    label: int
    """The class id."""

    @property
    def sha256(self) -> str:
        """The digest of the texts, by which two evaluations know that they saw the same example."""
        return sha256_text(self.a if self.b is None else f"{self.a}\x1f{self.b}")


def eras(documents: Sequence[Document]) -> Iterator[Example]:
    """One paragraph and the era of its document: class 0 before 1865, 1 from 1865 to 1944, 2 from 1945 on."""
    for document in documents:
        year = document.metadata.get("year")
        if not isinstance(year, int):
            raise BadInput(
                f"finetune.tasks: sotu-era needs documents with a whole number 'year', {document.id!r} of source "
                f"{document.source!r} has {sorted(document.metadata)}; expected another task, or []"
            )
        label = (year >= 1865) + (year >= 1945)
        for position, text in _paragraphs(document):
            yield Example(f"{document.id}#{position}", text, None, label)


def next_paragraphs(documents: Sequence[Document]) -> Iterator[Example]:
    """A paragraph and, by a fair coin, the one that follows it (class 1) or one of another document (class 0).

    Coin and draw are functions of the paragraph's id, so that an example is the same in every run (Devlin et al. 2019,
    section 3.1, makes its next-sentence pairs so).
    """
    pools = [list(_paragraphs(document)) for document in documents]
    filled = [i for i, pool in enumerate(pools) if pool]
    for index, (document, pool) in enumerate(zip(documents, pools, strict=True)):
        others = [i for i in filled if i != index]
        for (position, a), (following, b) in itertools.pairwise(pool):
            if following != position + 1:
                continue
            identity = f"{document.id}#{position}"
            draw = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16], "big")
            if draw & 1 or not others:
                yield Example(identity, a, b, 1)
            else:
                draw >>= 1
                draw, chosen = divmod(draw, len(others))
                pool_of_other = pools[others[chosen]]
                yield Example(identity, a, pool_of_other[draw % len(pool_of_other)][1], 0)


def sample(examples: Iterable[Example], most: int, seed: int) -> list[Example]:
    """At most ``most`` examples: those whose hash with the seed is smallest, so that new examples move few old ones."""

    def rank(example: Example) -> str:
        return sha256_text(f"{seed}/{example.id}")

    return sorted(examples, key=rank)[:most]


def _paragraphs(document: Document) -> Iterator[tuple[int, str]]:
    for position, text in enumerate(paragraphs(document.text)):
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            yield position, text
