"""A GLUE-like task without its data: ``task.json`` next to its examples. Read by finetune and the report."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from plm_core.config import UserError, from_dict, section
from plm_core.files import RESTORE, verify_checksums

FILE = "task.json"
Kind = Literal["classification", "regression", "multiple_choice", "token_classification", "question_answering"]
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "multiple_choice": ("accuracy",),
    "token_classification": ("entity_f1",),
    "question_answering": ("exact_match", "answer_f1"),
}
"""The metrics of each kind, by the names of ``plm_core.evaluation.metrics``; for classes also ``f1:<class>``."""
OUTSIDE = "O"
"""The tag of a word outside entities."""


@section
class GlueTask:
    """A GLUE-like task."""

    name: str
    """The name in `examples` and `finetune.tasks`."""
    kind: Kind
    """One or two texts have a class, or a number; one of several texts fits; each word has a tag; the answer to a
    question occurs in a text."""
    question: str
    """The question that its labels answer, for the report."""
    labels: tuple[str, ...]
    """The classes, in the order of their ids; for a multiple choice, the names of the places; for tagged words, the
    tags in IOB2: ``O``, and ``B-<type>`` and ``I-<type>`` of every type; otherwise none."""
    metrics: tuple[str, ...]
    """What is measured: names of ``METRICS``, and ``f1:<class>``, the F1 of that class."""
    score: str
    """The main score of the task: a metric, or the mean of several, written ``accuracy+f1:duplicate``. A class with a
    ``+`` in its name cannot be used there."""
    symmetric: bool = False
    """Whether the order of the two texts does not matter."""
    span: tuple[float, ...] | None = None
    """The least and the largest number of a regression; None: any."""
    unanswerable: bool = False
    """Whether there may be no answer in the text (Rajpurkar et al. 2018)."""
    follows: bool = False
    """Whether the second text is asked about as the continuation of the first, whose end is kept if it is cut."""

    def __post_init__(self) -> None:
        if self.kind in ("regression", "question_answering") and self.labels:
            raise ValueError(f"labels: found {', '.join(self.labels)}; expected none for a {self.kind}")
        if self.kind in ("classification", "multiple_choice"):
            _require_labels(self.labels)
        if self.kind == "token_classification" and (len(self.labels) < 3 or self.labels != iob2(types_of(self.labels))):
            raise ValueError(f"labels: found {list(self.labels)}; expected O, B-<type>, I-<type>, B-<type>, ...")
        if self.kind == "token_classification" and any(len(label.split()) != 1 for label in self.labels):
            raise ValueError(f"labels: found {list(self.labels)}; expected types without whitespace")
        for field, names in (("score", tuple(self.score.split("+"))), ("metrics", self.metrics)):
            for name in names:
                if name not in self.known_metrics():
                    known = ", ".join(self.known_metrics())
                    raise ValueError(f"{field}: found {name!r}; expected names among {known}")

    def known_metrics(self) -> list[str]:
        """The metrics that can be measured on this task."""
        return [*METRICS[self.kind], *(f"f1:{label}" for label in self.labels if self.kind == "classification")]


def iob2(types: Iterable[str]) -> tuple[str, ...]:
    """The tags of entities of these types: ``B-`` begins one, ``I-`` continues it."""
    return (OUTSIDE, *(f"{prefix}-{of}" for of in types for prefix in "BI"))


def types_of(tags: Iterable[str]) -> list[str]:
    """The types of entities that these tags begin."""
    return [tag.removeprefix("B-") for tag in tags if tag.startswith("B-")]


def write_task(folder: Path, task: GlueTask) -> None:
    """Write ``task.json``."""
    (folder / FILE).write_text(json.dumps(asdict(task), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task(folder: Path) -> GlueTask:
    """The task in a folder of examples.

    Raises:
        UserError: its ``task.json`` is missing or damaged.
    """
    path = folder / FILE
    try:
        return from_dict(GlueTask, json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro examples`)") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}; {RESTORE}") from error


def verified_task(folder: Path) -> GlueTask:
    """The task in a folder of examples, none of whose files is missing or damaged; otherwise UserError."""
    verify_checksums(folder)
    return read_task(folder)


def _require_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2:
        raise ValueError(f"labels: found {list(labels)}; expected the names of at least two classes")
    for label in labels:
        if not label or label != label.strip() or not label.isprintable():
            raise ValueError(f"labels: found {label!r}; expected printable names without whitespace around them")
        if labels.count(label) > 1:
            raise ValueError(f"labels: {label!r} appears twice; expected names that differ")
