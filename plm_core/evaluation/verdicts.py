"""Every metric of a champion and a challenger, side by side: one row per metric, with its interval and a verdict.

Used by ``gate.py``. A metric counts against the challenger if it is significantly worse than its tolerance allows: by
chance alone one of nine tasks falls below it on most nights. The verdict "tells nothing" marks a metric that could not
show a difference: it has too few groups of examples, or neither model is better on the task than a constant answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Results, Sums
from plm_core.evaluation.evidence import SCORE, Table
from plm_core.evaluation.rules import EVERY_TASK, GateRules, score_of, source
from plm_core.evaluation.significance import Draws, Interval

NOTHING = "tells nothing"
UNLEARNED = "neither model is significantly better than a constant answer"
"""The note on a task that the mean over tasks leaves out, because its difference is noise."""
UNJUDGED = ("not measured", "not comparable", NOTHING)
"""Verdicts on a likelihood of another quantity or excerpt, and on too few groups: they count against the challenger
only on the primary metric."""
OBJECTIONS = ("not finite", "worse")
DIGITS = 12
"""The decimals to which differences are rounded: losing 3 examples of 100 is within a tolerance of 0.03."""


@dataclass(frozen=True)
class Evidence:
    """The evidence and the cost of one model."""

    tables: Mapping[str, Table]
    """The tables by task, and under ``likelihood.csv``."""
    parameters: float | None = None
    """What it costs; None if not known."""

    def table(self, metric: str) -> Table | None:
        """The table that a metric is computed from; None if there is none.

        Raises:
            UserError: the task's answers have no such score.
        """
        found = self.tables.get(source(metric))
        score = score_of(metric)
        if found is None or score in ("", SCORE):
            return found
        try:
            return found.by(score)
        except ValueError as error:
            raise UserError(f"promotion.metrics.{metric}: {error}") from error

    def results(self, metric: str) -> Results:
        """The results that a measured metric is resampled from."""
        table = self.table(metric)
        assert table is not None
        return table.results


@dataclass(frozen=True)
class Row:
    """One metric of a decision; numbers are None if the metric is missing or not finite."""

    metric: str
    direction: str
    champion: float | None
    challenger: float | None
    difference: float | None
    """Challenger minus champion."""
    verdict: str
    note: str = ""
    interval: Interval | None = None
    """The interval of the difference at ``promotion.alpha``."""
    strict: Interval | None = None
    """The interval at the level at which a challenger passes, which falls with each challenger before it."""
    earlier: str = ""
    """The version compared with, if it is not the champion but one before it."""

    @property
    def gain(self) -> float:
        """By how much the challenger is better; negative when it is worse."""
        assert self.difference is not None
        return self.difference if self.direction == "higher" else -self.difference

    def gains(self, interval: Interval) -> tuple[float, float]:
        """The ends of an interval of the difference as one of the gain."""
        low, high = interval.low, interval.high
        return (low, high) if self.direction == "higher" else (-high, -low)


def fewest(alpha: float) -> int:
    """The number of groups below which the permutation test cannot reach alpha: with G groups, 2 of the 2 ** G ways to
    swap are as extreme as the data.
    """
    return 1 + math.ceil(math.log2(1 / alpha))


def rows(challenger: Evidence, champion: Evidence | None, rules: GateRules, resamples: int, level: float) -> list[Row]:
    """Every metric of the rules, judged, in their order; ``level`` is the one at which the challenger passes."""
    single = {name: _measured(name, challenger, champion, rules) for name in rules.metrics if name != EVERY_TASK}
    draws: dict[str, Draws] = {}
    if champion is not None:
        rng = significance.generator()
        for name, row in sorted(single.items()):
            if row.difference is not None:
                single[name], found = _resampled(row, challenger, champion, rules, rng, resamples, level)
                draws |= {name: found} if found else {}
    if EVERY_TASK in rules.metrics:
        single[EVERY_TASK] = _mean(challenger, champion, rules, single, draws, level)
    return [single[name] for name in rules.metrics]


def telling(table: Sequence[Row], rules: GateRules) -> list[str]:
    """The tasks' own scores that can tell two models apart: what ``score`` is the mean of."""
    silent = {row.metric for row in table if row.verdict == NOTHING or row.note == UNLEARNED}
    return [name for name in rules.tasks() if name not in silent]


def _measured(name: str, challenger: Evidence, champion: Evidence | None, rules: GateRules) -> Row:
    """The numbers of one metric, and a verdict if there are none."""
    direction = rules.metrics[name].direction
    table = challenger.table(name)
    other = champion.table(name) if champion else None
    assert table is not None  # checked by the gate
    ours, theirs = (_finite(side.value) if side and side.metric == name else None for side in (table, other))
    if table.metric != name:
        return Row(name, direction, theirs, None, None, "not measured", _quantities(name, table, other))
    if other is not None and (other.metric != name or other.examples != table.examples) and ours is not None:
        return Row(name, direction, theirs, ours, None, "not comparable", _quantities(name, table, other))
    return _compared(Row(name, direction, theirs, ours, None, ""), champion)


def _compared(row: Row, champion: Evidence | None) -> Row:
    """The row with the difference, if there is one."""
    if row.challenger is None or (champion is not None and row.champion is None):
        return replace(row, verdict="not finite")
    if row.champion is None:
        return replace(row, verdict="no champion")
    return replace(row, difference=round(row.challenger - row.champion, DIGITS))


def _resampled(
    row: Row,
    challenger: Evidence,
    champion: Evidence,
    rules: GateRules,
    rng: np.random.Generator,
    resamples: int,
    level: float,
) -> tuple[Row, Draws | None]:
    """The row with interval and verdict, and the resamples of the difference; None if there are too few groups."""
    table = challenger.table(row.metric)
    assert table is not None  # it was measured
    if table.groups < (needed := fewest(rules.alpha)):
        note = f"{table.groups} groups of examples; at least {needed} are needed at promotion.alpha = {rules.alpha:g}"
        return replace(row, verdict=NOTHING, note=note), None
    sides = [champion.results(row.metric), challenger.results(row.metric)]
    unread = [] if isinstance(table.results, Sums) else [table.unread()]
    theirs, ours, *guessed = (found[""] for found in significance.bootstrap([*sides, *unread], rng, resamples))
    above = [significance.interval(side - guess, 1 - rules.alpha).low for guess in guessed for side in (ours, theirs)]
    note = UNLEARNED if above and max(above) <= 0 else ""
    return _judged(replace(row, note=note), ours - theirs, rules, level), ours - theirs


def _judged(row: Row, draws: Draws, rules: GateRules, level: float) -> Row:
    """The row with the intervals from resamples of the difference, and the verdict that follows."""
    tolerance = rules.metrics[row.metric].tolerance
    interval, strict = (significance.interval(draws, 1 - alpha) for alpha in (rules.alpha, level))
    low, high = row.gains(interval)
    if row.gain == 0:
        verdict = "equal"
    elif row.gain > 0:
        verdict = "better" if low > 0 else "better, perhaps by chance"
    elif row.gain >= -tolerance:
        verdict = "worse within its tolerance"
    elif high < 0:
        verdict = "worse" if high < -tolerance else "worse, perhaps within its tolerance"
    else:
        verdict = "worse, perhaps by chance"
    return replace(row, interval=interval, strict=strict, verdict=verdict)


def _mean(
    challenger: Evidence,
    champion: Evidence | None,
    rules: GateRules,
    single: Mapping[str, Row],
    draws: Mapping[str, Draws],
    level: float,
) -> Row:
    """The row of the mean over all tasks that could show a difference."""
    tasks = telling([*single.values()], rules)
    silent = [name for name in rules.tasks() if name not in tasks]
    note = f"without {', '.join(f'{name} ({single[name].note})' for name in silent)}" if silent else ""
    row = Row(EVERY_TASK, rules.metrics[EVERY_TASK].direction, None, None, None, NOTHING, note)
    if not tasks:
        return row
    theirs, ours = (
        _finite(math.fsum(side.tables[source(task)].value for task in tasks) / len(tasks)) if side else None
        for side in (champion, challenger)
    )
    row = _compared(replace(row, champion=theirs, challenger=ours), champion)
    if row.difference is None or not draws.keys() >= {*tasks}:
        return row
    mean = significance.mean([draws[name] for name in tasks])
    return _judged(row, mean, rules, level)


def _quantities(asked: str, challenger: Table, champion: Table | None) -> str:
    held = f"the challenger's evidence holds {challenger.metric}"
    if champion is None:
        return held
    if champion.metric != challenger.metric:
        return f"{held}, the champion's {champion.metric}"
    lengths = ", but excerpts of the documents may be of other lengths" if asked == challenger.metric else ""
    return f"{held}, the champion's too{lengths}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
