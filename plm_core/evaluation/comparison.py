"""Two models compared task by task, with tests of significance. Used by the task compare.

Scores and differences (the second's minus the first's) with intervals, a p-value from the appropriate test, Holm's
correction over the tasks, an effect size, and the averages that papers report. A model is called better if the p-value
is low enough and the interval of the difference does not contain 0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Answers, Ratios, score_by_subset
from plm_core.evaluation.evidence import LIKELIHOOD, LOSSY, Table, read_likelihood, read_task, task_files
from plm_core.evaluation.significance import Draws, Interval

ALPHA = 0.05
"""The level of the tests; the intervals hold 1 - alpha."""
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
BOTH_SETS = ("mnli matched", "mnli mismatched")
AVERAGES: dict[str, tuple[str, ...]] = {
    "GLUE, 8 tasks without WNLI": GLUE,
    "GLUE, 9 numbers of 8 tasks, MNLI's sets apart": (*(task for task in GLUE if task != "mnli"), *BOTH_SETS),
    "GLUE, all 9 tasks": (*GLUE, "wnli"),
}
"""Plain means of the main scores of these tasks and subsets (``<task> <subset>``): Devlin et al. 2019 leave WNLI out;
Geiping and Goldstein 2023, "Cramming", count MNLI's two sets as two numbers; the benchmark has nine tasks (Wang et al.
2019, section 3)."""
MEAN = "mean of all tasks"
RIGHT_OR_WRONG = ("accuracy", "exact_match")
"""Scores that are a share of right answers, to which McNemar's test applies."""
BOOTSTRAP, MCNEMAR, PERMUTATION = "paired bootstrap", "McNemar", "paired permutation"


@dataclass(frozen=True)
class Estimate:
    """A number of one model, or a difference, and its interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Compared:
    """A task, a subset of one, an average, or the likelihood."""

    name: str
    score: str
    """What is measured: ``accuracy+f1:equivalent``, ``bits_per_byte``, ``mean``."""
    examples: int
    groups: int
    """The number of independent observations: documents, or whatever else examples have in common."""
    first: Estimate
    second: Estimate
    difference: Estimate
    """The second's minus the first's."""
    p: float
    test: str
    """The test of ``p``."""
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
    """The tasks, each followed by its subsets."""
    averages: list[Compared]
    """The mean of all tasks, and those of ``AVERAGES`` for which every task was measured."""
    likelihood: list[Compared]
    """One, if both have the same quantity for the same documents."""
    notes: list[str]
    """What was left out, and why."""


@dataclass(frozen=True)
class _Pair:
    """A number of both models with its resamples."""

    name: str
    score: str
    examples: int
    groups: int
    values: tuple[float, float]
    draws: tuple[Draws, Draws]
    p: float | None = None
    """None: the bootstrap's p-value is used."""
    test: str = BOOTSTRAP
    effect: float | None = None
    lower: bool = False
    """Whether less is better."""


def compare(folders: tuple[Path, Path], names: tuple[str, str], only: Collection[str] | None = None) -> Comparison:
    """Compare the evidence of two models with these names in two folders.

    ``only`` are the names of the task files that count; None: all.

    Raises:
        UserError: a file is damaged, a task's examples differ between the two, or they have nothing in common.
    """
    rng = significance.generator()
    tables, notes = _shared(folders, names, only)
    pairs = {task: _task(task, sides, rng, notes) for task, sides in tables.items()}
    likelihood = _likelihood(folders, rng, notes)
    if not pairs and not likelihood:
        raise UserError(f"{folders[0]} and {folders[1]}: have nothing in common; {'; '.join(notes)}")
    holm = significance.holm([whole.p or 0.0 for whole, *_ in pairs.values()])
    tasks = []
    for (whole, *parts), corrected in zip(pairs.values(), holm, strict=True):
        tasks += [_compared(whole, names, corrected), *(_compared(part, names) for part in parts)]
    averages = [_compared(pair, names) for pair in _averages(pairs, tables, rng)]
    return Comparison(*names, ALPHA, tasks, averages, [_compared(pair, names) for pair in likelihood], notes)


def _shared(
    folders: tuple[Path, Path], names: tuple[str, str], only: Collection[str] | None
) -> tuple[dict[str, tuple[Table, Table]], list[str]]:
    """The tables of each task that both models have, and notes on the others."""
    first, second = (task_files(folder, only) for folder in folders)
    notes = [
        f"{task}: only {names[0] if task in first else names[1]} has it"
        for task in sorted(first.keys() ^ second.keys())
    ]
    found = {}
    for task in sorted(first.keys() & second.keys()):
        one, two = read_task(first[task]), read_task(second[task])
        if one.examples != two.examples:
            both = len({e[:2] for e in one.examples} & {e[:2] for e in two.examples})
            raise UserError(
                f"{second[task][0]}: holds different examples than {first[task][0]}, or was measured by other rules "
                f"({both} examples are on both sides); expected the same: evaluate both models again"
            )
        found[task] = one, two
    return found, notes


def _task(name: str, tables: tuple[Table, Table], rng: np.random.Generator, notes: list[str]) -> list[_Pair]:
    """A task, and each of its subsets; those that have no score are noted."""
    one, two = _answers(tables[0]), _answers(tables[1])
    draws = significance.bootstrap([one, two], rng)
    values = (score_by_subset(one), score_by_subset(two))
    notes += [f"{name} {each}: all labels are equal" for each in one.subsets if each and each not in draws[0]]
    found = []
    for subset in draws[0]:
        members = one.strata == one.subsets.index(subset) if subset else one.strata >= 0
        sizes = (int(members.sum()), len(np.unique(one.groups[members])))
        both = (draws[0][subset], draws[1][subset])
        title = f"{name} {subset}".rstrip()
        found.append(_Pair(title, one.score, *sizes, (values[0][subset], values[1][subset]), both))
    p, test = _test(one, two, rng)
    found[0] = replace(found[0], p=p, test=test, effect=significance.effect(one, two))
    return found


def _test(one: Answers | Ratios, two: Answers | Ratios, rng: np.random.Generator) -> tuple[float, str]:
    alone = len(np.unique(one.groups)) == len(one.strata)
    if one.score in RIGHT_OR_WRONG and len(one.right()) == len(two.right()) == 1 and alone:
        first, second = one.right()[0], two.right()[0]
        return significance.mcnemar(int(np.sum(first & ~second)), int(np.sum(second & ~first))), MCNEMAR
    return significance.permutation([(one, two)], rng), PERMUTATION


def _averages(
    pairs: Mapping[str, Sequence[_Pair]], tables: Mapping[str, tuple[Table, Table]], rng: np.random.Generator
) -> list[_Pair]:
    """The mean of all tasks if there are several, and the known averages for which every task was measured."""
    numbers = {pair.name: pair for task in pairs.values() for pair in task}
    found = []
    if len(pairs) > 1:
        every = [(one.results, two.results) for one, two in tables.values()]
        mean = _mean(MEAN, [numbers[task] for task in pairs])
        found.append(replace(mean, p=significance.permutation(every, rng), test=PERMUTATION))
    known = [(name, parts) for name, parts in AVERAGES.items() if numbers.keys() >= set(parts)]
    return found + [_mean(name, [numbers[part] for part in parts]) for name, parts in known]


def _mean(name: str, parts: Sequence[_Pair]) -> _Pair:
    """The plain mean of independent numbers."""
    first, second = (float(np.mean([part.values[side] for part in parts])) for side in (0, 1))
    one, two = (significance.mean([part.draws[side] for part in parts]) for side in (0, 1))
    examples, groups = (sum(getattr(part, of) for part in parts) for of in ("examples", "groups"))
    return _Pair(name, "mean", examples, groups, (first, second), (one, two))


def _likelihood(folders: tuple[Path, Path], rng: np.random.Generator, notes: list[str]) -> list[_Pair]:
    """The likelihood, or nothing and a note that says why."""
    if not all((folder / LIKELIHOOD).is_file() for folder in folders):
        notes.append("likelihood: not both models have it")
        return []
    one, two = (read_likelihood(folder / LIKELIHOOD) for folder in folders)
    if not np.isfinite([one.value, two.value]).all():
        notes.append("likelihood: not a finite number")
        return []
    if one.metric != two.metric or one.metric.startswith(LOSSY):
        notes.append(f"likelihood: {one.metric} and {two.metric} are not comparable")
        return []
    if one.examples != two.examples:
        if one.documents != two.documents:
            raise UserError(f"{folders[1] / LIKELIHOOD}: holds different documents than {folders[0] / LIKELIHOOD}")
        notes.append("likelihood: excerpts of different lengths are not comparable")
        return []
    first, second = significance.bootstrap([one.results, two.results], rng)
    p = significance.permutation([(one.results, two.results)], rng)
    effect = significance.effect(one.results, two.results)
    values = (one.value, two.value)
    draws = (first[""], second[""])
    sizes = (len(one.examples), one.groups)
    return [_Pair("likelihood", one.metric, *sizes, values, draws, p, PERMUTATION, effect, lower=True)]


def _compared(pair: _Pair, names: tuple[str, str], holm: float | None = None) -> Compared:
    first, second = (
        Estimate(value, significance.interval(draws, 1 - ALPHA))
        for value, draws in zip(pair.values, pair.draws, strict=True)
    )
    differences = pair.draws[1] - pair.draws[0]
    difference = Estimate(pair.values[1] - pair.values[0], significance.interval(differences, 1 - ALPHA))
    p = significance.bootstrap_p(differences) if pair.p is None else pair.p
    better = None
    if (p if holm is None else holm) <= ALPHA and not difference.interval.low <= 0 <= difference.interval.high:
        better = names[(difference.value > 0) != pair.lower]
    sizes = (pair.examples, pair.groups)
    return Compared(pair.name, pair.score, *sizes, first, second, difference, p, pair.test, holm, pair.effect, better)


def _answers(table: Table) -> Answers | Ratios:
    assert isinstance(table.results, Answers | Ratios)
    return table.results
