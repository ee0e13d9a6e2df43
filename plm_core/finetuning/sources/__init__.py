"""Where the examples of a task come from: GLUE's files or the hub, the corpus, or a folder of a team's own.

Used by the stage examples.
"""

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from plm_core.config import BadInput, from_dict
from plm_core.finetuning.examples import SPLITS, Example
from plm_core.finetuning.sources import glue, own, speeches
from plm_core.finetuning.splits import hold_out
from plm_core.finetuning.table import TASKS, Columns
from plm_core.finetuning.task import METRICS, GlueTask


@dataclass(frozen=True)
class ExamplesConfig:
    """A section of ``examples`` in the parameters. A task of the table states its ``input`` alone."""

    input: str
    """What is read; DVC watches it. Of a GLUE task: its folder of the official download, or the manifest (JSON) that
    pins ``nyu-mll/glue`` on the hub. Of a task from the corpus: the splits. Of a task of your own: a folder with
    ``train``, ``test`` and perhaps ``valid``, each as .tsv (nothing is quoted), .csv or .jsonl."""
    kind: Literal["classification", "regression"] | None = None
    """Of your own task: whether its labels are classes or numbers."""
    a: str | None = None
    """The column of the text, or of the first of two."""
    b: str | None = None
    """The column of the second text."""
    label: str | None = None
    """The column of the label."""
    labels: list[str] = field(default_factory=list)
    """The names of the classes."""
    score: str | None = None
    """The figure that stands for the task, such as ``accuracy``, ``f1:billing``, ``pearson+spearman`` (their mean)."""
    metrics: list[str] = field(default_factory=list)
    """What is measured beside the score; []: all that is known of this kind."""
    question: str | None = None
    """What the labels answer, for the report."""
    symmetric: bool = False
    """Whether the order of the two texts means nothing."""
    id: str | None = None
    """The column of a unique id; null: the number of the row."""


@dataclass(frozen=True)
class Read:
    """A task with its examples."""

    task: GlueTask
    splits: dict[str, list[Example]]
    """Of train, valid and test."""
    counts: dict[str, int]
    """What the source counted."""
    warnings: list[str]
    """What people should know of the data, a line each."""


def read_source(name: str, config: ExamplesConfig) -> Read:
    """The task of the section ``examples.<name>`` and its examples.

    Raises:
        BadInput: an unknown task, a description that is none, or data that breaks it; the message names the place.
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    counts: dict[str, int] = {}
    warnings: list[str] = []
    row = TASKS.get(name)
    if row is None:
        task, columns = _described(name, config)
        splits = own.read(task, _folder(name, config), columns)
    elif config != ExamplesConfig(config.input):
        raise BadInput(f"examples.{name}: is a task of the table; expected `input` alone, or another name for your own")
    elif row.published is None:
        # What the corpus gives is no mistake of anybody's: a split may be empty, and a class missing.
        return Read(row.task, speeches.read(name, _folder(name, config)), {}, [])
    else:
        task = row.task
        splits, counts, warnings = glue.read(task, row.published, Path(config.input))
    if "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"])
    _require_all(name, task, splits, config.input)
    return Read(task, {split: splits[split] for split in SPLITS}, counts, warnings)


def _described(name: str, config: ExamplesConfig) -> tuple[GlueTask, Columns]:
    where = f"examples.{name}"
    for field_name in ("kind", "a", "label", "score"):
        if getattr(config, field_name) is None:
            close = difflib.get_close_matches(name, TASKS, n=1) if config == ExamplesConfig(config.input) else []
            hint = (
                f"unknown task; did you mean {close[0]!r}?" if close else f"no task of the table ({', '.join(TASKS)})"
            )
            raise BadInput(
                f"{where}: {hint}; a task of your own states kind, a, label, score ({field_name} is missing)"
            )
    kind, score = str(config.kind), str(config.score)
    metrics = config.metrics or [*METRICS[kind]]
    given: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "question": config.question or f"{config.label}: {', '.join(config.labels) or 'which number'}?",
        "labels": config.labels,
        "metrics": [*metrics, *(part for part in score.split("+") if part not in metrics)],
        "score": score,
        "symmetric": config.symmetric,
    }
    columns = Columns(str(config.a), config.b, str(config.label), config.id)
    return from_dict(GlueTask, given, where), columns


def _folder(name: str, config: ExamplesConfig) -> Path:
    folder = Path(config.input)
    if not folder.is_dir():
        raise BadInput(f"{folder}: no folder; expected one with the examples (examples.{name}.input)")
    return folder


def _require_all(name: str, task: GlueTask, splits: dict[str, list[Example]], source: str) -> None:
    for split in SPLITS:
        if not splits[split]:
            raise BadInput(f"{source}: gives no example for {split} (examples.{name}); expected at least one")
    found = {e.label for e in splits["train"]}
    for i, label in enumerate(task.labels):
        if i not in found:
            raise BadInput(
                f"{source}: no example of the class {label!r} to train on; expected some of each of "
                f"{', '.join(task.labels)} (examples.{name})"
            )
