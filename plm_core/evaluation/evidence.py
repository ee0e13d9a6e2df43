"""Evidence: per-example results on held-out data, by which models are compared.

A folder of CSV files, sealed (``sealed_csv.py``); all but the last have one row per held-out example:

* ``likelihood.csv``: ``id,sha256,bytes,tokens,nats,quantity,measured``; the metric is named by ``quantity``:
  sum(nats) / ln 2 / sum(bytes). ``sha256`` is the whole document's, ``bytes`` and ``tokens`` those that were scored,
  which are fewer for an excerpt;
* ``<task>.<seed>.csv``: ``id,sha256,group,subset,label,prediction,confidence,score,measured``, a file for each seed of
  fine-tuning; no task's name contains a dot. ``label`` and ``prediction`` are names of classes or, if the score
  measures numbers, numbers with all their digits; for tags, those of the words in IOB2, joined by spaces; for texts,
  ``label`` is the JSON list of the right answers or the references, and ``prediction`` is empty if none is given; for
  minimal pairs, ``label`` is ``good``, and ``prediction`` may be ``tie``, in the one file of seed 0; for a search,
  ``prediction`` is the rank of the relevant passage, and ``label`` is 1. ``confidence`` is the probability that the
  model gave its answer; empty for a number. ``score`` is the task's main score (``answers.py`` says how it is
  written), the same in all rows. ``subset`` is empty, or names a part that is also reported by itself, such as
  ``matched``. ``group`` is empty, or names what the example has in common with others, such as their document: they are
  not independent observations. The metric ``<task>/score`` is the mean over seeds of the score of all rows;
* ``cost.csv``: ``quantity,value``; the quantity ``parameters`` is the number of weights of the pretrained model.

``measured`` is a digest of what the result depends on in addition to model and example: the parameters of the
measurement and, for a task, the text that was trained on; not the seed, because all seeds of a task are one
measurement.

N examples, S seeds, P parts of a score.
"""

import csv
import io
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from plm_core.config import UserError
from plm_core.corpus.splits_and_mixtures import hash_position
from plm_core.evaluation.answers import Answers, Results, Sums, counted_results, family, parts_of, score_by_subset
from plm_core.evaluation.example_counts import TIE, counts
from plm_core.evaluation.sealed_csv import read_sealed
from plm_core.evaluation.text_overlap import statistics
from plm_core.objectives import OBJECTIVES

LIKELIHOOD = "likelihood.csv"
COST = "cost.csv"
PARAMETERS = "parameters"
COMPARED = tuple(dict.fromkeys(objective.likelihood.name for objective in OBJECTIVES.values()))
LOSSY = "lossy_"
"""The prefix of a quantity's name if the tokenizer drops some of the text: its bits are those of what is left. In
evidence the tokenizer follows, so that only models with the same one are compared."""
UNKNOWN = "unknown"
"""The quantity of a model whose predictions were never learned."""
LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured")
TASK_COLUMNS = ("id", "sha256", "group", "subset", "label", "prediction", "confidence", "score", "measured")
COST_COLUMNS = ("quantity", "value")
OPTIONAL = ("confidence", "group")
"""Columns that a file may lack: they are read as empty."""
ENOUGH = 30
"""With fewer groups none is held back: the gate needs them all."""
SCORE = "score"
"""The metric of a task is ``<task>/score``; with another score, such as ``macro_f1``, it is ``<task>/macro_f1``."""
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Table:
    """The evidence of one task or of the likelihood: the examples, and the metric computed from their results."""

    examples: tuple[tuple[str, str, str, str], ...]
    """``[N]``: (id, sha256, measured, bytes or label), in the order of the ids: equal ones mean the same examples,
    measured by the same rules."""
    metric: str
    value: float
    results: Results = field(compare=False)
    """The results that are resampled, in the same order."""
    files: tuple[str, ...] = ()
    confidences: np.ndarray | None = field(default=None, compare=False)
    """``[S, N]``: the probability that each seed assigned to its answer, NaN for a number; None for the likelihood."""
    labels: tuple[str, ...] = field(default=(), compare=False)
    """``[N]``: the labels, as they are written."""
    predictions: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """``[S][N]``: the answers of each seed, likewise."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """``[N]``: the group of each example, or its id."""

    def by(self, score: str) -> "Table":
        """A task's answers with another score than its own.

        Raises:
            ValueError: these answers have no such score.
        """
        own = self.results
        assert not isinstance(own, Sums)
        if family(score) != family(own.score):
            raise ValueError(f"measures {family(score)}, and the answers are {family(own.score)}")
        check_labels(score, self.labels)
        results = replace(own, score=score) if isinstance(own, Answers) else self._resulting(score, self.predictions)
        metric = f"{self.metric.partition('/')[0]}/{score}"
        return replace(self, metric=metric, value=score_by_subset(results)[""], results=results)

    def parted(self, share: float) -> tuple["Table", "Table | None"]:
        """The examples by which models are judged, and those that are only reported: about this share of the groups, by
        the hash of their names; None if there are too few groups."""
        apart = np.array([hash_position(f"report/{name}") < share for name in self.names])
        if self.groups < ENOUGH or not apart.any():
            return self, None
        return self.part(~apart), self.part(apart)

    def part(self, chosen: np.ndarray) -> "Table":
        """The examples for which ``chosen``, ``[N]`` bool, holds."""
        places = np.flatnonzero(chosen)
        results = self.results.take(places)
        return replace(
            self,
            examples=tuple(self.examples[place] for place in places),
            value=score_by_subset(results)[""],
            results=results,
            confidences=None if self.confidences is None else self.confidences[:, places],
            labels=tuple(self.labels[place] for place in places if self.labels),
            predictions=tuple(tuple(seed[place] for place in places) for seed in self.predictions),
            names=tuple(self.names[place] for place in places),
        )

    def unread(self) -> Results:
        """The results of a constant answer: the most frequent class, the mean, no entity, no answer or an empty text, a
        tie, the last rank."""
        own = self.results
        assert not isinstance(own, Sums)
        if not isinstance(own, Answers):
            of = family(own.score)
            none = {"pairs": TIE, "ranks": str(len(self.labels))}.get(of, "")
            constant = tuple(" ".join(["O"] * len(label.split())) if of == "tags" else none for label in self.labels)
            return self._resulting(own.score, (constant,))
        answer = np.bincount(own.labels).argmax() if own.classes else own.labels.mean()
        return replace(own, predictions=np.full((1, len(own.labels)), answer))

    def _resulting(self, score: str, predictions: Sequence[Sequence[str]]) -> Results:
        """The results of these answers of each seed: tags, texts, choices within pairs or ranks."""
        own = self.results
        counted = [_counted(score, self.ids, answers, self.labels) for answers in predictions]
        return counted_results(score, counted, strata=own.strata, subsets=own.subsets, groups=own.groups)

    @property
    def of_pairs(self) -> bool:
        return not isinstance(self.results, Sums) and family(self.results.score) == "pairs"

    @property
    def groups(self) -> int:
        return len(np.unique(self.results.groups))

    @property
    def ids(self) -> list[str]:
        """The ids of the examples, in the order of the results."""
        return [example[0] for example in self.examples]

    @property
    def documents(self) -> list[tuple[str, ...]]:
        """(id, sha256, measured): equal for equal documents, even if excerpts of different lengths were scored."""
        return [example[:3] for example in self.examples]


def read_likelihood(path: Path) -> Table:
    """Read ``likelihood.csv``.

    Raises:
        UserError: it is damaged, or does not hold exactly one quantity.
    """
    rows = _read_rows(path, LIKELIHOOD_COLUMNS)
    quantities = sorted({row["quantity"] for row in rows})
    if len(quantities) > 1 or base_quantity(quantities[0]) not in (*COMPARED, UNKNOWN):
        raise UserError(
            f"{path}: the column quantity holds {', '.join(quantities)}; expected one of {', '.join(COMPARED)}"
        )
    try:
        sizes = [int(row["bytes"]) for row in rows]
        nats_of = [float(row["nats"]) for row in rows]
        # fsum is exact: the order of the rows changes no digit.
        nats = math.fsum(nats_of)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: {error}; expected numbers in the columns bytes and nats") from error
    if sum(sizes) <= 0 or min(sizes) < 0:
        raise UserError(f"{path}: {sum(sizes)} bytes of text; expected at least 1, and none below 0")
    results = Sums(np.array(nats_of), np.array(sizes, dtype=np.float64))
    value = nats / math.log(2) / sum(sizes)
    names = tuple(row["id"] for row in rows)
    return Table(_examples(rows, "bytes"), quantities[0], value, results, (path.name,), names=names)


def base_quantity(quantity: str) -> str:
    """The quantity of ``COMPARED`` in this name, without what the name says about the tokenizer."""
    return quantity.removeprefix(LOSSY).partition(" of ")[0]


def task_files(folder: Path, only: Collection[str] | None = None) -> dict[str, list[Path]]:
    """The files ``<task>.<seed>.csv`` in a folder by task, in the order of their seeds.

    ``only`` are the names of files to look at; None: all. Those of tasks that a model cannot do are left out.
    """
    seeds_of: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob("*.*.csv"):
        task, _, seed = path.name.removesuffix(".csv").partition(".")
        if seed.isdecimal() and (only is None or path.name in only) and not has_no_rows(path):
            seeds_of.setdefault(task, []).append((int(seed), path))
    return {task: [path for _, path in sorted(files)] for task, files in sorted(seeds_of.items())}


def has_no_rows(path: Path) -> bool:
    """Whether a file of evidence exists and has no rows, because the model cannot do the task."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8") as file:
        return bool(next(file, "")) and not next(file, "")


def read_task(files: list[Path]) -> Table:
    """Read the files of one task, one per seed.

    Raises:
        UserError: one is damaged, its score is unknown or undefined for these labels, or it has other examples than the
            first.
    """
    seeds = [_read_rows(path, TASK_COLUMNS) for path in files]
    first = seeds[0]
    score = first[0]["score"]
    same = ("id", "sha256", "subset", "label", "measured")
    for path, rows in zip(files, seeds, strict=True):
        if {row["score"] for row in rows} != {score}:
            raise UserError(
                f"{path}: the column score does not hold {score!r} alone; expected one score for all of a task"
            )
        if [[row[name] for name in same] for row in rows] != [[row[name] for name in same] for row in first]:
            raise UserError(
                f"{path}: holds different examples than {files[0].name}, or its rules differ; expected the same "
                "with every seed (a file of a seed that is no longer trained can be removed)"
            )
    labels = tuple(row["label"] for row in first)
    try:
        check_labels(score, labels)
    except ValueError as error:
        raise UserError(f"{files[0]}: {error}") from error
    # An example without a group is a group of its own.
    _, (groups,) = _coded([[row["group"] or f"\x1f{row['id']}" for row in first]])
    subsets, (strata,) = _coded([[row["subset"] for row in first]])
    predictions = tuple(tuple(row["prediction"] for row in rows) for rows in seeds)
    whole: dict[str, Any] = {"strata": strata, "subsets": subsets, "groups": groups}
    if family(score) == "classes":
        classes, (gold, *predicted) = _coded([labels, *predictions])
        results: Results = Answers(score, gold, np.stack(predicted), classes=classes, **whole)
    elif family(score) == "numbers":
        gold = _numbers(files[0], "label", labels)
        predicted = [_numbers(path, "prediction", texts) for path, texts in zip(files, predictions, strict=True)]
        results = Answers(score, gold, np.stack(predicted), classes=(), **whole)
    else:
        counted = []
        for path, texts in zip(files, predictions, strict=True):
            try:
                counted.append(_counted(score, [row["id"] for row in first], texts, labels))
            except ValueError as error:
                raise UserError(f"{path}: {error}; expected what its stage writes") from error
        results = counted_results(score, counted, **whole)
    confidences = []
    for path, rows in zip(files, seeds, strict=True):
        sure = _numbers(path, "confidence", [row["confidence"] or "0" for row in rows])
        if len(outside := sure[(sure < 0) | (sure > 1)]):
            raise UserError(f"{path}: the column confidence holds {outside[0]}; expected probabilities")
        confidences.append(np.where([row["confidence"] == "" for row in rows], np.nan, sure))
    return Table(
        examples=_examples(first, "label", "subset", "score"),
        metric=f"{files[0].name.partition('.')[0]}/{SCORE}",
        value=score_by_subset(results)[""],
        results=results,
        files=tuple(path.name for path in files),
        confidences=np.stack(confidences),
        labels=labels,
        predictions=predictions,
        names=tuple(row["group"] or row["id"] for row in first),
    )


def read_cost(path: Path) -> dict[str, float]:
    """Read ``cost.csv``.

    Raises:
        UserError: it is damaged.
    """
    costs = {}
    for number, row in enumerate(_read_rows(path, COST_COLUMNS), start=2):
        try:
            costs[row["quantity"]] = float(row["value"])
        except ValueError as error:
            raise UserError(f"{path}:{number}: found {row['value']!r}; expected a number") from error
    return costs


def check_labels(score: str, labels: Sequence[str]) -> None:
    """Raise ValueError for labels for which the score is undefined."""
    if family(score) == "numbers" and len(set(labels)) < 2:
        raise ValueError(f"all labels are {labels[0]}; expected different labels, because {score} is a correlation")
    for _, of in parts_of(score):
        if of and of not in labels:
            names = ", ".join(sorted(set(labels)))
            raise ValueError(f"no label is {of!r}, whose F1 is the score; expected it among {names}")


def _counted(score: str, ids: Sequence[str], predictions: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """``[2, P, N]``: numerators and denominators of one seed's answers; of translations their statistics ``[K, N]``;
    ValueError, which names the example, if one is not written as in evidence."""
    of = family(score)
    parts = [part for part, _ in parts_of(score)]
    counted: list[Any] = []
    for name, prediction, label in zip(ids, predictions, labels, strict=True):
        predicted, gold = (text.split(" ") if of == "tags" else text for text in (prediction, label))
        try:
            if of in ("texts", "translations", "summaries"):
                gold = json.loads(label)
                if not isinstance(gold, list) or not all(isinstance(answer, str) for answer in gold):
                    raise ValueError(f"the label {label[:99]}; expected a JSON list of texts")
                if not gold and of != "texts":
                    raise ValueError("no reference; expected at least one")
            counted.append(gold if of == "translations" else [counts(part, predicted, gold) for part in parts])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    if of == "translations":
        return statistics(parts, predictions, counted)
    return np.array(counted, dtype=np.float64).transpose(2, 1, 0)


def _numbers(path: Path, column: str, texts: Sequence[str]) -> np.ndarray:
    try:
        numbers = np.array([float(text) for text in texts])
    except ValueError as error:
        raise UserError(f"{path}: {error}; expected numbers in the column {column}") from error
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{path}: the column {column} holds {numbers[~np.isfinite(numbers)][0]}; expected finite numbers"
        )
    return numbers


def _coded(texts: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The distinct names in order, and each sequence as positions among them."""
    names = sorted({text for column in texts for text in column})
    position = {name: i for i, name in enumerate(names)}
    return tuple(names), [np.array([position[text] for text in column], dtype=np.int64) for column in texts]


def _examples(rows: Rows, *content: str) -> tuple[tuple[str, str, str, str], ...]:
    """Each row's id, sha256 and measured, and the columns ``content`` joined."""
    joined = ("\x1f".join(row[name] for name in content) for row in rows)
    return tuple((row["id"], row["sha256"], row["measured"], text) for row, text in zip(rows, joined, strict=True))


def _read_rows(path: Path, columns: tuple[str, ...]) -> Rows:
    """The rows in the order of the first column, which identifies them.

    Raises:
        UserError: the file is damaged, lacks columns, holds no row, or one twice.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_sealed(path), newline=""))
        fields = reader.fieldnames or ()
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: damaged ({error}); expected a CSV file in UTF-8") from error
    if missing := [name for name in columns if name not in (*fields, *OPTIONAL)]:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}; expected {','.join(columns)}; write it again")
    if not rows:
        raise UserError(f"{path}: holds no example; expected at least one row")
    key = columns[0]
    seen = set[str]()
    for number, row in enumerate(rows, start=2):
        row |= {name: "" for name in OPTIONAL if name in columns and name not in fields}
        if any(row[name] is None for name in columns):
            raise UserError(f"{path}:{number}: too few fields; expected {','.join(columns)}")
        if row[key] in seen:
            raise UserError(f"{path}:{number}: the {key} {row[key]!r} occurs twice; expected one row per example")
        seen.add(row[key])
    return sorted(rows, key=lambda row: row[key])
