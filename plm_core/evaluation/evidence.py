"""Evidence: per-example results on held-out data, by which models are compared.

Written by stages evaluate, finetune and minimal-pairs, read by the gate and by compare. A folder of CSV files; all but
the last have one row per held-out example:

* ``likelihood.csv``: ``id,sha256,bytes,tokens,nats,quantity,measured``; the metric is named by ``quantity``
  (``bits_per_byte``, ``pseudo_bits_per_byte``, ``fixed_order_bits_per_byte``): sum(nats) / ln 2 / sum(bytes). The
  prefix ``lossy_`` marks a model whose tokenizer does not keep all of a text; it is never compared. ``sha256`` is the
  whole document's, ``bytes`` and ``tokens`` those that were scored, which are fewer for an excerpt;
* ``<task>.<seed>.csv``: ``id,sha256,group,subset,label,prediction,confidence,score,measured``, a file for each seed of
  fine-tuning; no task's name contains a dot. ``label`` and ``prediction`` are names of classes or, if the score
  measures numbers, numbers with all their digits; for tags, those of the words in IOB2, joined by spaces; for texts,
  ``label`` is the JSON list of the right answers, and ``prediction`` is empty if none is given; for minimal pairs,
  ``label`` is ``good``, and ``prediction`` may be ``tie``, in the one file of seed 0. ``confidence`` is the probability
  that the model gave its answer; empty for a number. ``score`` is the task's main score (``answers.py`` says how it is
  written), the same in all rows. ``subset`` is empty, or names a part that is also reported by itself, such as
  ``matched``. ``group`` is empty, or names what the example has in common with others, such as their document: they are
  not independent observations. The metric ``<task>/score`` is the mean over seeds of the score of all rows;
* ``cost.csv``: ``quantity,value``; the quantity ``parameters`` is the number of weights of the pretrained model.

After its columns each file has one more, the seal (``seal.py``), which is empty in all rows.

``measured`` is a digest of what the result depends on in addition to model and example: the parameters of the
measurement and, for a task, the text that was trained on; not the seed, because all seeds of a task are one
measurement.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.corpus.split import place_of
from plm_core.evaluation import parsing
from plm_core.evaluation.answers import Answers, Ratios, Results, Sums, family, score_by_subset
from plm_core.evaluation.spans import TIE
from plm_core.objectives import OBJECTIVES

LIKELIHOOD = "likelihood.csv"
COST = "cost.csv"
PARAMETERS = "parameters"
COMPARED = tuple(dict.fromkeys(objective.likelihood.name for objective in OBJECTIVES.values()))
"""The likelihoods by which models are compared."""
LOSSY = "lossy_"
"""The prefix of a quantity's name if the tokenizer drops some of the text: the bits are those of what is left, so the
more it drops, the fewer they are."""
LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured")
TASK_COLUMNS = ("id", "sha256", "group", "subset", "label", "prediction", "confidence", "score", "measured")
COST_COLUMNS = ("quantity", "value")
ENOUGH = 30
"""With fewer groups none is held back: the gate needs them all."""
SCORE = "score"
"""The metric of a task is ``<task>/score``; with another score, such as ``macro_f1``, it is ``<task>/macro_f1``."""


@dataclass(frozen=True)
class Table:
    """The evidence of one task or of the likelihood: the examples, and the metric computed from their results."""

    examples: frozenset[tuple[str, str, str, str]]
    """(id, sha256, measured, bytes or label): equal sets mean the same examples, measured by the same rules."""
    metric: str
    value: float
    results: Results = field(compare=False)
    """The results that are resampled, in the order of the examples' ids."""
    files: tuple[str, ...] = ()
    """The names of the files that hold it."""
    confidences: np.ndarray | None = field(default=None, compare=False)
    """``[S, N]``: the probability that each seed gave its answer, NaN for a number; None for the likelihood."""
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
        task = self.metric.partition("/")[0]
        own = self.results
        assert not isinstance(own, Sums)
        if family(score) != family(own.score):
            raise ValueError(f"is of {family(score)}, and the answers are {family(own.score)}")
        parsing.check_labels(score, self.labels)
        if isinstance(own, Answers):
            results: Results = replace(own, score=score)
        else:
            results = self._ratios(score, self.predictions)
        return replace(self, metric=f"{task}/{score}", value=score_by_subset(results)[""], results=results)

    def parted(self, share: float) -> tuple["Table", "Table | None"]:
        """The examples by which models are judged, and those that are only reported: about this share of the groups, by
        the hash of their names; None if there are too few groups.
        """
        apart = np.array([place_of(f"report/{name}") < share for name in self.names])
        if self.groups < ENOUGH or not apart.any():
            return self, None
        return self._part(~apart), self._part(apart)

    def _part(self, chosen: np.ndarray) -> "Table":
        places = np.flatnonzero(chosen)
        ids = {self.ids[place] for place in places}
        results = self.results.take(places)
        return replace(
            self,
            examples=frozenset(example for example in self.examples if example[0] in ids),
            value=score_by_subset(results)[""],
            results=results,
            confidences=None if self.confidences is None else self.confidences[:, places],
            labels=tuple(self.labels[place] for place in places if self.labels),
            predictions=tuple(tuple(seed[place] for place in places) for seed in self.predictions),
            names=tuple(self.names[place] for place in places),
        )

    def unread(self) -> Results:
        """The results of a constant answer: the most frequent class, the mean, no entity, no answer, a tie."""
        own = self.results
        assert not isinstance(own, Sums)
        if isinstance(own, Ratios):
            of = family(own.score)
            none = TIE if of == "pairs" else ""
            said = tuple(" ".join(["O"] * len(label.split())) if of == "tags" else none for label in self.labels)
            return self._ratios(own.score, (said,))
        answer = np.bincount(own.labels).argmax() if own.classes else own.labels.mean()
        return replace(own, predictions=np.full((1, len(own.labels)), answer))

    def _ratios(self, score: str, predictions: Sequence[Sequence[str]]) -> Ratios:
        """The results of these answers of each seed, tags or texts."""
        found = [[parsing.counted(score, *pair) for pair in zip(s, self.labels, strict=True)] for s in predictions]
        above, below = np.array(found).transpose(3, 2, 0, 1)
        return Ratios(score, above, below, self.results.strata, self.results.subsets, self.results.groups)

    @property
    def of_pairs(self) -> bool:
        """Whether these are minimal pairs."""
        return not isinstance(self.results, Sums) and family(self.results.score) == "pairs"

    @property
    def groups(self) -> int:
        """The number of independent observations among the examples."""
        return len(np.unique(self.results.groups))

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the examples, in the order of the results."""
        return sorted(example[0] for example in self.examples)

    @property
    def documents(self) -> frozenset[tuple[str, ...]]:
        """(id, sha256, measured): equal for equal documents, even if excerpts of different lengths were scored."""
        return frozenset(example[:3] for example in self.examples)


def read_likelihood(path: Path) -> Table:
    """Read ``likelihood.csv``.

    Raises:
        UserError: it is damaged, or does not hold exactly one quantity.
    """
    rows = parsing.read_rows(path, LIKELIHOOD_COLUMNS)
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
    value = nats / math.log(2) / sum(sizes)
    names = tuple(row["id"] for row in rows)
    return Table(parsing.examples(rows, "bytes"), quantities[0], value, results, (path.name,), names=names)


def task_files(folder: Path, only: Collection[str] | None = None) -> dict[str, list[Path]]:
    """The files ``<task>.<seed>.csv`` in a folder by task, in the order of their seeds.

    ``only`` are the names of files to look at; None: all.
    """
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob("*.*.csv"):
        task, _, seed = path.name.removesuffix(".csv").partition(".")
        if seed.isdecimal() and (only is None or path.name in only):
            found.setdefault(task, []).append((int(seed), path))
    return {task: [path for _, path in sorted(files)] for task, files in sorted(found.items())}


def read_task(files: list[Path]) -> Table:
    """Read the files of one task, one per seed.

    Raises:
        UserError: one is damaged, its score is unknown or undefined for these labels, or it has other examples than the
            first.
    """
    seeds = [parsing.read_rows(path, TASK_COLUMNS) for path in files]
    first = seeds[0]
    score = seeds[0][0]["score"]
    content = parsing.content(first)
    for path, rows in zip(files, seeds, strict=True):
        if {row["score"] for row in rows} != {score}:
            raise UserError(
                f"{path}: the column score does not hold {score!r} alone; expected one score for all of a task"
            )
        if parsing.content(rows) != content:
            raise UserError(
                f"{path}: holds different examples than {files[0].name}, or its rules differ; expected the same "
                "with every seed (a file of a seed that is no longer trained can be removed)"
            )
    try:
        parsing.check_labels(score, [row["label"] for row in first])
    except ValueError as error:
        raise UserError(f"{files[0]}: {error}") from error
    read = parsing.ratios if family(score) in ("tags", "texts", "pairs") else parsing.answers
    results: Results = read(files, score, seeds)
    confidences = np.stack([parsing.confidences(path, rows) for path, rows in zip(files, seeds, strict=True)])
    examples = parsing.examples(first, "label", "subset", "score")
    name = files[0].name.partition(".")[0]
    value = score_by_subset(results)[""]
    names = tuple(path.name for path in files)
    true = tuple(row["label"] for row in first)
    said = tuple(tuple(row["prediction"] for row in s) for s in seeds)
    groups = tuple(row["group"] or row["id"] for row in first)
    return Table(examples, f"{name}/{SCORE}", value, results, names, confidences, true, said, groups)


def read_cost(path: Path) -> dict[str, float]:
    """Read ``cost.csv``.

    Raises:
        UserError: it is damaged.
    """
    found = {}
    for number, row in enumerate(parsing.read_rows(path, COST_COLUMNS), start=2):
        try:
            found[row["quantity"]] = float(row["value"])
        except ValueError as error:
            raise UserError(f"{path}:{number}: found {row['value']!r}; expected a number") from error
    return found
