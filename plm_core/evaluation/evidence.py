"""Evidence: per-example results on held-out data, by which models are compared.

Written by stages evaluate and finetune, read by the gate and by compare. A folder of CSV files; but for the last, with
one row a held-out example:

* ``likelihood.csv``: ``id,sha256,bytes,tokens,nats,quantity,measured``; the metric is named by ``quantity``
  (``bits_per_byte``, ``pseudo_bits_per_byte``, ``fixed_order_bits_per_byte``): sum(nats) / ln 2 / sum(bytes). With
  ``lossy_`` before it, it is of a model whose tokenizer does not keep all of a text, and is never compared.
  ``sha256`` is the whole document's, ``bytes`` and ``tokens`` those that were scored: fewer, where only an excerpt was;
* ``<task>.<seed>.csv``: ``id,sha256,subset,label,prediction,confidence,score,measured``, a file for each seed of the
  fine-tuning; no task's name holds a dot. ``label`` and ``prediction`` are names of classes or, where the score is of
  numbers, numbers with all their digits; of tags, those of the words in IOB2, joined by blanks; of texts, ``label`` is
  the JSON list of the right answers, and ``prediction`` is empty where none is given. ``confidence`` is the probability
  that the model gave its answer; empty of a number. ``score`` is the task's main score (``answers.py`` says how it is
  written), the same in all rows. ``subset`` is empty, or names a part that is reported by itself as well, such as
  ``matched``. The metric ``<task>/score`` is the mean over seeds of the score of all rows;
* ``cost.csv``: ``quantity,value``; the quantity ``parameters`` is how many numbers the pretrained model has learned.

Behind its columns each file has one more, the seal (``seal.py``), which is empty in all rows.

``measured`` is a digest of what else the result depends on, beside model and example: the parameters of the measurement
and, for a task, the text that was trained on; not the seed, for all seeds of a task are one measurement.
"""

import csv
import io
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation.answers import Answers, Ratios, Results, Sums, family, of_numbers, parts_of, score_by_subset
from plm_core.evaluation.seal import opened
from plm_core.evaluation.spans import counts
from plm_core.objectives import OBJECTIVES

LIKELIHOOD = "likelihood.csv"
COST = "cost.csv"
PARAMETERS = "parameters"
COMPARED = tuple(objective.likelihood.name for objective in OBJECTIVES.values())
"""The likelihoods by which models are compared."""
LOSSY = "lossy_"
"""Begins the name of a quantity where the tokenizer drops some of the text: the bits are those of what is left, so they
are fewer the more it drops."""
LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured")
TASK_COLUMNS = ("id", "sha256", "subset", "label", "prediction", "confidence", "score", "measured")
COST_COLUMNS = ("quantity", "value")
SCORE = "score"
"""The metric of a task is ``<task>/score``; by another score, such as ``macro_f1``, it is ``<task>/macro_f1``."""


@dataclass(frozen=True)
class Table:
    """The evidence of one task or of the likelihood: which examples, and the one metric that their results make."""

    examples: frozenset[tuple[str, str, str, str]]
    """(id, sha256, measured, bytes or label): equal sets mean the same examples, measured by the same rules."""
    metric: str
    value: float
    results: Results = field(compare=False)
    """The same, example by example in the order of their ids: what is resampled."""
    files: tuple[str, ...] = ()
    """The names of the files that hold it."""
    confidences: np.ndarray | None = field(default=None, compare=False)
    """``[S, N]``: the probability that each seed gave its answer, NaN of a number; None for the likelihood."""
    labels: tuple[str, ...] = field(default=(), compare=False)
    """``[N]``: what is true, as it is written."""
    predictions: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """``[S][N]``: what each seed answered, likewise."""

    def by(self, score: str) -> "Table":
        """A task's answers by another score than its own.

        Raises:
            ValueError: these answers have no such score.
        """
        task = self.metric.partition("/")[0]
        own = self.results
        assert not isinstance(own, Sums)
        if family(score) != family(own.score):
            raise ValueError(f"is of {family(score)}, and the answers are {family(own.score)}")
        _check(score, self.labels)
        if isinstance(own, Answers):
            results: Results = replace(own, score=score)
        else:
            found = [[_counted(score, *pair) for pair in zip(s, self.labels, strict=True)] for s in self.predictions]
            above, below = np.array(found).transpose(3, 2, 0, 1)
            results = Ratios(score, above, below, own.strata, own.subsets)
        return replace(self, metric=f"{task}/{score}", value=score_by_subset(results)[""], results=results)

    @property
    def ids(self) -> list[str]:
        """Of the examples, in the order of the results."""
        return sorted(example[0] for example in self.examples)

    @property
    def documents(self) -> frozenset[tuple[str, ...]]:
        """(id, sha256, measured): the same, also where other lengths of them were looked at."""
        return frozenset(example[:3] for example in self.examples)


def read_likelihood(path: Path) -> Table:
    """Read ``likelihood.csv``.

    Raises:
        UserError: it is damaged, or of no or several quantities.
    """
    rows = _rows(path, LIKELIHOOD_COLUMNS)
    quantities = sorted({row["quantity"] for row in rows})
    if len(quantities) > 1 or quantities[0].removeprefix(LOSSY) not in COMPARED:
        raise UserError(
            f"{path}: the column quantity holds {', '.join(quantities)}; expected one of {', '.join(COMPARED)}"
        )
    try:
        sizes = [int(row["bytes"]) for row in rows]
        each = [float(row["nats"]) for row in rows]
        # fsum is exact: the order of the rows changes no digit.
        nats = math.fsum(each)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: {error}; expected numbers in the columns bytes and nats") from error
    if sum(sizes) <= 0 or min(sizes) < 0:
        raise UserError(f"{path}: {sum(sizes)} bytes of text; expected at least 1, and none below 0")
    results = Sums(np.array(each), np.array(sizes, dtype=np.float64))
    return Table(_examples(rows, "bytes"), quantities[0], nats / math.log(2) / sum(sizes), results, (path.name,))


def task_files(folder: Path, only: Collection[str] | None = None) -> dict[str, list[Path]]:
    """The files ``<task>.<seed>.csv`` in a folder by task, each task's in the order of their seeds.

    ``only`` are the names of files to look at; None: all.
    """
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob("*.*.csv"):
        task, _, seed = path.name.removesuffix(".csv").partition(".")
        if seed.isdecimal() and (only is None or path.name in only):
            found.setdefault(task, []).append((int(seed), path))
    return {task: [path for _, path in sorted(files)] for task, files in sorted(found.items())}


def read_task(files: list[Path]) -> Table:
    """Read the files of one task, one a seed.

    Raises:
        UserError: one is damaged, its score is unknown or cannot be had of these labels, or it has other examples than
            the first.
    """
    # The registry may hold evidence of a version from before confidences were kept.
    seeds = [_rows(path, TASK_COLUMNS, unless="confidence") for path in files]
    first = seeds[0]
    score = seeds[0][0]["score"]
    content = _content(first)
    for path, rows in zip(files, seeds, strict=True):
        if {row["score"] for row in rows} != {score}:
            raise UserError(
                f"{path}: the column score holds other than {score!r}; expected one score for all of a task"
            )
        if _content(rows) != content:
            raise UserError(
                f"{path}: holds other examples than {files[0].name}, or was measured by other rules; expected the same "
                "with every seed (a file of a seed that is no longer trained can be removed)"
            )
    try:
        _check(score, [row["label"] for row in first])
    except ValueError as error:
        raise UserError(f"{files[0]}: {error}") from error
    results = _ratios(files, score, seeds) if family(score) in ("tags", "texts") else _answers(files, score, seeds)
    confidences = np.stack([_confidences(path, rows) for path, rows in zip(files, seeds, strict=True)])
    examples = _examples(first, "label", "subset", "score")
    name = files[0].name.partition(".")[0]
    value = score_by_subset(results)[""]
    names = tuple(path.name for path in files)
    true = tuple(row["label"] for row in first)
    said = tuple(tuple(row["prediction"] for row in s) for s in seeds)
    return Table(examples, f"{name}/{SCORE}", value, results, names, confidences, true, said)


def read_cost(path: Path) -> dict[str, float]:
    """Read ``cost.csv``.

    Raises:
        UserError: it is damaged.
    """
    found = {}
    for number, row in enumerate(_rows(path, COST_COLUMNS), start=2):
        try:
            found[row["quantity"]] = float(row["value"])
        except ValueError as error:
            raise UserError(f"{path}:{number}: found {row['value']!r}; expected a number") from error
    return found


def _answers(files: list[Path], score: str, seeds: list[list[dict[str, str]]]) -> Answers:
    """The answers of each seed, where they are classes or numbers."""
    labels = [row["label"] for row in seeds[0]]
    predictions = [[row["prediction"] for row in rows] for rows in seeds]
    subsets, (strata,) = _coded([[row["subset"] for row in seeds[0]]])
    if of_numbers(score):
        values = [_numbers(files[0], "label", labels)]
        values += [_numbers(path, "prediction", texts) for path, texts in zip(files, predictions, strict=True)]
        classes: tuple[str, ...] = ()
    else:
        classes, values = _coded([labels, *predictions])
    return Answers(score, values[0], np.stack(values[1:]), strata, classes, subsets)


def _ratios(files: list[Path], score: str, seeds: list[list[dict[str, str]]]) -> Ratios:
    """The answers of each seed, where they are tags or texts."""
    subsets, (strata,) = _coded([[row["subset"] for row in seeds[0]]])
    found = np.empty((2, len(parts_of(score)), len(seeds), len(strata)))
    for s, (path, rows) in enumerate(zip(files, seeds, strict=True)):
        for n, row in enumerate(rows):
            try:
                found[:, :, s, n] = np.transpose(_counted(score, row["prediction"], row["label"]))
            except ValueError as error:
                raise UserError(f"{path}: {row['id']!r}: {error}; expected what stage finetune writes") from error
    return Ratios(score, found[0], found[1], strata, subsets)


def _counted(score: str, prediction: str, label: str) -> list[tuple[float, float]]:
    """Of each part of a score of tags or texts, what is above and below in one example's ratio."""
    return [counts(part, prediction, label) for part, _ in parts_of(score)]


def _check(score: str, labels: Sequence[str]) -> None:
    """Raise ValueError for labels of which the score says nothing."""
    if of_numbers(score) and len(set(labels)) < 2:
        raise ValueError(f"all labels are {labels[0]}; expected different ones, for {score} is of their order")
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


def _confidences(path: Path, rows: list[dict[str, str]]) -> np.ndarray:
    """``[N]`` probabilities, NaN where the field is empty."""
    found = _numbers(path, "confidence", [row["confidence"] or "0" for row in rows])
    if len(outside := found[(found < 0) | (found > 1)]):
        raise UserError(f"{path}: the column confidence holds {outside[0]}; expected probabilities")
    return np.where([row["confidence"] == "" for row in rows], np.nan, found)


def _coded(texts: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The distinct names in order, and each sequence as positions among them."""
    names = sorted({text for each in texts for text in each})
    position = {name: i for i, name in enumerate(names)}
    return tuple(names), [np.array([position[text] for text in each], dtype=np.int64) for each in texts]


def _content(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in ("id", "sha256", "subset", "label", "measured")) for row in rows]


def _examples(rows: list[dict[str, str]], *content: str) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(
        (row["id"], row["sha256"], row["measured"], "\x1f".join(row[name] for name in content)) for row in rows
    )


def _rows(path: Path, columns: tuple[str, ...], unless: str = "") -> list[dict[str, str]]:
    """The rows in the order of the first column, which tells them apart; the column ``unless`` is empty if missing."""
    try:
        reader = csv.DictReader(io.StringIO(opened(path), newline=""))
        fields = reader.fieldnames or ()
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: damaged ({error}); expected a CSV file in UTF-8") from error
    if missing := [name for name in columns if name not in fields and name != unless]:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}; expected {','.join(columns)}; write it anew")
    if not rows:
        raise UserError(f"{path}: holds no example; expected at least one row")
    key = columns[0]
    seen = set[str]()
    for number, row in enumerate(rows, start=2):
        row |= {} if unless in fields or not unless else {unless: ""}
        if any(row[name] is None for name in columns):
            raise UserError(f"{path}:{number}: too few fields; expected {','.join(columns)}")
        if row[key] in seen:
            raise UserError(f"{path}:{number}: the {key} {row[key]!r} occurs twice; expected one row an example")
        seen.add(row[key])
    return sorted(rows, key=lambda row: row[key])
