"""Compares two models on the same examples. Used by ``plm compare`` and the report; the gate judges its rows.

A model is called better if the p-value is low enough and the interval of the difference (the second's minus the
first's) does not contain 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Sums, score_by_subset
from plm_core.evaluation.evidence import LIKELIHOOD, Table, read_likelihood, read_task, task_files
from plm_core.evaluation.significance import Draws, Interval

ALPHA = 0.05
"""The significance level of the tests; intervals cover 1 - alpha."""
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
BOTH_SETS = ("mnli matched", "mnli mismatched")
AVERAGES: dict[str, tuple[str, ...]] = {
    "GLUE, 8 tasks without WNLI": GLUE,
    "GLUE, 9 numbers of 8 tasks, MNLI's sets apart": (*(task for task in GLUE if task != "mnli"), *BOTH_SETS),
    "GLUE, all 9 tasks": (*GLUE, "wnli"),
}
"""Plain means of the main scores of these tasks and subsets (``<task> <subset>``): Devlin et al. 2019 leave WNLI out;
Geiping and Goldstein 2023, "Cramming", count MNLI's two sets as two scores; the benchmark has nine tasks (Wang et al.
2019, section 3)."""
MEAN = "mean of all tasks"
RIGHT_OR_WRONG = ("accuracy", "exact_match")
"""Scores that are a share of right answers, to which McNemar's test applies."""
BOOTSTRAP, MCNEMAR, PERMUTATION = "paired bootstrap", "McNemar", "paired permutation"


@dataclass(frozen=True)
class ComparisonRow:
    """A metric of two models on the same examples, with its resamples."""

    name: str
    score: str
    """What is measured: ``accuracy+f1:equivalent``, ``bits_per_byte``, ``mean``."""
    examples: int
    groups: int
    """The number of independent observations: documents, or whatever else examples have in common."""
    values: tuple[float, float]
    draws: tuple[Draws, ...]
    """The resamples of the first, the second and, if requested, a constant answer."""

    @property
    def change(self) -> Draws:
        """The resamples of the difference, the second's minus the first's."""
        return self.draws[1] - self.draws[0]


def comparison_rows(
    name: str,
    tables: tuple[Table, Table],
    rng: np.random.Generator,
    resamples: int = significance.RESAMPLES,
    constant: bool = False,
) -> list[ComparisonRow]:
    """The row of a task or of the likelihood, followed by those of its subsets, ``<name> <subset>``, that have a score.

    With ``constant``, a constant answer to the task is resampled as well.
    """
    first, second = (table.results for table in tables)
    unread = [tables[1].unread()] if constant and not isinstance(second, Sums) else []
    draws = significance.bootstrap([first, second, *unread], rng, resamples)
    values = [score_by_subset(table.results) | {"": table.value} for table in tables]
    compared = []
    for subset in draws[0]:
        members = first.strata == first.subsets.index(subset) if subset else first.strata >= 0
        sizes = (int(members.sum()), len(np.unique(first.groups[members])))
        both = (values[0][subset], values[1][subset])
        sides = tuple(side[subset] for side in draws)
        score = tables[0].metric if isinstance(first, Sums) else first.score
        compared.append(ComparisonRow(f"{name} {subset}".rstrip(), score, *sizes, both, sides))
    return compared


def mean_row(name: str, parts: Sequence[ComparisonRow]) -> ComparisonRow:
    """The row of the plain mean of independent numbers."""
    examples, groups = (sum(getattr(part, of) for part in parts) for of in ("examples", "groups"))
    first, second = (float(np.mean([part.values[side] for part in parts])) for side in (0, 1))
    draws = tuple(significance.mean([part.draws[side] for part in parts]) for side in (0, 1))
    return ComparisonRow(name, "mean", examples, groups, (first, second), draws)


@dataclass(frozen=True)
class Estimate:
    """A metric of one model, or a difference, and its interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Compared:
    """A task, a subset of one, an average, or the likelihood; fields with equal names are as in ``ComparisonRow``."""

    name: str
    score: str
    examples: int
    groups: int
    first: Estimate
    second: Estimate
    difference: Estimate
    p: float
    test: str
    holm: float | None
    """``p`` corrected for the number of tasks; None if it is not one of several tasks."""
    effect: float | None
    """Cohen's g, above 0 if the second is better on more examples; None for a mean of tasks."""
    better: str | None
    """The name of the model that is significantly better; None for neither."""


@dataclass(frozen=True)
class Comparison:
    """The whole comparison of two models."""

    first: str
    second: str
    alpha: float
    tasks: list[Compared]
    averages: list[Compared]
    """The mean of all tasks, and those of ``AVERAGES`` for which every task was measured."""
    likelihood: list[Compared]
    """One row if both have the same quantity for the same documents, otherwise none."""
    notes: list[str]


def compare(folders: tuple[Path, Path], names: tuple[str, str], only: Collection[str] | None = None) -> Comparison:
    """Compare the evidence of two models with these names in two folders.

    ``only`` names the task files that count; None: all.

    Raises:
        UserError: a file is damaged, a task's examples differ between the two, or they have nothing in common.
    """
    rng = significance.generator()
    first, second = (task_files(folder, only) for folder in folders)
    notes = [
        f"{task}: only {names[0] if task in first else names[1]} has it"
        for task in sorted(first.keys() ^ second.keys())
    ]
    tables: dict[str, tuple[Table, Table]] = {}
    for task in sorted(first.keys() & second.keys()):
        left, right = tables[task] = read_task(first[task]), read_task(second[task])
        if left.examples != right.examples:
            both = len({e[:2] for e in left.examples} & {e[:2] for e in right.examples})
            raise UserError(
                f"{second[task][0]}: holds different examples than {first[task][0]}, or was measured by other rules "
                f"({both} examples are on both sides); expected the same: evaluate both models again"
            )
    measured: dict[str, list[ComparisonRow]] = {}
    tests = []
    for task, pair in tables.items():
        measured[task] = comparison_rows(task, pair, rng)
        numbers = {row.name for row in measured[task]}
        subsets = [f"{task} {subset}" for subset in pair[0].results.subsets if subset]
        notes += [f"{subset}: all labels are equal" for subset in subsets if subset not in numbers]
        tests.append(_test(*pair, rng))
    # The likelihood, if both have the same quantity of the same text.
    likelihood = []
    files = [folder / LIKELIHOOD for folder in folders]
    if not all(file.is_file() for file in files):
        notes.append("likelihood: not both models have it")
    else:
        left, right = pair = read_likelihood(files[0]), read_likelihood(files[1])
        if not np.isfinite([left.value, right.value]).all():
            notes.append("likelihood: not a finite number")
        elif left.metric != right.metric:
            notes.append(f"likelihood: {left.metric} and {right.metric} are not comparable")
        elif left.documents != right.documents:
            raise UserError(f"{files[1]}: holds different documents than {files[0]}")
        elif left.examples != right.examples:
            notes.append("likelihood: excerpts of different lengths are not comparable")
        else:
            (row,) = comparison_rows("likelihood", pair, rng)
            likelihood.append(_compared(row, names, _test(*pair, rng), lower=True))
    if not measured and not likelihood:
        raise UserError(f"{folders[0]} and {folders[1]}: have nothing in common; {'; '.join(notes)}")
    # Holm's correction is over the tasks.
    tasks = []
    corrected = significance.holm([p for p, *_ in tests])
    for (whole, *parts), test, holm in zip(measured.values(), tests, corrected, strict=True):
        tasks += [_compared(whole, names, test, holm), *(_compared(part, names) for part in parts)]
    averages = []
    if len(measured) > 1:
        p = significance.permutation([(left.results, right.results) for left, right in tables.values()], rng)
        mean = mean_row(MEAN, [whole for whole, *_ in measured.values()])
        averages.append(_compared(mean, names, (p, PERMUTATION, None)))
    every = {row.name: row for measured_rows in measured.values() for row in measured_rows}
    averaged = [(name, parts) for name, parts in AVERAGES.items() if every.keys() >= set(parts)]
    averages += [_compared(mean_row(name, [every[part] for part in parts]), names) for name, parts in averaged]
    return Comparison(*names, ALPHA, tasks, averages, likelihood, notes)


def _test(left: Table, right: Table, rng: np.random.Generator) -> tuple[float, str, float]:
    """The p-value by the appropriate test, its name, and the effect size."""
    first, second = left.results, right.results
    effect = significance.effect(first, second)
    alone = left.groups == len(first.strata)
    if not isinstance(first, Sums) and not isinstance(second, Sums) and first.score in RIGHT_OR_WRONG and alone:
        ours, theirs = first.right(), second.right()
        if len(ours) == len(theirs) == 1:
            p = significance.mcnemar(int(np.sum(ours & ~theirs)), int(np.sum(theirs & ~ours)))
            return p, MCNEMAR, effect
    return significance.permutation([(first, second)], rng), PERMUTATION, effect


def _compared(
    row: ComparisonRow,
    names: tuple[str, str],
    tested: tuple[float, str, float | None] | None = None,
    holm: float | None = None,
    lower: bool = False,
) -> Compared:
    """The row with intervals and the verdict; without a test of its own it is tested by the bootstrap."""
    first, second = (
        Estimate(value, significance.interval(draws, 1 - ALPHA))
        for value, draws in zip(row.values, row.draws, strict=True)
    )
    change = row.change
    difference = Estimate(second.value - first.value, significance.interval(change, 1 - ALPHA))
    p, test, effect = tested or (significance.bootstrap_p(change), BOOTSTRAP, None)
    better = None
    if (p if holm is None else holm) <= ALPHA and not difference.interval.low <= 0 <= difference.interval.high:
        better = names[(difference.value > 0) != lower]
    sizes = (row.examples, row.groups)
    return Compared(row.name, row.score, *sizes, first, second, difference, p, test, holm, effect, better)
