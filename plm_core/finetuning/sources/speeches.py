"""Examples made from the corpus's own labels, split by document: the tasks ``sotu-era`` and ``sotu-next``."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plm_core.config import BadInput
from plm_core.corpus.document import Document, read_documents
from plm_core.corpus.normalize import paragraphs
from plm_core.finetuning.examples import SPLITS, Example

MIN_WORDS, MAX_WORDS = 15, 200
"""Paragraphs outside say too little, or more than a small context holds."""


def eras(documents: Sequence[Document]) -> Iterator[Example]:
    """One paragraph and the era of its document: class 0 before 1865, 1 from 1865 to 1944, 2 from 1945 on."""
    for document in documents:
        year = document.metadata.get("year")
        if not isinstance(year, int):
            raise BadInput(
                f"examples.sotu-era: needs documents with a whole number 'year', {document.id!r} of source "
                f"{document.source!r} has {sorted(document.metadata)}; expected another task: take this section away, "
                "and its name in finetune.tasks"
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


SPEECHES: dict[str, Callable[[Sequence[Document]], Iterator[Example]]] = {
    "sotu-era": eras,
    "sotu-next": next_paragraphs,
}


def read(name: str, folder: Path) -> dict[str, list[Example]]:
    """The examples that each split of the corpus gives; there may be none.

    Raises:
        BadInput: a split is missing or damaged, or the documents lack what the task asks of.
    """
    return {split: list(SPEECHES[name](list(read_documents(folder / f"{split}.parquet")))) for split in SPLITS}


def _paragraphs(document: Document) -> Iterator[tuple[int, str]]:
    for position, text in enumerate(paragraphs(document.text)):
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            yield position, text
