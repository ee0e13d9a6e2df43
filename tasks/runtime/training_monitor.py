"""Follows a training run for a stage: reports to MLflow and the terminal, edits and signals noticed in time."""

import contextlib
import json
import os
from collections.abc import Callable, Generator
from enum import IntEnum
from pathlib import Path

from plm_core.config import digest
from plm_core.evaluation.sealed_csv import write_rows
from plm_core.shared import paths
from plm_core.training.callbacks.anomaly_monitor import Diverged
from plm_core.training.callbacks.loss_metrics import StepMetrics, best_report
from plm_core.training.loop import Stopped
from plm_core.training.ranks import Unfit
from tasks.parameters.environment_limits import leads
from tasks.reporting.training_costs import CostReport
from tasks.runtime.provenance_guard import Edited
from tasks.runtime.stage import BudgetSpent, Interrupted, Progress, Stage, deferred_signals

HIGHER = "raise PLM_BUDGET to resume from there"


class Reason(IntEnum):
    """Why a training run is stopped; 0 if it is not. Of all processes' reasons the largest one counts."""

    SIGNAL = 1
    EDITED = 2
    """Something that it depends on was edited."""
    SPENT = 3
    """It has used up its budget."""


def snapshots_folder(stage: Stage, *parts: object) -> Path:
    """The folder of a training run's snapshots, named after its stage, and after ``parts``, inputs and code, which its
    result depends on."""
    return paths.SNAPSHOTS / f"{stage.name}-{digest(*parts, stage.inputs, stage.guard.code)[:16]}"


def follow(
    training: Callable[..., Generator[StepMetrics, None, None]],
    steps: int,
    stage: Stage,
    section: str,
    batch: Callable[[int], str],
    costs: CostReport,
) -> list[StepMetrics]:
    """Consume the reports of ``train`` to the end and return them.

    ``training(interrupted=...)`` starts it, ``section`` holds its parameters, ``batch(step)`` describes a batch,
    ``costs`` adds up what it costs.

    Raises:
        Diverged: the loss is not finite; the message names the dotted parameter, the step and the batch.
        Unfit: the batch does not fit the machine; the message names the dotted parameter.
        Interrupted: SIGTERM or SIGINT arrived; the state of the last step is saved.
        BudgetSpent: the training run has used up its budget, now or before it started; the state is saved.
        Edited: something that the result depends on has changed; the state is saved too.
    """
    seen: list[StepMetrics] = []
    positions = passed = 0
    edited: list[Edited] = []
    if costs.taken.seconds and (spent := costs.overspent()):  # by the processes before this one
        raise BudgetSpent(f"{spent}; {HIGHER}")

    def reason(signalled: bool) -> int:
        if edited:
            return Reason.EDITED
        return Reason.SPENT if costs.overspent() else Reason.SIGNAL * signalled

    progress = Progress(stage.name, steps)
    with deferred_signals() as interrupted, costs:
        try:
            for report in training(interrupted=lambda: reason(interrupted())):
                if not report.restored and report.passed != passed:
                    # Also when it resumes after a rollback: points later than its snapshot may be from before that.
                    stage.tracker.repeat(report.step)
                    passed = report.passed
                if not report.restored and seen and seen[-1].restored and leads():
                    last = f"the last report was after step {seen[-1].step} of {steps}"
                    print(f"{stage.name}: resumed; {last}", flush=True)
                while seen and seen[-1].step >= report.step:  # undone by a rollback
                    positions -= seen.pop().positions
                seen.append(report)
                positions += report.positions
                costs.add(report.steps, positions, report.throughput, report.first)
                stage.tracker.log(_points(report) | costs.points, report.step)
                if (path := os.environ.get("PLM_REPORTS")) and leads():  # for outside observers
                    line = json.dumps({"stage": stage.name, "step": report.step, "metrics": _points(report)}) + "\n"
                    with contextlib.suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
                        file.write(line)
                if report.restored:
                    progress.resume(report.step)
                    continue
                best = min((r.valid_loss for r in seen if r.valid_loss is not None), default=None)
                valid = "" if best is None else f"best valid {best:.3f}"
                progress.update(report.step, ", ".join(filter(None, (f"loss {report.loss:.3f}", valid, costs.note))))
                try:
                    stage.guard.check()
                except Edited as error:
                    edited.append(error)
        # The loop's errors become the stage's, which name parameters and what to do.
        except Stopped as error:
            if error.reason == Reason.EDITED:  # as the first process noticed
                raise edited[0] if edited else Edited("edited while the stage ran, as another process says") from error
            if error.reason == Reason.SPENT:
                spent = costs.overspent() or "another process says that PLM_BUDGET is spent"
                raise BudgetSpent(f"{spent}; {error} of {steps}; {HIGHER}") from error
            raise Interrupted(f"{error} of {steps}; the next run resumes from there") from error
        except Diverged as error:
            raise Diverged(f"{section}.training.{error}; the batch held {batch(error.batch)}", error.batch) from error
        except Unfit as error:
            raise Unfit(f"{section}.training.{error}") from error
    return seen


def write_curve(path: Path, reports: list[StepMetrics]) -> None:
    """Write the loss curve as CSV: the step, the loss, and, only at validations, the validation loss (both in nats) and
    whether its weights are the ones that are kept."""
    best = best_report(reports)
    rows = ((r.step, r.loss, r.valid_loss, None if r.valid_loss is None else int(r is best)) for r in reports)
    write_rows(path, ("step", "loss", "valid_loss", "best"), rows)


def _points(report: StepMetrics) -> dict[str, float]:
    points = {"loss": report.loss, "gradient_norm": report.gradient_norm, "learning_rate": report.learning_rate}
    if report.valid_loss is not None:
        points["valid_loss"] = report.valid_loss
    if report.valid_score is not None:
        points["valid_score"] = report.valid_score
    if report.skipped:
        points["skipped"] = report.skipped
    return points
