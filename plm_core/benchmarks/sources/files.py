"""The files of a task: a team's own, or those of a published task of the table, for GLUE also the hub's dataset, which
gives the same examples.

Most official test sets have no labels. Their dev set is the test split here, as for the dev scores in the literature;
the validation split is held out of the training set if none is published.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.sources import conll, squad
from plm_core.benchmarks.sources.rows import Content, Reader, file_rows
from plm_core.benchmarks.table import Columns, Part, Published
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.corpus.sources.hub import HubPin, hub_rows, read_pin

TABLES = (".tsv", ".csv", ".jsonl")
FORMATS = {"token_classification": (".conll", ".txt"), "question_answering": (".json",)}
"""The file extensions of a team's own task, by kind; all others have ``TABLES``."""
RAGGED = ("wrong_fields", "broken_csv", "empty_text")
"""The reasons for which a row of a ragged file is dropped."""


class Found(NamedTuple):
    """The published examples of a task."""

    splits: dict[str, list[Example]]
    counts: dict[str, int]
    """Rows of each part, the published ones, and the dropped ones by reason."""
    warnings: list[str]


def read_own(task: GlueTask, folder: Path, columns: Columns) -> dict[str, list[Example]]:
    """The examples of each split of a team's own task, in the layout of its kind; of ``valid`` only if there is a file.

    Raises:
        UserError: a file is missing or holds no example, or a row is not an example.
    """
    reader = Reader(task, columns, {label: i for i, label in enumerate(task.labels)})
    formats = FORMATS.get(task.kind, TABLES)
    splits: dict[str, list[Example]] = {}
    places: dict[str, str] = {}
    for split in ("train", "valid", "test"):
        files = [path for suffix in formats if (path := folder / f"{split}{suffix}").is_file()]
        if len(files) > 1:
            raise UserError(f"{files[0]}: {files[1].name} exists too; expected one file of this split")
        if not files and split != "valid":
            names = ", ".join(f"{split}{suffix}" for suffix in formats)
            raise UserError(f"{folder}: has no file {split}; expected {'one of ' if len(formats) > 1 else ''}{names}")
        for file in files:
            if task.kind == "token_classification":
                splits[split], _ = conll.read(task, file, split)
            elif task.kind == "question_answering":
                splits[split] = squad.read(task, file, places)
            else:
                splits[split] = list(reader.read(file_rows(file), split))
            if not splits[split]:
                raise UserError(f"{file}: no example in it; expected at least one")
    return splits


def read_published(task: GlueTask, published: Published, source: Path) -> Found:
    """The examples of the splits from a folder, or from the hub if ``source`` is a manifest.

    Raises:
        UserError: a file is missing, a row is not an example, or the hub does not have what the manifest says.
        OSError: the hub cannot be reached.
    """
    files = source.is_dir()
    columns = published.columns if files else published.hub
    dropped = Counter[tuple[str, str]]()
    counts = Counter[str]()
    if columns is None:
        # The kinds whose files are not tables.
        if not files:
            raise UserError(f"{source}: not a folder; expected one with the files of {published.folder}")
        places: dict[str, str] = {}
        parts = {}
        for part in published.parts:
            file = _file(part, published, source)
            if task.kind == "question_answering":
                parts[part] = squad.read(task, file, places)
            else:
                parts[part], found = conll.read(task, file, part.file, iob1=True)
                counts.update({f"{part.file}_{name}": n for name, n in found.items()})
    else:
        coded = files and published.coded
        codes = {str(i) if coded else label: i for i, label in enumerate(task.labels)}
        reader = Reader(task, columns, codes, RAGGED if published.ragged else ())
        in_files = ((part, file_rows(_file(part, published, source), published.header)) for part in published.parts)
        rows = in_files if files else _hub_parts(task, published, source)
        parts = {part: list(reader.read(content, part.file, part.subset)) for part, content in rows}
        dropped = reader.dropped
    splits: dict[str, list[Example]] = {}
    for part, examples in parts.items():
        splits.setdefault(part.file if part.file in ("train", "valid") else "test", []).extend(examples)
    compared, warnings = _compared(task, parts, dropped)
    return Found(splits, compared | counts, warnings)


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


def _hub_parts(
    task: GlueTask, published: Published, manifest: Path
) -> Iterator[tuple[Part, Iterator[tuple[str, Content]]]]:
    pin = read_pin(HubPin, manifest)
    for part in published.parts:
        rows = hub_rows(pin, task.name, part.hub, manifest, named=True)
        place = f"{manifest}: {pin.dataset} {task.name} {part.hub}"
        yield part, ((f"{place}:{number}", row) for number, row in enumerate(rows, start=1))


def _compared(
    task: GlueTask, parts: Mapping[Part, list[Example]], all_dropped: Mapping[tuple[str, str], int]
) -> tuple[dict[str, int], list[str]]:
    """The rows that each part has and should have; a row with an empty text counts."""
    counts: dict[str, int] = {}
    warnings = []
    for part, examples in parts.items():
        dropped = {reason: n for (name, reason), n in all_dropped.items() if name == part.file}
        rows = len(examples) + dropped.get("empty_text", 0)
        counts |= {f"{part.file}_rows": rows, f"{part.file}_rows_published": part.rows}
        counts |= {f"{part.file}_dropped_{reason}": n for reason, n in sorted(dropped.items())}
        if rows != part.rows:
            warnings.append(
                f"{task.name}: {part.file} has {rows:,} rows, but {part.rows:,} are published; "
                "scores are not comparable with the literature"
            )
        if dropped:
            reasons = ", ".join(f"{n} for {reason}" for reason, n in sorted(dropped.items()))
            warnings.append(f"{task.name}: {part.file}: rows dropped, as official readers do: {reasons}")
    return counts, warnings
