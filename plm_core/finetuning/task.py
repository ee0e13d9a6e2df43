"""What a GLUE-like task is, apart from its data: ``task.json`` beside its examples. Read by finetune and the report."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from plm_core.config import BadInput, from_dict
from plm_core.files import RESTORE

FILE = "task.json"
METRICS = {"classification": ("accuracy", "macro_f1", "matthews"), "regression": ("pearson", "spearman")}
"""The metrics of each kind, by the names of ``plm_core.evaluation.metrics``; ``f1:<class>`` besides."""


@dataclass(frozen=True)
class GlueTask:
    """A GLUE-like task."""

    name: str
    """By which `examples` and `finetune.tasks` call it."""
    kind: Literal["classification", "regression"]
    question: str
    """What its labels answer, for the report."""
    labels: tuple[str, ...]
    """The classes, in the order of their ids; none for a regression."""
    metrics: tuple[str, ...]
    """What is measured: names of ``METRICS``, and ``f1:<class>``, the F1 of that class."""
    score: str
    """The figure that stands for the task: a metric, or the mean of several, written ``accuracy+f1:duplicate``. A class
    with a ``+`` in its name cannot stand there."""
    symmetric: bool = False
    """Whether the order of the two texts means nothing."""
    span: tuple[float, ...] | None = None
    """The least and the largest number of a regression; None: any."""

    def __post_init__(self) -> None:
        if self.kind == "regression" and self.labels:
            raise ValueError(f"labels: found {', '.join(self.labels)}; expected none for a regression")
        if self.kind == "classification":
            _require_labels(self.labels)
        for field, names in (("score", tuple(self.score.split("+"))), ("metrics", self.metrics)):
            for name in names:
                if name not in self.known_metrics():
                    known = ", ".join(self.known_metrics())
                    raise ValueError(f"{field}: found {name!r}; expected names among {known}")

    def known_metrics(self) -> list[str]:
        """The metrics that can be measured on this task."""
        return [*METRICS[self.kind], *(f"f1:{label}" for label in self.labels)]


def write_task(folder: Path, task: GlueTask) -> None:
    """Write ``task.json``."""
    (folder / FILE).write_text(json.dumps(asdict(task), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task(folder: Path) -> GlueTask:
    """The task in a folder of examples.

    Raises:
        BadInput: its ``task.json`` is missing or damaged.
    """
    path = folder / FILE
    try:
        return from_dict(GlueTask, json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: missing; run the stage that writes it (`dvc repro examples`)") from None
    except ValueError as error:
        raise BadInput(f"{path}: {error}; {RESTORE}") from error


def _require_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2:
        raise ValueError(f"labels: found {list(labels)}; expected the names of at least two classes")
    for label in labels:
        if not label or label != label.strip() or not label.isprintable():
            raise ValueError(f"labels: found {label!r}; expected printable names without white space around them")
        if labels.count(label) > 1:
            raise ValueError(f"labels: {label!r} stands twice; expected names that differ")
