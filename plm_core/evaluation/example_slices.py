"""Slices: parts of a test set with scores of their own. Used by the report and by fewshot.

The stage slices writes the facts about N examples that need no model, one row each in ``<task>.csv``:
``id,words,subset,overlap``, words and overlap as ``train_overlap.py`` has them.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation.answers import Answers, has_score, is_numeric_score
from plm_core.shared.files import RESTORE

COLUMNS = ("id", "words", "subset", "overlap")
CONTAMINATED = 0.5
"""The share of n-grams from which an example counts as contaminated, as in the section ``decontaminate``."""
PARTS_OF_LENGTH, PARTS_OF_NUMBERS = 4, 3
Array = np.ndarray


@dataclass(frozen=True)
class Facts:
    """Facts about a test example that need no model."""

    words: int
    subset: str
    overlap: float
    """The share of its n-grams that occurs in the training text, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class Slice:
    """A part of a test set."""

    kind: str
    """length, source, label or overlap."""
    name: str
    members: Array
    """``[N]`` bool."""
    results: Any
    """The answers to its examples, with a score that is defined for them."""
    scored: bool
    """Whether they have this score: a correlation needs different labels."""


def read_slices(path: Path) -> dict[str, Facts]:
    """The facts about each test example, by id.

    Raises:
        UserError: the file is missing or damaged; the message names the line.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro slices`)")
    facts = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                facts[row["id"]] = Facts(int(row["words"]), row["subset"], float(row["overlap"]))
            except (KeyError, TypeError, ValueError) as error:
                expected = f"expected {','.join(COLUMNS)}; {RESTORE}"
                raise UserError(f"{path}:{number}: {error!r}; {expected}") from error
    return facts


def slices(facts: Sequence[Facts], results: Any) -> list[Slice]:
    """The slices that the N examples fall into, in order of kind; empty ones are left out.

    * length: quarters of the number of words (fewer parts if many examples have the same number);
    * source: the subsets, if there are several;
    * label: the true class, or a third of the numbers; not for other answers. Within one class, only accuracy is
      meaningful (the recall of the class), so it is given whatever the task's score;
    * overlap with the training text: none, below half, half and more.
    """
    lengths, shares = np.array([f.words for f in facts]), np.array([f.overlap for f in facts])
    subsets = np.array([f.subset for f in facts])
    parts = [("length", f"{name} words", part) for name, part in _parts(lengths, PARTS_OF_LENGTH, 1)]
    if len(names := np.unique(subsets)) > 1:
        parts += [("source", str(name) or "no subset", subsets == name) for name in names]
    if is_numeric_score(results.score):
        parts += [("label", name, part) for name, part in _parts(results.labels, PARTS_OF_NUMBERS)]
    elif isinstance(results, Answers):
        parts += [("label", name, results.labels == i) for i, name in enumerate(results.classes)]
    parts += [
        ("overlap", "none", shares == 0),
        ("overlap", "below half", (shares > 0) & (shares < CONTAMINATED)),
        ("overlap", "half and more", shares >= CONTAMINATED),
    ]
    chosen = []
    for kind, name, members in parts:
        if members.any():
            part = results.take(np.flatnonzero(members))
            # A slice may span subsets, and is resampled as a whole.
            part = replace(part, strata=np.zeros_like(part.strata), subsets=("",))
            if kind == "label" and not is_numeric_score(results.score):
                part = replace(part, score="accuracy")
            chosen.append(Slice(kind, name, members, part, has_score(results, members)))
    return chosen


def _parts(values: Array, count: int, step: int = 0) -> list[tuple[str, Array]]:
    """Parts of about equal size, with their edges as names; equal values are in one part.

    With ``step`` 1, for whole numbers, a part begins with the number after the last one of the part before.
    """
    edges = np.unique(np.quantile(values, np.arange(1, count) / count, method="inverted_cdf"))
    edges = edges[edges < values.max()]
    parts = []
    low = -math.inf
    for high in [*edges, math.inf]:
        if high == math.inf:
            name = f"more than {low:g}" if len(edges) else "all"
        elif low == -math.inf:
            name = f"up to {high:g}"
        else:
            name = f"{low + step:g} to {high:g}" if step else f"above {low:g} to {high:g}"
            name = f"{high:g}" if step and low + step == high else name
        parts.append((name, (values > low) & (values <= high)))
        low = high
    return parts
