"""Follows a training for a stage: reports to MLflow and the terminal, edits and signals noticed in time."""

import contextlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from plm_core.files import atomic_text
from plm_core.training.loop import Diverged, Report
from tasks.seam.progress import Meter
from tasks.seam.stage import Interrupted, Stage, deferred_signals


def follow(reports: Generator[Report, None, None], steps: int, stage: Stage, section: str) -> list[Report]:
    """Consume the reports of ``train`` to the end and return them; ``section`` holds its parameters.

    Raises:
        Diverged: the loss is not finite; the message names the dotted parameter.
        Interrupted: SIGTERM or SIGINT came; the state of the last report is saved.
        Edited: something the result depends on has changed; the state is saved too.
    """
    seen: list[Report] = []
    with contextlib.closing(reports), deferred_signals() as interrupted, Meter(stage.name, steps) as meter:
        for report in _named(reports, f"{section}.training"):
            seen.append(report)
            stage.tracker.log(_points(report), report.step)
            meter.update(report.step, _note(report, seen))
            if report.seconds == 0.0:
                continue  # restored from a snapshot
            stage.guard.check()
            if interrupted():
                raise Interrupted(f"state saved at step {report.step} of {steps}; the next run goes on from there")
    return seen


def _named(reports: Iterable[Report], where: str) -> Iterator[Report]:
    try:
        yield from reports
    except Diverged as error:
        raise Diverged(f"{where}.{error}") from error


def write_curve(path: Path, reports: list[Report]) -> None:
    """Write the loss curve as CSV with the columns step, loss, valid_loss (nats; empty between validations)."""
    rows = [f"{r.step},{r.loss!r},{'' if r.valid_loss is None else repr(r.valid_loss)}" for r in reports]
    atomic_text(path, "\n".join(["step,loss,valid_loss", *rows]) + "\n")


def _points(report: Report) -> dict[str, float]:
    points = {
        "loss": report.loss,
        "gradient_norm": report.gradient_norm,
        "learning_rate": report.learning_rate,
    }
    if report.valid_loss is not None:
        points["valid_loss"] = report.valid_loss
    if report.tokens_per_second is not None:
        points["tokens_per_second"] = report.tokens_per_second
    return points


def _note(report: Report, seen: list[Report]) -> str:
    best = min((r.valid_loss for r in seen if r.valid_loss is not None), default=None)
    note = f"loss {report.loss:.3f}" + ("" if best is None else f", best valid {best:.3f}")
    if report.seconds == 0.0:
        return f"{note}, resumed"
    return note if report.tokens_per_second is None else f"{note}, {report.tokens_per_second:,.0f} tokens/s"
