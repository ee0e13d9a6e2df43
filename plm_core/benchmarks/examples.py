"""An example of a GLUE-like task, and its file: JSON lines, one per example, byte-identical on every machine.

Written by the stage examples, read by finetune.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.files import RESTORE, sha256_text

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


def write_examples(path: Path, examples: Iterable[Example], task: GlueTask) -> None:
    """Write one JSON object per line: id, a, b (if any), the right answer, subset and group (if any).

    The right answer is ``label``, with ``choices`` if there are any; ``tags``; or ``answers``, each ``[text, start]``.
    Classes are written by name, numbers with all their digits, text as UTF-8.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for example in examples:
            file.write(json.dumps(_fields(example, task), ensure_ascii=False, allow_nan=False) + "\n")


def read_examples(path: Path, task: GlueTask) -> list[Example]:
    """The examples of a file that ``write_examples`` wrote, in order.

    Raises:
        UserError: the file is missing or damaged; the message names the line.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro examples`)")
    examples = []
    classes = {name: i for i, name in enumerate(task.labels)}
    with path.open("rb") as file:  # a line ends at \n alone: a text may contain what other readers take for its end
        for number, line in enumerate(file, start=1):
            try:
                examples.append(_example(json.loads(line.decode("utf-8")), task, classes))
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}:{number}: {error!r}; expected an example of {task.name}; {RESTORE}") from error
    return examples


def sample(examples: Iterable[Example], most: int | None) -> list[Example]:
    """At most ``most`` examples (None: all): those with the smallest hashes of ids, so that new ones displace few."""
    return sorted(examples, key=lambda example: sha256_text(example.id))[:most]


def _fields(example: Example, task: GlueTask) -> dict[str, Any]:
    true: dict[str, Any]
    if task.kind == "token_classification":
        true = {"tags": [task.labels[tag] for tag in example.tags]}
    elif task.kind == "question_answering":
        true = {"answers": example.answers}
    else:
        choices = {"choices": example.choices} if example.choices else {}
        true = choices | {"label": task.labels[int(example.label)] if task.labels else float(example.label)}
    pair = {} if example.b is None else {"b": example.b}
    part = {name: value for name in ("subset", "group") if (value := getattr(example, name))}
    return {"id": example.id, "a": example.a, **pair, **true, **part}


def _example(fields: dict[str, Any], task: GlueTask, classes: dict[str, int]) -> Example:
    found: dict[str, Any] = {"label": 0}
    if task.kind == "token_classification":
        found["tags"] = tuple(classes[tag] for tag in fields["tags"])
    elif task.kind == "question_answering":
        found["answers"] = tuple(Answer(str(text), int(start)) for text, start in fields["answers"])
    else:
        found["label"] = classes[fields["label"]] if classes else fields["label"]
        found["choices"] = tuple(map(str, fields.get("choices", ())))
    parts = {name: fields.get(name, "") for name in ("subset", "group")}
    texts = [fields["id"], fields["a"], fields.get("b", ""), *parts.values()]
    if not all(isinstance(text, str) for text in texts) or not isinstance(found["label"], int | float):
        raise TypeError("a field of another type")
    if not math.isfinite(found["label"]):
        raise ValueError("a label that is not a number")
    example = Example(fields["id"], fields["a"], fields.get("b"), **found, **parts)
    if task.kind == "token_classification" and len(example.tags) != len(example.words):
        raise ValueError(f"{len(example.tags)} tags for {len(example.words)} words")
    return example
