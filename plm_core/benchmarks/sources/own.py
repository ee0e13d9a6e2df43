"""A team's own task: a folder with ``train``, ``test`` and optionally ``valid``, in the layout of its kind."""

from pathlib import Path

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.sources import conll, squad
from plm_core.benchmarks.sources.rows import Reader, file_rows
from plm_core.benchmarks.table import Columns
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError

TABLES = (".tsv", ".csv", ".jsonl")
FORMATS = {"token_classification": (".conll", ".txt"), "question_answering": (".json",)}
"""File extensions by kind; all others have ``TABLES``."""


def read(task: GlueTask, folder: Path, columns: Columns) -> dict[str, list[Example]]:
    """The examples of each split; of ``valid`` only if there is such a file.

    Raises:
        UserError: a file is missing or holds no example, or a row is not an example.
    """
    reader = Reader(task, columns, {label: i for i, label in enumerate(task.labels)})
    splits: dict[str, list[Example]] = {}
    places: dict[str, str] = {}
    for split in ("train", "valid", "test"):
        if file := _file(folder, split, FORMATS.get(task.kind, TABLES)):
            if task.kind == "token_classification":
                splits[split], _ = conll.read(task, file, split)
            elif task.kind == "question_answering":
                splits[split] = squad.read(task, file, places)
            else:
                splits[split] = list(reader.read(file_rows(file), split))
            if not splits[split]:
                raise UserError(f"{file}: no example in it; expected at least one")
    return splits


def _file(folder: Path, split: str, formats: tuple[str, ...]) -> Path | None:
    found = [path for suffix in formats if (path := folder / f"{split}{suffix}").is_file()]
    if len(found) > 1:
        raise UserError(f"{found[0]}: {found[1].name} exists too; expected one file of this split")
    if not found and split != "valid":
        names = ", ".join(f"{split}{suffix}" for suffix in formats)
        raise UserError(f"{folder}: has no file {split}; expected {'one of ' if len(formats) > 1 else ''}{names}")
    return found[0] if found else None
