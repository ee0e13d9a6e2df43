"""The rules by which the gate judges: the section ``promotion`` of ``params.yaml``. Used by ``gate.py``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat

from plm_core.config import UserError, section
from plm_core.evaluation.answers import parts_of
from plm_core.evaluation.evidence import COMPARED, LIKELIHOOD, LOSSY, SCORE, read_likelihood, task_files

EVERY_TASK = SCORE
"""A rule of this name is that of every task in the challenger's evidence that has none of its own. As the primary it is
the plain mean of all tasks' scores as well (the average of GLUE, Wang et al. 2019, section 3). A set of minimal pairs
is a task too."""


@section
class MetricRule:
    """How one metric is judged."""

    direction: Literal["lower", "higher"]
    """Which way is better."""
    tolerance: NonNegativeFloat
    """How far, in the metric's own unit, the challenger may be worse than the champion."""


@section
class GateRules:
    """The section ``promotion`` of ``params.yaml``, as far as the gate is concerned."""

    primary: str
    """The metric on which the challenger must be better, or not worse and cheaper; ``score`` compares models of
    different papers too, and where there are no tasks, stands for the challenger's own likelihood."""
    alpha: Annotated[float, Field(gt=0, lt=1)]
    """How often, at most, a challenger that is no better may pass for better: the level of the tests, 0.05 as a rule.
    Intervals hold the rest, 95 %."""
    margin: NonNegativeFloat
    """In the primary's own unit: a challenger that is surely not worse by more than this is not worse. It
    passes where it is cheaper."""
    metrics: dict[str, MetricRule]
    """Every metric that is compared."""
    reported: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """The share of the test documents (or other groups of examples) that only the report reads: a champion was chosen
    by the others, and looks better on them than it is. None where there are fewer than 30."""

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

    def for_evidence(self, folder: Path) -> "GateRules":
        """The same rules with ``score`` written out for the tasks whose evidence lies in ``folder``.

        Raises:
            UserError: the mean score is the primary, there is no task, and no rule for the likelihood either.
        """
        rules = dict(self.metrics)
        if (every := rules.pop(EVERY_TASK, None)) is None:
            return self
        of_tasks = {f"{task}/{SCORE}": every for task in task_files(folder)}
        if self.primary != EVERY_TASK:
            return replace(self, metrics=of_tasks | rules)
        if of_tasks or any(is_of_a_task(name) and score_of(name) == SCORE for name in rules):
            return replace(self, metrics={EVERY_TASK: every} | of_tasks | rules)
        quantity = read_likelihood(folder / LIKELIHOOD).metric
        if quantity not in rules:
            lossy = quantity.startswith(LOSSY)
            other = "a tokenizer that keeps all of a text" if lossy else f"promotion.metrics.{quantity}"
            raise UserError(
                f"promotion.primary: {EVERY_TASK}, but no task was measured, and {quantity} has no rule; expected "
                f"tasks in finetune.tasks, or {other}"
            )
        return replace(self, primary=quantity, metrics=rules)

    def tasks(self) -> list[str]:
        """The metrics among these that are a task's own score: what ``score`` is the mean of."""
        return [name for name in self.metrics if is_of_a_task(name) and score_of(name) == SCORE]

    def sources(self) -> list[str]:
        """The evidence that these metrics need: tasks by name, and ``likelihood.csv``."""
        return sorted({source(name) for name in self.metrics if name != EVERY_TASK})


def is_of_a_task(metric: str) -> bool:
    """Whether it is written ``<task>/score``, or with another score of the task, ``<task>/macro_f1``."""
    task, _, score = metric.partition("/")
    return bool(task and score) and "/" not in score


def source(metric: str) -> str:
    """The task's name, or ``likelihood.csv``."""
    return LIKELIHOOD if metric in COMPARED else metric.partition("/")[0]


def score_of(metric: str) -> str:
    """How a task's answers are scored: ``score``, which is its own, or another."""
    return metric.partition("/")[2]
