"""An example of a GLUE-like task."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plm_core.files import sha256_text

SPLITS = ("train", "valid", "test")


class Answer(NamedTuple):
    """A right answer to a question."""

    text: str
    """The answer as written in the text."""
    start: int
    """The character of the text at which it begins, from 0."""


@dataclass(frozen=True)
class Example:
    """One or two texts and the right answer."""

    id: str
    """Unique within the task."""
    a: str
    """The text, or the first of the pair; the words of a sentence, joined by spaces; a question."""
    b: str | None
    """The second of the pair, or the text that holds the answer; None for a task of one text. If one of several texts
    is chosen, what precedes each of them, such as the question."""
    label: int | float
    """The id of the class or right choice; the number, for a regression; 0 if there are ``tags`` or ``answers``."""
    subset: str = ""
    """Which part of a test set it belongs to, if there are several: ``matched``, ``mismatched``."""
    tags: tuple[int, ...] = ()
    """The id of the tag of each word."""
    answers: tuple[Answer, ...] = ()
    """The right answers in ``b``; none if the question has none."""
    choices: tuple[str, ...] = ()
    """The texts to choose from."""
    group: str = ""
    """What it has in common with others of its split, such as the document that it was made from; "" if nothing is
    known."""

    @property
    def words(self) -> list[str]:
        """The tagged words, none of which contains a space."""
        return self.a.split(" ")

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that a model reads."""
        return (self.a, *(() if self.b is None else (self.b,)), *self.choices)

    @property
    def sha256(self) -> str:
        """The digest of the texts, which shows that two evaluations saw the same example."""
        return sha256_text("\x1f".join(self.texts))


def file_of(folder: Path, split: str) -> Path:
    """The file with the examples of a split."""
    return folder / f"{split}.jsonl"


def sample(examples: Iterable[Example], most: int | None) -> list[Example]:
    """At most ``most`` examples (None: all): those with the smallest hashes of ids, so that new ones displace few."""
    return sorted(examples, key=lambda example: sha256_text(example.id))[:most]
