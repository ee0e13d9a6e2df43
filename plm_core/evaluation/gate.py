"""The gate: may a challenger replace the champion? Pure logic on two folders of per-example results.

``tasks/gate.py`` runs it. An evidence folder holds CSV files with one row a held-out example:

* ``likelihood.csv``: ``id,sha256,bytes,tokens,nats,quantity``; the metric is named by ``quantity``
  (``bits_per_byte``, ``pseudo_bits_per_byte``, ``fixed_order_bits_per_byte``): sum(nats) / ln 2 / sum(bytes);
* ``<task>.csv``: ``id,sha256,label,prediction``; the metric ``<task>/accuracy`` is the share of equal pairs.

Metrics are computed here, from the rows, on the same examples for both sides; no summary is trusted.
"""

import csv
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from plm_core.config import BadInput

LIKELIHOOD = "likelihood.csv"
QUANTITIES = ("bits_per_byte", "pseudo_bits_per_byte", "fixed_order_bits_per_byte")
LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity")
TASK_COLUMNS = ("id", "sha256", "label", "prediction")
EVERY_TASK = "accuracy"
"""A rule of this name is that of every task in the challenger's evidence that has none of its own."""
OBJECTIONS = ("not comparable", "not finite", "worse")
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
    """The metric on which the challenger must be better."""
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
        if self.primary == EVERY_TASK:
            raise ValueError(f"primary: found {EVERY_TASK!r}; expected one metric, such as <task>/accuracy")

    def for_evidence(self, folder: Path) -> "GateRules":
        """The same rules with ``accuracy`` written out for the tasks whose evidence lies in ``folder``."""
        rules = dict(self.metrics)
        if (every := rules.pop(EVERY_TASK, None)) is None:
            return self
        tasks = sorted(path.stem for path in folder.glob("*.csv") if path.name != LIKELIHOOD)
        return replace(self, metrics={f"{task}/accuracy": every for task in tasks} | rules)

    def files(self) -> list[str]:
        """The evidence files that these metrics need."""
        return sorted({_file(name) for name in self.metrics})


@dataclass(frozen=True)
class Table:
    """One evidence file: which examples, and the one metric that their results make."""

    examples: frozenset[tuple[str, str, str]]
    """(id, sha256, bytes or label): equal sets mean the same examples."""
    metric: str
    value: float


Evidence = dict[str, Table]
"""Evidence by file name."""


@dataclass(frozen=True)
class Row:
    """One metric of a decision; numbers are None where there is none or it is not finite."""

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
    """Files in which the champion's examples are not the challenger's: evaluate it again on those, then ask."""


def read_evidence(folder: Path, rules: GateRules, partial: bool = False) -> Evidence:
    """Read the evidence files that ``rules`` need from ``folder``; with ``partial``, those that exist.

    Raises:
        BadInput: a file is missing or damaged.
    """
    found = {}
    for name in rules.files():
        if (folder / name).is_file():
            found[name] = _likelihood(folder / name) if name == LIKELIHOOD else _task(folder / name)
        elif not partial:
            needing = ", ".join(metric for metric in rules.metrics if _file(metric) == name)
            raise BadInput(f"{folder / name}: missing; expected it for promotion.metrics: {needing}")
    return found


def decide(challenger: Evidence, champion: Evidence | None, rules: GateRules) -> Decision:
    """Judge the challenger; without a champion it passes when every metric is a finite number.

    Raises:
        BadInput: the challenger's evidence lacks a metric that the rules name.
    """
    for metric in rules.metrics:
        if _file(metric) not in challenger:
            raise BadInput(f"promotion.metrics.{metric}: the challenger's evidence lacks {_file(metric)}")
    if champion is not None:
        differ = [name for name in rules.files() if not _same_examples(challenger[name], champion.get(name))]
        if differ:
            reason = f"the champion's evidence holds other examples than the challenger's: {', '.join(differ)}"
            return Decision(passed=False, reasons=[reason], table=[], examples_differ=differ)
    rows = [
        _judge(name, rule, challenger[_file(name)], champion[_file(name)] if champion is not None else None)
        for name, rule in rules.metrics.items()
    ]
    against = [_objection(row, rules) for row in rows if row.verdict in OBJECTIONS]
    primary = next(row for row in rows if row.metric == rules.primary)
    if primary.difference is not None and (gain := _gain(primary)) <= rules.min_gain:
        against.append(f"{primary.metric}: gains {gain:g}; expected more than promotion.min_gain = {rules.min_gain:g}")
    if against:
        return Decision(passed=False, reasons=against, table=rows)
    if champion is None:
        return Decision(passed=True, reasons=["there is no champion yet, and every metric is finite"], table=rows)
    reason = f"{primary.metric} is better by {_gain(primary):g}, and no metric is worse than its tolerance allows"
    return Decision(passed=True, reasons=[reason], table=rows)


def _judge(name: str, rule: MetricRule, challenger: Table, champion: Table | None) -> Row:
    ours, theirs = _finite(challenger.value), _finite(champion.value) if champion else None
    if challenger.metric != name or (champion is not None and champion.metric != name):
        return Row(name, rule.direction, None, None, None, "not comparable", _quantities(challenger, champion))
    if ours is None or (champion is not None and theirs is None):
        return Row(name, rule.direction, theirs, ours, None, "not finite")
    if theirs is None:
        return Row(name, rule.direction, None, ours, None, "no champion")
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
    if row.verdict == "not comparable":
        return f"{row.metric}: not comparable: {row.note}"
    if row.verdict == "not finite":
        return f"{row.metric}: not a finite number"
    return f"{row.metric}: worse by {-_gain(row):g}; allowed are {rules.metrics[row.metric].tolerance:g}"


def _quantities(challenger: Table, champion: Table | None) -> str:
    held = f"the challenger's evidence holds {challenger.metric}"
    return held if champion is None else f"{held}, the champion's {champion.metric}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _file(metric: str) -> str:
    return LIKELIHOOD if metric in QUANTITIES else f"{metric.removesuffix('/accuracy')}.csv"


def _same_examples(challenger: Table, champion: Table | None) -> bool:
    return champion is not None and challenger.examples == champion.examples


def _likelihood(path: Path) -> Table:
    rows = _rows(path, LIKELIHOOD_COLUMNS)
    quantities = sorted({row["quantity"] for row in rows})
    if len(quantities) > 1 or quantities[0] not in QUANTITIES:
        raise BadInput(
            f"{path}: the column quantity holds {', '.join(quantities)}; expected one of {', '.join(QUANTITIES)}"
        )
    try:
        size = sum(int(row["bytes"]) for row in rows)
        # fsum is exact: the order of the rows changes no digit.
        nats = math.fsum(float(row["nats"]) for row in rows)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{path}: {error}; expected numbers in the columns bytes and nats") from error
    if size <= 0:
        raise BadInput(f"{path}: {size} bytes of text; expected at least 1")
    return Table(_examples(rows, "bytes"), quantities[0], nats / math.log(2) / size)


def _task(path: Path) -> Table:
    rows = _rows(path, TASK_COLUMNS)
    correct = sum(row["label"] == row["prediction"] for row in rows)
    return Table(_examples(rows, "label"), f"{path.stem}/accuracy", correct / len(rows))


def _examples(rows: list[dict[str, str]], content: str) -> frozenset[tuple[str, str, str]]:
    return frozenset((row["id"], row["sha256"], row[content]) for row in rows)


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise BadInput(f"{path}: lacks the columns {', '.join(missing)}; expected {','.join(columns)}")
        rows = list(reader)
    if not rows:
        raise BadInput(f"{path}: holds no example; expected at least one row")
    seen: set[str] = set()
    for number, row in enumerate(rows, start=2):
        if any(row[name] is None for name in columns):
            raise BadInput(f"{path}:{number}: too few fields; expected {','.join(columns)}")
        if row["id"] in seen:
            raise BadInput(f"{path}:{number}: the id {row['id']!r} occurs twice; expected one row an example")
        seen.add(row["id"])
    return rows
