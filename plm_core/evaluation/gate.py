"""The gate: may a challenger replace the champion? Pure logic on two folders of per-example results.

``tasks/gate.py`` runs it; ``evidence.py`` says what an evidence folder holds, ``rules.py`` what is asked. Metrics are
computed from its rows, on the same examples for both sides; no summary is trusted. Models of different papers have
likelihoods of different quantities, which are never compared; their scores at the tasks are.

A challenger passes when it is significantly better on the primary: the bootstrap's interval of the difference lies
above 0, and the permutation test agrees (the one speaks of other seeds too, the other is right for few examples). Or
when it is cheaper, and the interval's lower end is above -margin (a test of non-inferiority): within the margin it may
even be significantly worse, for that is what a margin allows. No metric may be worse by more than its tolerance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Results
from plm_core.evaluation.evidence import (
    COST,
    LIKELIHOOD,
    PARAMETERS,
    SCORE,
    Table,
    read_cost,
    read_likelihood,
    read_task,
    task_files,
)
from plm_core.evaluation.rules import EVERY_TASK, GateRules, score_of, source
from plm_core.evaluation.significance import Interval

UNJUDGED = ("not measured", "not comparable")
"""Verdicts on a likelihood of another quantity or excerpt: against the challenger only where it is the primary."""
OBJECTIONS = ("not finite", "worse")
DIGITS = 12
"""Decimals to which differences are rounded: losing 3 examples of 100 is within a tolerance of 0.03."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one model."""

    tables: Mapping[str, Table]
    """By task, and under ``likelihood.csv``."""
    parameters: float | None = None
    """What it costs; None where that is not known."""

    def table(self, metric: str) -> Table | None:
        """What a metric is taken of, by its score; None where there is none.

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


@dataclass(frozen=True)
class Row:
    """One metric of a decision; numbers are None where there is none of this name or it is not finite."""

    metric: str
    direction: str
    champion: float | None
    challenger: float | None
    difference: float | None
    """Challenger minus champion."""
    verdict: str
    note: str = ""
    interval: Interval | None = None
    """Of the difference."""


@dataclass(frozen=True)
class Decision:
    """What the gate says."""

    passed: bool
    reasons: list[str]
    """Why; for a refusal, every reason against."""
    table: list[Row]
    examples_differ: list[str] = field(default_factory=list)
    """Files in which the champion's examples are not the challenger's, or that are missing: evaluate both again, then
    ask. If its documents are the same, and only the excerpts of them are of other lengths, the decision holds even so:
    another tokenizer's tokens will never be as long."""


def read_evidence(folder: Path, rules: GateRules, partial: bool = False) -> Evidence:
    """Read the evidence that ``rules`` need from ``folder``; with ``partial``, what exists of it.

    Raises:
        UserError: a file is missing or damaged.
    """
    found = {}
    tasks = task_files(folder)
    for name in rules.sources():
        if name == LIKELIHOOD and (folder / name).is_file():
            found[name] = read_likelihood(folder / name)
        elif name in tasks:
            found[name] = read_task(tasks[name])
        elif not partial:
            file = name if name == LIKELIHOOD else f"{name}.1.csv"
            needing = ", ".join(metric for metric in rules.metrics if metric != EVERY_TASK and source(metric) == name)
            raise UserError(f"{folder / file}: missing; expected it for promotion.metrics: {needing}")
    cost = read_cost(folder / COST) if (folder / COST).is_file() else {}
    return Evidence(found, cost.get(PARAMETERS))


def decide(challenger: Evidence, champion: Evidence | None, rules: GateRules) -> Decision:
    """Judge the challenger; without a champion it passes when every metric is a finite number.

    Likelihoods that the challenger or the champion does not have are left out. The primary never is: so at least one
    metric has been judged where a challenger passes.

    Raises:
        UserError: the challenger's evidence lacks what the rules need.
    """
    for name in rules.sources():
        if name not in challenger.tables:
            raise UserError(f"promotion.metrics: the challenger's evidence lacks {name}")
    differ: list[str] = []
    if champion is not None:
        pairs = {name: (challenger.tables[name], champion.tables.get(name)) for name in rules.sources()}
        other = [name for name, (ours, theirs) in pairs.items() if not _comparable(ours, theirs)]
        differ = [file for name in other for file in challenger.tables[name].files or (name,)]
        if any(name != LIKELIHOOD or not _same_documents(*pairs[name]) for name in other):
            reason = f"the champion's evidence holds other examples than the challenger's: {', '.join(differ)}"
            return Decision(passed=False, reasons=[reason], table=[], examples_differ=differ)
    rows = _rows(challenger, champion, rules)
    primary = next(row for row in rows if row.metric == rules.primary)
    against = [_objection(row, rules) for row in rows if row.verdict in OBJECTIONS]
    if primary.verdict in UNJUDGED:
        against.append(_objection(primary, rules))
    if champion is None:
        reasons = against or ["there is no champion yet, and every metric is finite"]
        return Decision(not against, reasons, rows)
    if primary.interval is None:
        return Decision(False, against, rows, differ)
    passed, reason, lacking = _on_the_primary(primary, challenger, champion, rules)
    if against or not passed:
        return Decision(False, against if passed else [*against, reason], rows, differ + lacking)
    return Decision(True, [f"{reason}; no metric is worse than its tolerance allows"], rows, differ)


def _on_the_primary(
    row: Row, challenger: Evidence, champion: Evidence, rules: GateRules
) -> tuple[bool, str, list[str]]:
    """Whether the challenger passes by the primary, why or why not, and files without which that cannot be told."""
    assert row.interval is not None
    gain = _gain(row)
    sign = 1 if row.direction == "higher" else -1
    low, high = sorted((sign * row.interval.low, sign * row.interval.high))
    pairs = list(zip(_parts(row.metric, champion, rules), _parts(row.metric, challenger, rules), strict=True))
    p = significance.permutation(pairs, significance.generator())
    found = f"{gain:+.4g}, {1 - rules.alpha:.0%} interval {low:+.4g} to {high:+.4g}, p = {p:.2g}"
    if low > 0 and p <= rules.alpha:
        return True, f"{row.metric} is significantly better: {found}", []
    if high < 0 and p <= rules.alpha:
        verdict = f"{row.metric} is significantly worse: {found}"
    else:
        seen = f"a difference of about {row.interval.half:.2g} could have been seen"
        verdict = f"{row.metric} is not significantly better: {found} ({seen})"
    if low <= -rules.margin:
        surely = f"it may be worse by more than promotion.margin = {rules.margin:g}"
        return False, f"{verdict}, and {surely}", []
    ours, theirs = challenger.parameters, champion.parameters
    if ours is None or theirs is None:
        return False, f"{verdict}, and whether it is cheaper is not known", [COST]
    costs = f"{ours:,.0f} parameters, the champion's {theirs:,.0f}"
    if ours < theirs:
        within = f"is not worse by more than promotion.margin = {rules.margin:g}: {found}"
        return True, f"{row.metric} {within}, and the model is cheaper: {costs}", []
    return False, f"{verdict}, and the model is not cheaper: {costs}", []


def _rows(challenger: Evidence, champion: Evidence | None, rules: GateRules) -> list[Row]:
    """Every metric judged, with the interval of its difference where there is one."""
    rows = [_judge(name, challenger, champion, rules) for name in rules.metrics]
    if champion is None:
        return rows
    draws: dict[str, np.ndarray] = {}
    rng = significance.generator()
    for row in sorted(rows, key=lambda row: row.metric):
        if row.difference is not None and row.metric != EVERY_TASK:
            pair = [_results(row.metric, side) for side in (champion, challenger)]
            theirs, ours = significance.bootstrap(pair, rng)
            draws[row.metric] = ours[""] - theirs[""]
    if all(name in draws for name in rules.tasks()) and rules.tasks():
        draws[EVERY_TASK] = np.mean([draws[name] for name in rules.tasks()], axis=0)
    return [
        replace(row, interval=significance.interval(draws[row.metric], 1 - rules.alpha))
        if row.metric in draws and row.difference is not None
        else row
        for row in rows
    ]


def _judge(name: str, challenger: Evidence, champion: Evidence | None, rules: GateRules) -> Row:
    direction, tolerance = rules.metrics[name].direction, rules.metrics[name].tolerance
    if name == EVERY_TASK:
        ours, theirs = (_mean(side, rules) if side else None for side in (challenger, champion))
    else:
        table = challenger.table(name)
        other = champion.table(name) if champion else None
        assert table is not None  # ``decide`` has looked
        ours, theirs = (_finite(side.value) if side and side.metric == name else None for side in (table, other))
        if table.metric != name:
            return Row(name, direction, theirs, None, None, "not measured", _quantities(name, table, other))
        if other is not None and (other.metric != name or other.examples != table.examples) and ours is not None:
            return Row(name, direction, theirs, ours, None, "not comparable", _quantities(name, table, other))
    if ours is None or (champion is not None and theirs is None):
        return Row(name, direction, theirs, ours, None, "not finite")
    if theirs is None:
        return Row(name, direction, None, ours, None, "no champion")
    row = Row(name, direction, theirs, ours, round(ours - theirs, DIGITS), "")
    gain = _gain(row)
    if gain < -tolerance:
        verdict = "worse"
    elif gain < 0:
        verdict = "worse within its tolerance"
    else:
        verdict = "better" if gain > 0 else "equal"
    return replace(row, verdict=verdict)


def _gain(row: Row) -> float:
    """By how much the challenger is better; negative when it is worse."""
    assert row.difference is not None
    return row.difference if row.direction == "higher" else -row.difference


def _objection(row: Row, rules: GateRules) -> str:
    if row.verdict in UNJUDGED:
        return f"{row.metric}: {row.verdict}, and is promotion.primary: {row.note}"
    if row.verdict == "not finite":
        return f"{row.metric}: not a finite number"
    return f"{row.metric}: worse by {-_gain(row):g}; allowed are {rules.metrics[row.metric].tolerance:g}"


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


def _mean(evidence: Evidence, rules: GateRules) -> float | None:
    values = [evidence.tables[source(task)].value for task in rules.tasks()]
    return _finite(math.fsum(values) / len(values))


def _parts(metric: str, evidence: Evidence, rules: GateRules) -> list[Results]:
    """What a metric is the mean of."""
    return [_results(name, evidence) for name in (rules.tasks() if metric == EVERY_TASK else [metric])]


def _results(metric: str, evidence: Evidence) -> Results:
    table = evidence.table(metric)
    assert table is not None
    return table.results


def _comparable(challenger: Table, champion: Table | None) -> bool:
    """Whether both have the same examples, or quantities that are not compared on any."""
    return champion is not None and (challenger.examples == champion.examples or challenger.metric != champion.metric)


def _same_documents(challenger: Table, champion: Table | None) -> bool:
    return champion is not None and challenger.documents == champion.documents
