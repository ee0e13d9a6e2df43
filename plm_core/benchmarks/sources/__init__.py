"""The sources of a task's examples: published files or the hub, the corpus, or a team's own folder.

Used by the stage examples.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from plm_core.benchmarks.examples import SPLITS, Example
from plm_core.benchmarks.sources import files, texts
from plm_core.benchmarks.splits import grouped, hold_out
from plm_core.benchmarks.table import TASKS, Columns
from plm_core.benchmarks.task import METRICS, GlueTask, Kind, iob2
from plm_core.config import UserError, did_you_mean, from_dict, section

NEEDED = {
    "classification": ("a", "label"),
    "regression": ("a", "label"),
    "multiple_choice": ("a", "choices", "label"),
    "token_classification": ("labels",),
    "question_answering": (),
}
"""The fields that a team's own task of each kind must state, in addition to kind and score."""
OPTIONAL = {
    "classification": ("b", "labels", "symmetric", "id", "group"),
    "regression": ("b", "labels", "symmetric", "id", "group"),
    "multiple_choice": ("b", "labels", "id", "group"),
    "token_classification": (),
    "question_answering": ("labels", "unanswerable"),
}
"""The fields that it may state."""
OF_ALL = ("input", "kind", "score", "metrics", "question")


@section
class ExamplesConfig:
    """A section of ``examples`` in the parameters. A task of the table states only its ``input``."""

    input: str
    """The input, tracked by DVC. For a published task: its folder of the official download; for GLUE also the manifest
    (JSON) that pins ``nyu-mll/glue`` on the hub. For a task from the corpus: the splits. For a task of your own: a
    folder with ``train``, ``test`` and optionally ``valid``, each as .tsv (nothing is quoted), .csv or .jsonl; for
    ``token_classification`` as .conll or .txt in columns, tags in IOB2; for ``question_answering`` as .json in SQuAD's
    layout."""
    kind: Kind | None = None
    """The kind of your own task: whether its labels are classes, numbers, the right one of several texts, tags of
    words, or answers that occur in a text."""
    a: str | None = None
    """The column of the text, or of the first of two."""
    b: str | None = None
    """The column of the second text; for ``multiple_choice``, of what precedes each of the texts, if anything."""
    choices: list[str] = field(default_factory=list)
    """The columns of the texts to choose from; or the one column of a .jsonl that has them as a list."""
    label: str | None = None
    """The column of the label."""
    labels: list[str] = field(default_factory=list)
    """The names of the classes; for a multiple choice, how the label writes each place ([]: 0, 1, ...); for tagged
    words, the types of entities, such as PER."""
    score: str | None = None
    """The main score of the task, such as ``accuracy``, ``f1:billing``, ``pearson+spearman`` (their mean),
    ``entity_f1``, ``exact_match+answer_f1``."""
    metrics: list[str] = field(default_factory=list)
    """What is measured in addition to the score; []: all metrics of this kind."""
    question: str | None = None
    """The question that the labels answer, for the report."""
    symmetric: bool = False
    """Whether the order of the two texts does not matter."""
    id: str | None = None
    """The column of a unique id; null: the number of the row."""
    group: str | None = None
    """The column of what several examples have in common, such as their document or customer: they are held out
    together, and are one independent observation when models are compared. null: examples with a text in common count
    as one."""
    unanswerable: bool = False
    """Whether a question may have no answer in its text."""


@dataclass(frozen=True)
class Read:
    """A task with its examples."""

    task: GlueTask
    splits: dict[str, list[Example]]
    """The examples of train, valid and test."""
    counts: dict[str, int]
    """What the source counted."""
    warnings: list[str]
    """What people should know about the data, one line each."""


def read_source(name: str, config: ExamplesConfig) -> Read:
    """The task of the section ``examples.<name>`` and its examples.

    Raises:
        UserError: the task is unknown, its description is invalid, or the data does not fit it; the message names the
            place.
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    counts: dict[str, int] = {}
    warnings: list[str] = []
    task = task_of(name, config)
    row = TASKS.get(name)
    if row is None:
        columns = Columns(str(config.a), config.b, str(config.label), config.id, tuple(config.choices), config.group)
        splits = files.read_own(task, _folder(name, config), columns)
    elif row.published is None:
        splits, warnings = texts.read(name, _folder(name, config))
    else:
        splits, counts, warnings = files.read_published(task, row.published, Path(config.input))
    if held_out := "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"])
    for split in SPLITS:
        if not splits[split]:
            raise UserError(
                f"{config.input}: gives no example for {split} (examples.{name}); expected at least one; add to it, or "
                f"take {name} out of examples and finetune.tasks"
            )
    # Every class, and every type of entity, must occur in the training set.
    needed = {
        "classification": task.labels,
        "token_classification": tuple(tag for tag in task.labels if tag.startswith("B-")),
    }.get(task.kind, ())
    found, held = ({i for e in splits[split] for i in (e.tags or (e.label,))} for split in ("train", "valid"))
    for label in needed:
        if (place := task.labels.index(label)) not in found:
            why = " (all of them were held out for validation)" if held_out and place in held else ""
            raise UserError(
                f"{config.input}: no example of the class {label!r} to train on{why}; expected some of each of "
                f"{', '.join(needed)} (examples.{name})"
            )
    return Read(task, {split: grouped(splits[split]) for split in SPLITS}, counts, warnings)


def task_of(name: str, config: ExamplesConfig) -> GlueTask:
    """The task that the section ``examples.<name>`` names or describes; no data is read.

    Raises:
        UserError: the task is unknown, or its description is invalid.
    """
    if name not in TASKS:
        return _described(name, config)
    if config != ExamplesConfig(config.input):
        raise UserError(
            f"examples.{name}: is a task of the table; expected `input` alone, or another name for your own"
        )
    return TASKS[name].task


def _described(name: str, config: ExamplesConfig) -> GlueTask:
    where = f"examples.{name}"
    kind = config.kind or "classification"
    score = str(config.score)
    for field_name in ("kind", *NEEDED[kind], "score"):
        if not getattr(config, field_name):
            close = did_you_mean(name, TASKS) if config == ExamplesConfig(config.input) else ""
            hint = f"unknown task{close}" if close else f"not a task of the table ({', '.join(TASKS)})"
            states = ", ".join(("kind", *NEEDED[kind], "score"))
            raise UserError(f"{where}: {hint}; a task of your own states {states} ({field_name} is missing)")
    for other in fields(config):
        if other.name not in (*OF_ALL, *NEEDED[kind], *OPTIONAL[kind]) and getattr(config, other.name):
            raise UserError(f"{where}.{other.name}: has no meaning for the kind {kind}; expected it left out")
    labels = config.labels
    question = f"{config.label}: {', '.join(labels) or 'which number'}?"
    if kind == "token_classification":
        question = f"Which words name {', '.join(labels)}?"
        labels = [*iob2(labels)]
    elif kind == "question_answering":
        question = f"Where in the text is the answer{', if it is there' if config.unanswerable else ''}?"
    elif kind == "multiple_choice":
        question = f"{config.label}: which of {', '.join(config.choices)}?"
        many = len(config.choices)
        if many == 1 and not labels:
            raise UserError(f"{where}.labels: missing; expected how the label writes each place of {config.choices[0]}")
        if many > 1 and labels and len(labels) != many:
            raise UserError(f"{where}.labels: {len(labels)} for {many} choices; expected one each, or none")
        labels = labels or [str(place) for place in range(many)]
    metrics = config.metrics or [*METRICS[kind]]
    given: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "question": config.question or question,
        "labels": labels,
        "metrics": [*metrics, *(part for part in score.split("+") if part not in metrics)],
        "score": score,
        "symmetric": config.symmetric,
        "unanswerable": config.unanswerable,
    }
    return from_dict(GlueTask, given, where)


def _folder(name: str, config: ExamplesConfig) -> Path:
    folder = Path(config.input)
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder; expected one with the examples (examples.{name}.input)")
    return folder
