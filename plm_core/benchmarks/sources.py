"""The sources of a task's examples: published files or the hub, the corpus, or a team's own folder.

Most official test sets have no labels. Their dev set is the test split here, as for the dev scores in the literature;
the validation split is held out of the training set if none is published. GLUE's files and the hub's dataset give the
same examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plm_core.benchmarks import texts
from plm_core.benchmarks.examples import SPLITS, Example
from plm_core.benchmarks.readers import Columns, Layout
from plm_core.benchmarks.splits import grouped, hold_out
from plm_core.benchmarks.table import TASKS, Part, Published
from plm_core.benchmarks.task import KINDS, ExamplesConfig, GlueTask, described
from plm_core.config import UserError, did_you_mean
from plm_core.corpus.hub import HubPin, hub_rows, read_pin

RAGGED = ("wrong_fields", "broken_csv", "empty_text")
"""The reasons for which a row of a ragged file is dropped."""


@dataclass(frozen=True)
class Read:
    """A task with its examples."""

    task: GlueTask
    splits: dict[str, list[Example]]
    """The examples of train, valid and test."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows of each published part, those that were published, and the dropped ones by reason."""
    warnings: list[str] = field(default_factory=list)
    """What people should know about the data, one line each."""


def task_of(name: str, config: ExamplesConfig) -> GlueTask:
    """The task that the section ``examples.<name>`` names or describes; no data is read.

    Raises:
        UserError: the task is unknown, or its description is invalid.
    """
    bare = config == ExamplesConfig(config.input)
    if name not in TASKS:
        close = did_you_mean(name, TASKS) if bare else ""
        unknown = f"unknown task{close}" if close else f"not a task of the table ({', '.join(TASKS)})"
        return described(name, config, unknown)
    if not bare:
        raise UserError(
            f"examples.{name}: is a task of the table; expected `input` alone, or another name for your own"
        )
    return TASKS[name].task


def read_source(name: str, config: ExamplesConfig) -> Read:
    """The task of the section ``examples.<name>`` and its examples.

    Raises:
        UserError: the task is unknown, its description is invalid, or the data does not fit it; the message names the
            place.
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    task = task_of(name, config)
    row = TASKS.get(name)
    folder = Path(config.input)
    if row is not None and row.published is not None:
        found = read_published(task, row.published, folder)
    elif not folder.is_dir():
        raise UserError(f"{folder}: not a folder; expected one with the examples (examples.{name}.input)")
    elif row is not None:
        splits, warnings = texts.read(name, folder)
        found = Read(task, splits, warnings=warnings)
    else:
        columns = Columns(str(config.a), config.b, str(config.label), config.id, tuple(config.choices), config.group)
        found = Read(task, read_own(task, folder, columns))
    splits = found.splits
    if held_out := "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"])
    for split in SPLITS:
        if not splits[split]:
            raise UserError(
                f"{config.input}: gives no example for {split} (examples.{name}); expected at least one; add to it, or "
                f"take {name} out of examples and finetune.tasks"
            )
    # Every class, and every type of entity, must occur in the training set.
    needed = KINDS[task.kind].to_train_on(task)
    known, held = ({i for e in splits[split] for i in (e.tags or (e.label,))} for split in ("train", "valid"))
    for label in needed:
        if (place := task.labels.index(label)) not in known:
            why = " (all of them were held out for validation)" if held_out and place in held else ""
            raise UserError(
                f"{config.input}: no example of the class {label!r} to train on{why}; expected some of each of "
                f"{', '.join(needed)} (examples.{name})"
            )
    return Read(task, {split: grouped(splits[split]) for split in SPLITS}, found.counts, found.warnings)


def read_own(task: GlueTask, folder: Path, columns: Columns) -> dict[str, list[Example]]:
    """The examples of each split of a team's own task, in the layout of its kind; of ``valid`` only if there is a file.

    Raises:
        UserError: a file is missing or holds no example, or a row is not an example.
    """
    kind = KINDS[task.kind]
    reader = kind.reader(task, Layout(columns, {label: i for i, label in enumerate(task.labels)}))
    splits: dict[str, list[Example]] = {}
    for split in SPLITS:
        files = [path for suffix in kind.formats if (path := folder / f"{split}{suffix}").is_file()]
        if len(files) > 1:
            raise UserError(f"{files[0]}: {files[1].name} exists too; expected one file of this split")
        if not files and split != "valid":
            names = ", ".join(f"{split}{suffix}" for suffix in kind.formats)
            one_of = "one of " if len(kind.formats) > 1 else ""
            raise UserError(f"{folder}: has no file {split}; expected {one_of}{names}")
        for file in files:
            splits[split] = list(reader.read(reader.open(file), split))
            if not splits[split]:
                raise UserError(f"{file}: no example in it; expected at least one")
    return splits


def read_published(task: GlueTask, published: Published, source: Path) -> Read:
    """The examples of the splits from a folder, or from the hub if ``source`` is a manifest.

    Raises:
        UserError: a file is missing, a row is not an example, or the hub does not have what the manifest says.
        OSError: the hub cannot be reached.
    """
    files = source.is_dir()
    columns = published.columns if files else published.hub
    if columns is None and not files:
        raise UserError(f"{source}: not a folder; expected one with the files of {published.folder}")
    codes = {str(i) if files and published.coded else label: i for i, label in enumerate(task.labels)}
    layout = Layout(columns, codes, RAGGED if published.ragged else (), iob1=True)
    reader = KINDS[task.kind].reader(task, layout)
    splits: dict[str, list[Example]] = {}
    counts: dict[str, int] = {}
    warnings = []
    pin = None if files else read_pin(HubPin, source)
    for part in published.parts:
        if pin is None:
            rows = reader.open(_file(part, published, source), published.header)
        else:
            rows = _hub_rows(pin, task, part, source)
        examples = list(reader.read(rows, part.file, part.subset))
        splits.setdefault(part.file if part.file in ("train", "valid") else "test", []).extend(examples)
        # The rows that the part has and should have; a row with an empty text counts.
        dropped = {reason: n for (name, reason), n in sorted(reader.dropped.items()) if name == part.file}
        many = len(examples) + dropped.get("empty_text", 0)
        counts |= {f"{part.file}_rows": many, f"{part.file}_rows_published": part.rows}
        counts |= {f"{part.file}_dropped_{reason}": n for reason, n in dropped.items()}
        if many != part.rows:
            warnings.append(
                f"{task.name}: {part.file} has {many:,} rows, but {part.rows:,} are published; "
                "scores are not comparable with the literature"
            )
        if dropped:
            reasons = ", ".join(f"{n} for {reason}" for reason, n in dropped.items())
            warnings.append(f"{task.name}: {part.file}: rows dropped, as official readers do: {reasons}")
    return Read(task, splits, counts | reader.counts, warnings)


def _file(part: Part, published: Published, folder: Path) -> Path:
    """The existing file among the names that the part's file may have."""
    files = [folder / name for name in part.names or (f"{part.file}.tsv",)]
    for file in files:
        if file.is_file():
            return file
    also = "".join(f" (or {other.name})" for other in files[1:])
    raise UserError(
        f"{files[0]}{also}: missing; expected the official layout, the files of its folder {published.folder}"
    )


def _hub_rows(pin: HubPin, task: GlueTask, part: Part, manifest: Path) -> Iterator[tuple[str, Any]]:
    place = f"{manifest}: {pin.dataset} {task.name} {part.hub}"
    for number, row in enumerate(hub_rows(pin, task.name, part.hub, manifest, named=True), start=1):
        yield f"{place}:{number}", row
