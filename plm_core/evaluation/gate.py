"""The gate: may a challenger replace the champion? Pure logic on two folders of per-example results.

``tasks/gate.py`` runs it; ``evidence.py`` says what an evidence folder holds. Metrics are computed from its rows, on
the same examples for both sides; no summary is trusted. Models of different papers have likelihoods of different
quantities, which are never compared; their accuracies are.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from plm_core.config import BadInput
from plm_core.evaluation.evidence import LIKELIHOOD, LOSSY, QUANTITIES, Table, read_likelihood, read_task

EVERY_TASK = "accuracy"
"""A rule of this name is that of every task in the challenger's evidence that has none of its own. As the primary it is
the plain mean of all tasks' accuracies as well (the average of GLUE, Wang et al. 2019, section 3)."""
UNJUDGED = ("not measured", "not comparable")
"""Verdicts on a likelihood of another quantity or excerpt: against the challenger only where it is the primary."""
OBJECTIONS = ("not finite", "worse")
DIGITS = 12
"""Decimals to which differences are rounded: losing 3 examples of 100 is within a tolerance of 0.03."""


@dataclass(frozen=True)
class MetricRule:
    """How one metric is judged."""

    direction: Literal["lower", "higher"]
    """Which way is better."""
    tolerance: float
    """How far, in the metric's own unit, the challenger may be worse than the champion; 0 or more."""

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance: found {self.tolerance}; expected a number from 0")


@dataclass(frozen=True)
class GateRules:
    """The section ``promotion`` of ``params.yaml``, as far as the gate is concerned."""

    primary: str
    """The metric on which the challenger must be better; ``accuracy`` compares models of different papers too, and
    where there are no tasks, stands for the challenger's own likelihood."""
    min_gain: float
    """By more than this, in the metric's own unit; 0 or more."""
    metrics: dict[str, MetricRule]
    """Every metric that is compared."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_gain < math.inf:
            raise ValueError(f"min_gain: found {self.min_gain}; expected a number from 0")
        if self.primary not in self.metrics:
            raise ValueError(f"primary: found {self.primary!r}; expected one of promotion.metrics")
        for name in self.metrics:
            if name not in (*QUANTITIES, EVERY_TASK) and not (name.endswith("/accuracy") and name.count("/") == 1):
                raise ValueError(
                    f"metrics.{name}: unknown; expected {EVERY_TASK}, <task>/accuracy or one of {', '.join(QUANTITIES)}"
                )

    def for_evidence(self, folder: Path) -> "GateRules":
        """The same rules with ``accuracy`` written out for the tasks whose evidence lies in ``folder``.

        Raises:
            BadInput: the mean accuracy is the primary, there is no task, and no rule for the likelihood either.
        """
        rules = dict(self.metrics)
        if (every := rules.pop(EVERY_TASK, None)) is None:
            return self
        tasks = sorted(path.stem for path in folder.glob("*.csv") if path.name != LIKELIHOOD)
        accuracies = {f"{task}/accuracy": every for task in tasks}
        if self.primary != EVERY_TASK:
            return replace(self, metrics=accuracies | rules)
        if accuracies or any(name.endswith("/accuracy") for name in rules):
            return replace(self, metrics={EVERY_TASK: every} | accuracies | rules)
        quantity = read_likelihood(folder / LIKELIHOOD).metric
        if quantity not in rules:
            lossy = quantity.startswith(LOSSY)
            other = "a tokenizer that keeps all of a text" if lossy else f"promotion.metrics.{quantity}"
            raise BadInput(
                f"promotion.primary: {EVERY_TASK}, but no task was measured, and {quantity} has no rule; expected "
                f"tasks in finetune.tasks, or {other}"
            )
        return replace(self, primary=quantity, metrics=rules)

    def tasks(self) -> list[str]:
        """The metrics among these that are a task's accuracy."""
        return [name for name in self.metrics if name.endswith("/accuracy")]

    def files(self) -> list[str]:
        """The evidence files that these metrics need."""
        return sorted({_file(name) for name in self.metrics if name != EVERY_TASK})


Evidence = dict[str, Table]
"""Evidence by file name."""


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


@dataclass(frozen=True)
class Decision:
    """What the gate says."""

    passed: bool
    reasons: list[str]
    """Why; for a refusal, every reason against."""
    table: list[Row]
    examples_differ: list[str] = field(default_factory=list)
    """Files in which the champion's examples are not the challenger's: evaluate it again on those, then ask. If its
    documents are the same, and only the excerpts of them are of other lengths, the decision holds even so: another
    tokenizer's tokens will never be as long."""


def read_evidence(folder: Path, rules: GateRules, partial: bool = False) -> Evidence:
    """Read the evidence files that ``rules`` need from ``folder``; with ``partial``, those that exist.

    Raises:
        BadInput: a file is missing or damaged.
    """
    found = {}
    for name in rules.files():
        if (folder / name).is_file():
            found[name] = read_likelihood(folder / name) if name == LIKELIHOOD else read_task(folder / name)
        elif not partial:
            needing = ", ".join(m for m in rules.metrics if m != EVERY_TASK and _file(m) == name)
            raise BadInput(f"{folder / name}: missing; expected it for promotion.metrics: {needing}")
    return found


def decide(challenger: Evidence, champion: Evidence | None, rules: GateRules) -> Decision:
    """Judge the challenger; without a champion it passes when every metric is a finite number.

    Likelihoods that the challenger or the champion does not have are left out. The primary never is: so at least one
    metric has been judged where a challenger passes.

    Raises:
        BadInput: the challenger's evidence lacks a file that the rules need.
    """
    for name in rules.files():
        if name not in challenger:
            raise BadInput(f"promotion.metrics: the challenger's evidence lacks {name}")
    differ: list[str] = []
    if champion is not None:
        differ = [name for name in rules.files() if not _comparable(challenger[name], champion.get(name))]
        if any(name != LIKELIHOOD or not _same_documents(challenger[name], champion.get(name)) for name in differ):
            reason = f"the champion's evidence holds other examples than the challenger's: {', '.join(differ)}"
            return Decision(passed=False, reasons=[reason], table=[], examples_differ=differ)
    rows = [
        _judge(name, rule, _table(name, challenger, rules), None if champion is None else _table(name, champion, rules))
        for name, rule in rules.metrics.items()
    ]
    primary = next(row for row in rows if row.metric == rules.primary)
    against = [_objection(row, rules) for row in rows if row.verdict in OBJECTIONS]
    if primary.verdict in UNJUDGED:
        against.append(_objection(primary, rules))
    if primary.difference is not None and (gain := _gain(primary)) <= rules.min_gain:
        against.append(f"{primary.metric}: gains {gain:g}; expected more than promotion.min_gain = {rules.min_gain:g}")
    if against:
        return Decision(passed=False, reasons=against, table=rows, examples_differ=differ)
    if champion is None:
        return Decision(passed=True, reasons=["there is no champion yet, and every metric is finite"], table=rows)
    reason = f"{primary.metric} is better by {_gain(primary):g}, and no metric is worse than its tolerance allows"
    return Decision(passed=True, reasons=[reason], table=rows, examples_differ=differ)


def _judge(name: str, rule: MetricRule, challenger: Table, champion: Table | None) -> Row:
    ours, theirs = (_finite(side.value) if side and side.metric == name else None for side in (challenger, champion))
    if challenger.metric != name:
        return Row(name, rule.direction, theirs, None, None, "not measured", _quantities(challenger, champion))
    if ours is None:
        return Row(name, rule.direction, theirs, None, None, "not finite")
    if champion is None:
        return Row(name, rule.direction, None, ours, None, "no champion")
    if champion.metric != name or champion.examples != challenger.examples:
        return Row(name, rule.direction, theirs, ours, None, "not comparable", _quantities(challenger, champion))
    if theirs is None:
        return Row(name, rule.direction, None, ours, None, "not finite")
    row = Row(name, rule.direction, theirs, ours, round(ours - theirs, DIGITS), "")
    gain = _gain(row)
    if gain < -rule.tolerance:
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


def _quantities(challenger: Table, champion: Table | None) -> str:
    held = f"the challenger's evidence holds {challenger.metric}"
    if champion is None:
        return held
    if champion.metric == challenger.metric:
        return f"{held}, the champion's too, but excerpts of the documents may be of other lengths"
    return f"{held}, the champion's {champion.metric}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _file(metric: str) -> str:
    return LIKELIHOOD if metric in QUANTITIES else f"{metric.removesuffix('/accuracy')}.csv"


def _table(metric: str, evidence: Evidence, rules: GateRules) -> Table:
    """What ``evidence`` holds for a metric; the mean of all tasks is made here."""
    if metric != EVERY_TASK:
        return evidence[_file(metric)]
    values = [evidence[_file(task)].value for task in rules.tasks()]
    return Table(frozenset(), EVERY_TASK, math.fsum(values) / len(values))


def _comparable(challenger: Table, champion: Table | None) -> bool:
    """Whether both have the same examples, or quantities that are not compared on any."""
    return champion is not None and (challenger.examples == champion.examples or challenger.metric != champion.metric)


def _same_documents(challenger: Table, champion: Table | None) -> bool:
    return champion is not None and challenger.documents == champion.documents
