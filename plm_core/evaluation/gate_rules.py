"""The rules of the gate: the section ``promotion`` of ``params.yaml``. ``promotion_gate.py`` applies them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat

from plm_core.config import UserError, section
from plm_core.evaluation.answers import parts_of
from plm_core.evaluation.evidence import (
    COMPARED,
    LIKELIHOOD,
    SCORE,
    base_quantity,
    has_no_rows,
    read_likelihood,
    task_files,
)

EVERY_TASK = SCORE
"""A rule of this name applies to every task, or set of minimal pairs, in the challenger's evidence that has no rule of
its own. As the primary it is also the plain mean of all tasks' scores (Wang et al. 2019, section 3)."""
LOOKS = 365
"""The number of challengers over which ``alpha`` is the probability of a false promotion."""


@section
class MetricRule:
    """How one metric is judged."""

    direction: Literal["lower", "higher"]
    """The direction that is better."""
    tolerance: NonNegativeFloat
    """By how much, in the metric's own unit, the challenger may be worse than the champion."""


@section
class GateRules:
    """The section ``promotion`` of ``params.yaml``, without what concerns other parts."""

    primary: str
    """The metric on which the challenger must be better, or not worse and cheaper. ``score`` can compare any two
    models; without tasks it stands for the challenger's own likelihood."""
    alpha: Annotated[float, Field(gt=0, lt=1)]
    """Usually 0.05: the probability that, of the first 365 challengers, any that is no better is promoted as better,
    whoever is champion in between. Objections are judged at this level, and intervals cover one minus it, 95 %."""
    margin: NonNegativeFloat
    """The non-inferiority margin, in the primary's own unit: a challenger shown not to be worse by more than this
    counts as not worse. It passes if it is cheaper."""
    metrics: dict[str, MetricRule]
    """The rules of all metrics that are compared."""
    reported: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """The share of the test documents (or other groups of examples) that only the report reads: a champion was selected
    on the others, so it looks better on them than it is. With fewer than 30 groups none is held back."""

    def __post_init__(self) -> None:
        if self.primary not in self.metrics:
            raise ValueError(f"primary: found {self.primary!r}; expected one of promotion.metrics")
        for name, rule in self.metrics.items():
            if name not in (*COMPARED, EVERY_TASK) and not is_of_a_task(name):
                raise ValueError(
                    f"metrics.{name}: unknown; expected {EVERY_TASK}, <task>/{SCORE}, <task>/<another score> or one of "
                    f"{', '.join(COMPARED)}"
                )
            if is_of_a_task(name) and (score := score_of(name)) != SCORE:
                try:
                    parts_of(score)
                except ValueError as error:
                    raise ValueError(f"metrics.{name}: {error}") from error
            better = "lower" if name in COMPARED else "higher"
            if rule.direction != better:
                raise ValueError(
                    f"metrics.{name}.direction: found {rule.direction}; expected {better}, which is better"
                )

    def for_evidence(self, folder: Path, champion: Path | None = None) -> "GateRules":
        """The same rules with ``score`` written out for the tasks whose evidence lies in ``folder``, without those that
        the champion, whose evidence is in another folder, cannot do.

        Raises:
            UserError: the mean score is the primary, there is no task, and no rule for the likelihood either.
        """
        rules = dict(self.metrics)
        if (every := rules.pop(EVERY_TASK, None)) is None:
            return self
        tasks = task_files(folder)
        if champion:
            tasks = {t: files for t, files in tasks.items() if not any(has_no_rows(champion / f.name) for f in files)}
        of_tasks = {f"{task}/{SCORE}": every for task in tasks}
        if self.primary != EVERY_TASK:
            return replace(self, metrics=of_tasks | rules)
        if of_tasks or any(is_of_a_task(name) and score_of(name) == SCORE for name in rules):
            return replace(self, metrics={EVERY_TASK: every} | of_tasks | rules)
        quantity = base_quantity(read_likelihood(folder / LIKELIHOOD).metric)
        if quantity not in rules:
            raise UserError(
                f"promotion.primary: {EVERY_TASK}, but no task was measured, and {quantity} has no rule; expected "
                f"tasks in finetune.tasks, or promotion.metrics.{quantity}"
            )
        return replace(self, primary=quantity, metrics=rules)

    def level(self, look: int) -> float:
        """The two-sided level at which the challenger of this look, counted from 1, passes.

        Only the better half of it promotes, so these halves, which fall as 1 / look, add up to ``alpha`` after
        ``LOOKS``: a union bound, however much the challengers depend on each other.
        """
        return 2 * self.alpha / (look * sum(1 / k for k in range(1, LOOKS + 1)))

    def tasks(self) -> list[str]:
        """The metrics that are a task's own score: those that ``score`` is the mean of."""
        return [name for name in self.metrics if is_of_a_task(name) and score_of(name) == SCORE]

    def sources(self) -> list[str]:
        """The evidence that these metrics need: tasks by name, and ``likelihood.csv``."""
        return sorted({source(name) for name in self.metrics if name != EVERY_TASK})


def is_of_a_task(metric: str) -> bool:
    """Whether the metric is one of a task: ``<task>/score``, or another score such as ``<task>/macro_f1``."""
    task, _, score = metric.partition("/")
    return bool(task and score) and "/" not in score


def source(metric: str) -> str:
    """The source of a metric: the task's name, or ``likelihood.csv``."""
    return LIKELIHOOD if metric in COMPARED else metric.partition("/")[0]


def score_of(metric: str) -> str:
    """The score of a metric: ``score``, the task's own, or another."""
    return metric.partition("/")[2]
