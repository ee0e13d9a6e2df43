"""Results from the rows of evidence files, or an error that says what is wrong with them. Used by ``evidence.py``."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation.answers import Answers, Ratios, of_numbers, parts_of
from plm_core.evaluation.seal import opened
from plm_core.evaluation.spans import counts

NEW = ("confidence", "group")
"""Columns that a file may lack: they are read as empty."""
Rows = list[dict[str, str]]


def answers(files: list[Path], score: str, seeds: list[Rows]) -> Answers:
    """The answers of each seed if they are classes or numbers."""
    labels = [row["label"] for row in seeds[0]]
    predictions = [[row["prediction"] for row in rows] for rows in seeds]
    subsets, (strata,) = _coded([[row["subset"] for row in seeds[0]]])
    groups = _groups(seeds[0])
    if of_numbers(score):
        values = [_numbers(files[0], "label", labels)]
        values += [_numbers(path, "prediction", texts) for path, texts in zip(files, predictions, strict=True)]
        classes: tuple[str, ...] = ()
    else:
        classes, values = _coded([labels, *predictions])
    return Answers(score, values[0], np.stack(values[1:]), strata, classes, subsets, groups)


def ratios(files: list[Path], score: str, seeds: list[Rows]) -> Ratios:
    """The answers of each seed if they are tags, texts or choices within a pair."""
    subsets, (strata,) = _coded([[row["subset"] for row in seeds[0]]])
    found = np.empty((2, len(parts_of(score)), len(seeds), len(strata)))
    for s, (path, rows) in enumerate(zip(files, seeds, strict=True)):
        for n, row in enumerate(rows):
            try:
                found[:, :, s, n] = np.transpose(counted(score, row["prediction"], row["label"]))
            except ValueError as error:
                raise UserError(f"{path}: {row['id']!r}: {error}; expected what its stage writes") from error
    return Ratios(score, found[0], found[1], strata, subsets, _groups(seeds[0]))


def counted(score: str, prediction: str, label: str) -> list[tuple[float, float]]:
    """The numerator and denominator of one example, for each part of a score of tags, texts or pairs."""
    return [counts(part, prediction, label) for part, _ in parts_of(score)]


def check_labels(score: str, labels: Sequence[str]) -> None:
    """Raise ValueError for labels for which the score is undefined."""
    if of_numbers(score) and len(set(labels)) < 2:
        raise ValueError(f"all labels are {labels[0]}; expected different labels, because {score} is a correlation")
    for _, of in parts_of(score):
        if of and of not in labels:
            known = ", ".join(sorted(set(labels)))
            raise ValueError(f"no label is {of!r}, whose F1 is the score; expected it among {known}")


def _numbers(path: Path, column: str, texts: list[str]) -> np.ndarray:
    try:
        numbers = np.array([float(text) for text in texts])
    except ValueError as error:
        raise UserError(f"{path}: {error}; expected numbers in the column {column}") from error
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{path}: the column {column} holds {numbers[~np.isfinite(numbers)][0]}; expected finite numbers"
        )
    return numbers


def confidences(path: Path, rows: Rows) -> np.ndarray:
    """``[N]`` probabilities, NaN if the field is empty."""
    found = _numbers(path, "confidence", [row["confidence"] or "0" for row in rows])
    if len(outside := found[(found < 0) | (found > 1)]):
        raise UserError(f"{path}: the column confidence holds {outside[0]}; expected probabilities")
    return np.where([row["confidence"] == "" for row in rows], np.nan, found)


def _coded(texts: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The distinct names in order, and each sequence as positions among them."""
    names = sorted({text for each in texts for text in each})
    position = {name: i for i, name in enumerate(names)}
    return tuple(names), [np.array([position[text] for text in each], dtype=np.int64) for each in texts]


def _groups(rows: Rows) -> np.ndarray:
    """``[N]``: the number of each example's group; an example without one is a group of its own."""
    _, (numbers,) = _coded([[row["group"] or f"\x1f{row['id']}" for row in rows]])
    return numbers


def content(rows: Rows) -> list[tuple[str, ...]]:
    """The columns that are the same for every seed."""
    return [tuple(row[name] for name in ("id", "sha256", "subset", "label", "measured")) for row in rows]


def examples(rows: Rows, *content: str) -> frozenset[tuple[str, str, str, str]]:
    """Each row's id, sha256 and measured, and the columns ``content`` joined."""
    return frozenset(
        (row["id"], row["sha256"], row["measured"], "\x1f".join(row[name] for name in content)) for row in rows
    )


def read_rows(path: Path, columns: tuple[str, ...]) -> Rows:
    """The rows in the order of the first column, which identifies them.

    Raises:
        UserError: the file is damaged, lacks columns, holds no row, or one twice.
    """
    try:
        reader = csv.DictReader(io.StringIO(opened(path), newline=""))
        fields = reader.fieldnames or ()
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: damaged ({error}); expected a CSV file in UTF-8") from error
    if missing := [name for name in columns if name not in (*fields, *NEW)]:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}; expected {','.join(columns)}; write it again")
    if not rows:
        raise UserError(f"{path}: holds no example; expected at least one row")
    key = columns[0]
    seen = set[str]()
    for number, row in enumerate(rows, start=2):
        row |= {name: "" for name in NEW if name in columns and name not in fields}
        if any(row[name] is None for name in columns):
            raise UserError(f"{path}:{number}: too few fields; expected {','.join(columns)}")
        if row[key] in seen:
            raise UserError(f"{path}:{number}: the {key} {row[key]!r} occurs twice; expected one row per example")
        seen.add(row[key])
    return sorted(rows, key=lambda row: row[key])
