"""Examples made from the corpus itself, split by document: the tasks ``sotu-era``, ``next`` and ``passages``."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plm_core.benchmarks.examples import SPLITS, Example
from plm_core.config import UserError
from plm_core.corpus.document import Document, read_documents, some_of
from plm_core.corpus.normalize import paragraphs, shortened, words_of

MIN_WORDS, MAX_WORDS = 15, 200
"""The fewest and the most words of a paragraph: a shorter one says too little, a longer one exceeds a small context."""
PART, SHORTEST_PART = 500, 20
"""Characters of a part of a document without neighbouring paragraphs: usually and at least."""
READ_BYTES = 1 << 26
"""The most bytes of a split's text that are read, evenly spread over it: some hundred thousand examples."""
SEAM = 32
"""The words that a pair has of each passage, next to where they meet: they fit a small context. With two whole
paragraphs a context of 128 tokens would cut four pairs out of five."""
SHORTEST_QUERY = 5
"""The fewest words of a query."""
ENDS = (re.compile(r"[.!?]\s+|[。！？]"), re.compile(r"\s+"))
"""Where a part or a query may end: after a sentence, or otherwise after a word."""


def eras(documents: Sequence[Document]) -> Iterator[Example]:
    """One paragraph and the era of its document: class 0 before 1865, 1 from 1865 to 1944, 2 from 1945 on."""
    for document in documents:
        year = document.metadata.get("year")
        if not isinstance(year, int):
            raise UserError(
                f"examples.sotu-era: needs documents with a whole number 'year', {document.id!r} of source "
                f"{document.source!r} has {sorted(document.metadata)}; expected another task: remove this section, "
                "and its name in finetune.tasks"
            )
        label = (year >= 1865) + (year >= 1945)
        for position, text in _paragraphs(document):
            yield Example(f"{document.id}#{position}", text, None, label, group=document.id)


def next_passages(documents: Sequence[Document]) -> Iterator[Example]:
    """The end of a passage and, by a fair coin, the beginning of the next passage (class 1) or of one from another
    document (class 0).

    Both follow a passage of their own document, so that B alone reveals nothing. Coin and draw are functions of the
    passage's id, so that an example is the same in every run (Devlin et al. 2019, section 3.1, makes its next-sentence
    pairs so).
    """
    pairs = [(document.id, found) for document in documents if (found := list(_neighbours(document)))]
    for index, (group, own) in enumerate(pairs):
        for identity, a, b in own:
            draw = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16], "big")
            if draw & 1 or len(pairs) == 1:
                yield Example(identity, a, b, 1, group=group)
            else:
                draw, chosen = divmod(draw >> 1, len(pairs) - 1)
                _, other = pairs[chosen + (chosen >= index)]
                yield Example(identity, a, other[draw % len(other)][2], 0, group=group)


def beginnings(documents: Sequence[Document]) -> Iterator[Example]:
    """The beginning of a passage as a query, and the rest of it as what is to be found.

    The query is taken out of the passage, as in the inverse cloze task (Lee et al. 2019, section 4): its first
    sentence or, in a document without passages of several sentences, its first words. A passage is left out if the
    query occurs in its rest.
    """
    for document in documents:
        passages = list(_paragraphs(document)) or list(enumerate(_parts(document.text.strip())))
        for end in ENDS:
            divided = ((position, _divided(" ".join(text.split()), end)) for position, text in passages)
            if found := [(position, pair) for position, pair in divided if pair]:
                for position, (query, rest) in found:
                    yield Example(f"{document.id}#{position}", query, rest, 0, group=document.id)
                break


MADE: dict[str, Callable[[Sequence[Document]], Iterator[Example]]] = {
    "sotu-era": eras,
    "next": next_passages,
    "passages": beginnings,
}


def read(name: str, folder: Path) -> tuple[dict[str, list[Example]], list[str]]:
    """The examples of each split of the corpus, possibly none, and a warning for each split that is not read whole.

    Raises:
        UserError: a split is missing or damaged, or the documents lack what the task needs.
    """
    made = {}
    warnings = []
    for split in SPLITS:
        table = folder / f"{split}.parquet"
        pieces, share = some_of(table, READ_BYTES)
        made[split] = list(MADE[name]([document for piece in pieces for document in read_documents(*piece)]))
        if share < 1:
            warnings.append(f"{table}: examples are made from {share:.2%} of it, evenly spread")
    return made, warnings


def _paragraphs(document: Document) -> Iterator[tuple[int, str]]:
    for position, text in enumerate(paragraphs(document.text)):
        if MIN_WORDS <= len(words_of(text)) <= MAX_WORDS:
            yield position, text


def _neighbours(document: Document) -> Iterator[tuple[str, str, str]]:
    """An id, the end of a passage and the beginning of the one that follows it: paragraphs or, in a document without
    such a pair, its parts."""
    pairs = itertools.pairwise(_paragraphs(document))
    found = [(position, a, b) for (position, a), (following, b) in pairs if following == position + 1]
    if not found:
        parts = itertools.pairwise(_parts(document.text.strip()))
        found = [(i, a, b) for i, (a, b) in enumerate(parts) if min(len(a), len(b)) >= SHORTEST_PART]
    return (
        (f"{document.id}#{i}", shortened(" ".join(a.split()), SEAM, last=True), shortened(" ".join(b.split()), SEAM))
        for i, a, b in found
    )


def _divided(text: str, end: re.Pattern[str]) -> tuple[str, str] | None:
    """A text at its first end after a query of enough words; None if too little follows, or the query again."""
    for place in end.finditer(text):
        rest = text[place.end() :].strip()
        if len(words_of(text[: place.end()])) >= SHORTEST_QUERY:
            query = shortened(text[: place.end()].strip(), SEAM)
            return (query, rest) if len(words_of(rest)) >= MIN_WORDS and query not in rest else None
    return None


def _parts(text: str) -> list[str]:
    """A text in two or more parts of similar length."""
    count = max(2, len(text) // PART)
    reach = len(text) // count // 3
    cuts = [_cut(text, len(text) * i // count, reach) for i in range(1, count)]
    return [text[start:end].strip() for start, end in itertools.pairwise([0, *cuts, len(text)])]


def _cut(text: str, middle: int, reach: int) -> int:
    """The end of a sentence, or otherwise of a word, nearest to the middle; the middle if none is in reach."""
    for end in ENDS:
        if found := [match.end() for match in end.finditer(text, middle - reach, middle + reach)]:
            return min(found, key=lambda place: abs(place - middle))
    return middle
