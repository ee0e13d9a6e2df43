"""The gate: may a challenger replace the champion? Applies ``gate_rules.py`` to rows of ``comparison.py``.

``docs/explanation/gate-statistics.md`` defines the decision and gives the reasons.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation import comparison, significance
from plm_core.evaluation.answers import Results
from plm_core.evaluation.evidence import (
    COST,
    LIKELIHOOD,
    PARAMETERS,
    SCORE,
    Table,
    base_quantity,
    read_cost,
    read_likelihood,
    read_task,
    task_files,
)
from plm_core.evaluation.gate_rules import EVERY_TASK, GateRules, score_of, source
from plm_core.evaluation.significance import Draws, Interval

NOTHING = "tells nothing"
"""The verdict on a metric that could not show a difference: it has too few groups of examples, or no task is left."""
UNLEARNED = "neither model is significantly better than a constant answer"
"""The note on a task that the mean over tasks leaves out, because its difference is noise."""
UNJUDGED = ("not measured", "not comparable", NOTHING)
"""Verdicts that count against the challenger only on the primary metric."""
OBJECTIONS = ("not finite", "worse")
DIGITS = 12
"""The decimals to which differences are rounded, so that losing 3 of 100 examples is within a tolerance of 0.03."""


@dataclass(frozen=True)
class Evidence:
    """The evidence and the cost of one model."""

    tables: Mapping[str, Table]
    """The tables by task, and under ``likelihood.csv``."""
    parameters: float | None = None

    def table(self, metric: str) -> Table | None:
        """The table that a metric is computed from; None if there is none.

        Raises:
            UserError: the task's answers have no such score.
        """
        table = self.tables.get(source(metric))
        score = score_of(metric)
        if table is None or score in ("", SCORE):
            return table
        try:
            return table.by(score)
        except ValueError as error:
            raise UserError(f"promotion.metrics.{metric}: {error}") from error

    def results(self, metric: str) -> Results:
        table = self.table(metric)
        assert table is not None
        return table.results


def read_evidence(folder: Path, rules: GateRules, partial: bool = False) -> Evidence:
    """Read the evidence that ``rules`` need from ``folder``, without what is only reported; with ``partial``, what
    exists of it.

    Raises:
        UserError: a file is missing or damaged.
    """
    tables = {}
    tasks = task_files(folder)
    for name in rules.sources():
        if name == LIKELIHOOD and (folder / name).is_file():
            tables[name], _ = read_likelihood(folder / name).parted(rules.reported)
        elif name in tasks:
            tables[name], _ = read_task(tasks[name]).parted(rules.reported)
        elif not partial:
            file = name if name == LIKELIHOOD else f"{name}.1.csv"
            needing = ", ".join(metric for metric in rules.metrics if metric != EVERY_TASK and source(metric) == name)
            raise UserError(f"{folder / file}: missing; expected it for promotion.metrics: {needing}")
    cost = read_cost(folder / COST) if (folder / COST).is_file() else {}
    return Evidence(tables, cost.get(PARAMETERS))


@dataclass(frozen=True)
class GateRow:
    """One metric of a decision; numbers are None if the metric is missing or not finite."""

    metric: str
    direction: str
    champion: float | None
    challenger: float | None
    difference: float | None = None
    verdict: str = ""
    note: str = ""
    interval: Interval | None = None
    """The interval of the difference at ``promotion.alpha``."""
    strict: Interval | None = None
    """The interval at the level at which a challenger passes, ``GateRules.level``."""
    tolerance: float = 0.0
    examples: int | None = None
    groups: int | None = None
    earlier: str = ""
    """The version compared with, if it is not the champion but one before it."""

    @property
    def gain(self) -> float:
        """By how much the challenger is better; negative when it is worse."""
        assert self.difference is not None
        return self.difference if self.direction == "higher" else -self.difference

    def gains(self, interval: Interval) -> tuple[float, float]:
        low, high = interval.low, interval.high
        return (low, high) if self.direction == "higher" else (-high, -low)

    def measured(self, alone: bool) -> "GateRow":
        """The row with the difference, or with a verdict if there is none; ``alone`` without a champion."""
        if self.challenger is None or (self.champion is None and not alone):
            return replace(self, verdict="not finite")
        if self.champion is None:
            return replace(self, verdict="no champion")
        return replace(self, difference=round(self.challenger - self.champion, DIGITS))

    def judged(self, change: Draws, alpha: float, level: float) -> "GateRow":
        """The row with the intervals from resamples of the difference, and the verdict that follows."""
        interval, strict = (significance.interval(change, 1 - error) for error in (alpha, level))
        low, high = self.gains(interval)
        if self.gain == 0:
            verdict = "equal"
        elif self.gain > 0:
            verdict = "better" if low > 0 else "better, perhaps by chance"
        elif self.gain >= -self.tolerance:
            verdict = "worse within its tolerance"
        elif high < 0:
            verdict = "worse" if high < -self.tolerance else "worse, perhaps within its tolerance"
        else:
            verdict = "worse, perhaps by chance"
        return replace(self, interval=interval, strict=strict, verdict=verdict)


def judged_rows(
    challenger: Evidence, champion: Evidence | None, rules: GateRules, resamples: int, level: float
) -> list[GateRow]:
    """Every metric of the rules, judged, in their order; ``level`` is the one at which the challenger passes."""
    judged: dict[str, GateRow] = {}
    changes: dict[str, Draws] = {}
    rng = significance.generator()
    fewest = _fewest(rules.alpha)
    for name in sorted(name for name in rules.metrics if name != EVERY_TASK):
        rule = rules.metrics[name]
        ours = challenger.table(name)
        theirs = champion.table(name) if champion else None
        assert ours is not None  # ``decide`` checks
        row = GateRow(name, rule.direction, _value(name, theirs), _value(name, ours), tolerance=rule.tolerance)
        # A verdict without a test, if the metric cannot be compared; only the others are resampled.
        if base_quantity(ours.metric) != name:
            row = replace(row, verdict="not measured", note=_quantities(name, ours, theirs))
        elif (
            theirs and row.challenger is not None and (theirs.metric != ours.metric or theirs.examples != ours.examples)
        ):
            row = replace(row, verdict="not comparable", note=_quantities(name, ours, theirs))
        else:
            row = row.measured(champion is None)
        if row.difference is not None:
            row = replace(row, examples=len(ours.examples), groups=ours.groups)
        if row.difference is not None and ours.groups < fewest:
            few = f"{ours.groups} groups of examples; at least {fewest} are needed at promotion.alpha = {rules.alpha:g}"
            row = replace(row, verdict=NOTHING, note=few)
        elif row.difference is not None:
            assert theirs is not None
            whole, *_ = comparison.comparison_rows(name, (theirs, ours), rng, resamples, constant=True)
            old, new, *constant = whole.draws
            changes[name] = whole.change
            # If neither model is shown to beat a constant answer, their difference is noise.
            above = [
                significance.interval(side - guess, 1 - rules.alpha).low for guess in constant for side in (old, new)
            ]
            row = replace(row, note=UNLEARNED if above and max(above) <= 0 else "")
            row = row.judged(changes[name], rules.alpha, level)
        judged[name] = row
    if EVERY_TASK in rules.metrics:
        # The mean over all tasks that could show a difference.
        rule = rules.metrics[EVERY_TASK]
        tasks = deciding_tasks(judged.values(), rules)
        silent = [f"{name} ({judged[name].note})" for name in rules.tasks() if name not in tasks]
        note = f"without {', '.join(silent)}" if silent else ""
        champions, challengers = ([getattr(judged[task], of) for task in tasks] for of in ("champion", "challenger"))
        row = GateRow(EVERY_TASK, rule.direction, _mean(champions), _mean(challengers), note=note)
        row = replace(row, tolerance=rule.tolerance)
        row = row.measured(champion is None) if tasks else replace(row, verdict=NOTHING)
        if row.difference is not None:
            mean = significance.mean([changes[name] for name in tasks])
            row = row.judged(mean, rules.alpha, level)
        judged[EVERY_TASK] = row
    return [judged[name] for name in rules.metrics]


def deciding_tasks(table: Iterable[GateRow], rules: GateRules) -> list[str]:
    """The tasks' own scores that can tell two models apart: what ``score`` is the mean of."""
    silent = {row.metric for row in table if row.verdict == NOTHING or row.note == UNLEARNED}
    return [name for name in rules.tasks() if name not in silent]


def _value(metric: str, table: Table | None) -> float | None:
    return table.value if table and base_quantity(table.metric) == metric and math.isfinite(table.value) else None


def _fewest(level: float) -> int:
    """With G groups, at least 2 of the 2 ** G swaps are as extreme as the data: with fewer groups, p exceeds this."""
    return 1 + math.ceil(math.log2(1 / level))


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if measured and len(measured) == len(values) else None


def _quantities(quantity: str, challenger: Table, champion: Table | None) -> str:
    held = f"the challenger's evidence holds {challenger.metric}"
    if champion is None:
        return held
    if champion.metric != challenger.metric:
        return f"{held}, the champion's {champion.metric}"
    same = quantity == base_quantity(challenger.metric)
    lengths = ", but excerpts of the documents may be of other lengths" if same else ""
    return f"{held}, the champion's too{lengths}"


@dataclass(frozen=True)
class Verdict:
    """The gate's decision."""

    passed: bool
    reasons: list[str]
    table: list[GateRow]
    examples_differ: list[str] = field(default_factory=list)
    """Files in which the champion's examples are not the challenger's, or that are missing: evaluate both again, then
    decide again. If only the lengths of excerpts differ, the decision still holds."""
    earlier_differs: list[str] = field(default_factory=list)
    """The same for the earlier champion."""


def decide(
    challenger: Evidence,
    champion: Evidence | None,
    rules: GateRules,
    resamples: int = significance.RESAMPLES,
    earlier_challengers: int = 0,
) -> Verdict:
    """Judge the challenger; without a champion it passes when every metric is a finite number.

    ``earlier_challengers`` is the number of challengers already judged against any champion: each lowers the level at
    which the next passes. Objections to a challenger are judged at ``promotion.alpha``. If only sets of minimal pairs
    tell the two apart, a likelihood that both have is the primary: it is measured on all of the text.

    Raises:
        UserError: the challenger's evidence lacks what the rules need.
    """
    for name in rules.sources():
        if name not in challenger.tables:
            raise UserError(f"promotion.metrics: the challenger's evidence lacks {name}")
    differ, hopeless = _others(challenger, champion, rules) if champion else ([], False)
    if hopeless:
        reason = f"the champion's evidence holds other examples than the challenger's: {', '.join(differ)}"
        return Verdict(passed=False, reasons=[reason], table=[], examples_differ=differ)
    level = rules.level(earlier_challengers + 1)
    table = judged_rows(challenger, champion, rules, resamples, level)
    # The row by which a challenger passes.
    primary = next(row for row in table if row.metric == rules.primary)
    likelihoods = [row for row in table if source(row.metric) == LIKELIHOOD and row.interval]
    tasks = deciding_tasks(table, rules)
    if primary.metric == EVERY_TASK and likelihoods and all(challenger.tables[source(t)].of_pairs for t in tasks):
        primary = likelihoods[0]
    # What counts against it, however good it is on the primary metric.
    against = [_objection(row) for row in table if row.verdict in OBJECTIONS]
    against += [_objection(primary)] if primary.verdict in UNJUDGED else []
    if champion is None:
        reasons = against or ["there is no champion yet, so it becomes the champion"]
        return Verdict(not against, reasons, table)
    if primary.interval is None or primary.strict is None:
        return Verdict(False, against, table, differ)
    # Better, or not worse and cheaper.
    metrics = tasks if primary.metric == EVERY_TASK else [primary.metric]
    results = [(champion.results(name), challenger.results(name)) for name in metrics]
    p = significance.permutation(results, significance.generator(), resamples, level)
    low, high = primary.gains(primary.strict)
    ends = f"{primary.strict.low:+.4g} to {primary.strict.high:+.4g}"
    difference = f"{primary.difference:+.4g}, {100 - 100 * level:.4g}% interval {ends}, p = {p:.2g}"
    better, worse = (end > 0 and p <= level for end in (low, -high))
    seen = f"a difference of about {primary.strict.half:.2g} could have been detected"
    verdict = f"significantly worse: {difference}" if worse else f"not significantly better: {difference} ({seen})"
    reason = f"{primary.metric} is {verdict}"
    passed = better
    if better:
        reason = f"{primary.metric} is significantly better: {difference}"
    elif low <= -rules.margin:
        reason += f", and it may be worse by more than promotion.margin = {rules.margin:g}"
    elif challenger.parameters is None or champion.parameters is None:
        reason += ", and it is not known whether it is cheaper"
        differ.append(COST)
    else:
        costs = f"{challenger.parameters:,.0f} parameters, the champion's {champion.parameters:,.0f}"
        passed = challenger.parameters < champion.parameters
        within = f"{primary.metric} is not worse by more than promotion.margin = {rules.margin:g}: {difference}"
        cheaper = f"{within}, and the model is cheaper: {costs}"
        reason = cheaper if passed else f"{reason}, and the model is not cheaper: {costs}"
    groups = sum(min(len(np.unique(side.groups)) for side in pair) for pair in results)
    if not better and groups < (fewest := _fewest(level)):
        reason += f"; {groups} groups of examples, and at least {fewest} are needed to be significantly better"
    reason += f"; {primary.note}" if primary.note else ""
    if passed and not against:
        return Verdict(True, [f"{reason}; no metric is significantly worse than its tolerance allows"], table, differ)
    if not passed and worse and primary.verdict in OBJECTIONS:
        against.remove(_objection(primary))  # the reason says so
    return Verdict(False, against if passed else [*against, reason], table, differ)


def also_against(
    decision: Verdict,
    challenger: Evidence,
    version: str,
    earlier: Evidence,
    rules: GateRules,
    resamples: int = significance.RESAMPLES,
) -> Verdict:
    """The decision, but a refusal if the challenger's likelihood is significantly worse, beyond its tolerance, than
    that of the earlier champion ``version``; the last row compares the two."""
    name = base_quantity(challenger.tables[LIKELIHOOD].metric)
    only = replace(rules, primary=name, metrics={name: rules.metrics[name]})
    differ, hopeless = _others(challenger, earlier, only)
    row = GateRow(
        name, only.metrics[name].direction, None, None, None, "not comparable", "its evidence is of other texts"
    )
    if not hopeless:
        (row,) = judged_rows(challenger, earlier, only, resamples, rules.alpha)
    what = f"version {version}, the last champion that has a {name}"
    row = replace(row, earlier=version, note=row.note and f"not compared with {what}: {row.note}")
    return replace(_with(decision, row, f"; compared with {what}"), earlier_differs=differ)


def also_on_old_text(
    decision: Verdict,
    challenger: Evidence,
    champion: Evidence,
    registered: Table,
    rules: GateRules,
    resamples: int = significance.RESAMPLES,
) -> Verdict:
    """The decision, but a refusal if the challenger's likelihood is significantly worse, beyond its tolerance, on the
    documents that the champion's likelihood held when it was registered: a mean over new text, too, can hide what was
    forgotten. The last row compares the two on them; there is none if all documents are old, or none is."""
    ours, theirs = (side.tables.get(LIKELIHOOD) for side in (challenger, champion))
    if ours is None or theirs is None or (ours.metric, ours.examples) != (theirs.metric, theirs.examples):
        return decision
    old = {example[:2] for example in registered.examples}
    held = np.array([example[:2] in old for example in ours.examples])
    name = base_quantity(ours.metric)
    if held.all() or not held.any() or name not in rules.metrics:
        return decision
    only = replace(rules, primary=name, metrics={name: rules.metrics[name]})
    now, before = (Evidence({LIKELIHOOD: table.part(held)}) for table in (ours, theirs))
    (row,) = judged_rows(now, before, only, resamples, rules.alpha)
    row = replace(row, metric=f"{name} on old text")
    return _with(decision, row, f" ({held.sum()} of {len(held)} documents, which the champion was registered with)")


def _with(decision: Verdict, row: GateRow, what: str) -> Verdict:
    """The decision with another row, which may turn it into a refusal."""
    worse = row.verdict == "worse"
    passed = decision.passed and not worse
    reason = f"{_objection(row) if worse else f'{row.metric}: {row.verdict}'}{what}"
    reasons = [*(decision.reasons if passed or not decision.passed else []), *([reason] if passed or worse else [])]
    return replace(decision, passed=passed, reasons=reasons, table=[*decision.table, row])


def _others(challenger: Evidence, champion: Evidence, rules: GateRules) -> tuple[list[str], bool]:
    """The files in which the champion has other examples, and whether more than the excerpts of documents differs.

    Quantities that are not compared on any examples do not count.
    """
    files: list[str] = []
    hopeless = False
    for name in rules.sources():
        ours = challenger.tables[name]
        theirs = champion.tables.get(name)
        if theirs is None or (ours.examples != theirs.examples and ours.metric == theirs.metric):
            files += ours.files or (name,)
            hopeless |= name != LIKELIHOOD or theirs is None or ours.documents != theirs.documents
    return files, hopeless


def _objection(row: GateRow) -> str:
    if row.verdict in UNJUDGED:
        return f"{row.metric}: {row.verdict}, and is promotion.primary: {row.note}"
    if row.verdict == "not finite":
        return f"{row.metric}: not a finite number"
    return f"{row.metric}: worse by {-row.gain:.4g}; the tolerance is {row.tolerance:g}"
