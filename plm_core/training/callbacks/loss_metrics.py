"""The reports of a run, accumulated without making a step wait for the device, and the best weights so far."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plm_core.training.callbacks import Callback
from plm_core.training.callbacks.speed_monitor import Throughput
from plm_core.training.device import on_host
from plm_core.training.ranks import Ranks


class StepResult(NamedTuple):
    """The metrics of a step that no report covers yet."""

    nll: Tensor | float
    """The summed negative log-likelihood: as a tensor, of this process's rows; as a number, of the global batch."""
    norm: Tensor | float
    """The 2-norm of the gradient, before clipping."""
    predictions: int
    positions: int
    anomaly: str | None = None
    """Why the update was skipped; None if it was made."""


class Validation(NamedTuple):
    """The result of one validation on held-out data."""

    loss: float
    """Mean negative log-likelihood, in nats."""
    score: float | None = None
    """The score by which the best weights are chosen, higher is better; None if the lowest loss chooses them."""


@dataclass(frozen=True)
class StepMetrics:
    """A report on the steps since the previous report."""

    step: int
    """Steps done."""
    steps: int
    """The number of steps since the previous report."""
    predictions: int
    """Predictions trained on in these steps (targets that are not ignored)."""
    positions: int
    """Positions read in these steps, each counted once: rows times their length, padding included."""
    loss: float
    """The mean negative log-likelihood of the predictions, in nats; NaN if all updates were skipped."""
    gradient_norm: float
    """The 2-norm of the last step's gradient, before clipping."""
    learning_rate: float
    """The learning rate of the last step."""
    skipped: int = 0
    """The number of these steps whose update was skipped."""
    passed: int = 0
    """The number of batches that rollbacks have skipped so far."""
    valid_loss: float | None = None
    """Mean negative log-likelihood on validation data, in nats; None between validations."""
    valid_score: float | None = None
    """``Validation.score``."""
    throughput: Throughput | None = None
    """The cost of these steps; None for a report restored from a snapshot."""
    first: bool = False
    """Whether these were the first steps of a process, whose seconds include compilation and other preparations."""

    @property
    def restored(self) -> bool:
        """Whether it comes from a snapshot and covers steps of an earlier process."""
        return self.throughput is None


class Metrics(Callback):
    """All reports so far, and the steps that no report covers yet."""

    saved = ("reports", "pending")

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.reports: list[StepMetrics] = []
        self.pending: list[StepResult] = []

    def settle(self) -> None:
        """Turn the tensors of the pending steps into numbers, with one wait for the device."""
        # Those from a snapshot are numbers already.
        waiting = [done for done in self.pending if isinstance(done.nll, Tensor)]
        if not waiting:
            return
        nll, norms = (torch.stack([getattr(done, name) for done in waiting]).double().cpu() for name in ("nll", "norm"))
        numbers = zip(waiting, self._ranks.sum(nll).tolist(), norms.tolist(), strict=True)
        settled = [done._replace(nll=total, norm=norm) for done, total, norm in numbers]
        self.pending[len(self.pending) - len(waiting) :] = settled

    def losses(self, step: int) -> Iterator[tuple[int, float, float]]:
        """Step (from 0), mean loss and gradient norm of each pending update; the last one is ``step`` - 1. Call
        ``settle`` first."""
        for number, done in enumerate(self.pending, start=step - len(self.pending)):
            if done.anomaly is None:
                yield number, float(done.nll) / done.predictions, float(done.norm)

    def report(
        self, step: int, rate: float, passed: int, valid: Validation | None, throughput: Throughput, first: bool
    ) -> StepMetrics:
        """Report the pending steps, which must be settled, and clear them; ``rate`` is the last step's."""
        trained = [done for done in self.pending if done.anomaly is None]
        predictions = sum(done.predictions for done in trained)
        report = StepMetrics(
            step=step,
            steps=len(self.pending),
            predictions=predictions,
            positions=sum(done.positions for done in self.pending),
            loss=math.fsum(float(done.nll) for done in trained) / predictions if trained else math.nan,
            gradient_norm=float(self.pending[-1].norm),
            learning_rate=rate,
            skipped=len(self.pending) - len(trained),
            passed=passed,
            valid_loss=valid and valid.loss,
            valid_score=valid and valid.score,
            throughput=throughput,
            first=first,
        )
        self.pending = []
        self.reports.append(report)
        return report

    def state_dict(self) -> dict[str, Any]:
        """The reports and pending steps, as JSON, without the cost: that belongs to the process that measured it."""
        self.settle()
        return {
            "reports": [vars(report) | {"throughput": None, "first": False} for report in self.reports],
            "pending": self.pending,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.reports = [StepMetrics(**report) for report in saved["reports"]]
        self.pending = [StepResult(*done) for done in saved["pending"]]


def best_report(reports: list[StepMetrics]) -> StepMetrics:
    """The report of the best validation (the first among equals), whose weights ``train`` leaves in the model."""

    def rank(report: StepMetrics) -> float:
        return -(report.valid_loss or 0.0) if report.valid_score is None else report.valid_score

    return max((r for r in reports if r.valid_loss is not None), key=lambda r: (rank(r), -r.step))


class BestWeights(Callback):
    """A copy of the best weights; until the first validation, of the initial weights."""

    saved = ("best_step",)

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self.keep(0)

    def keep(self, step: int) -> None:
        """Keep the model's weights, which are those of this step (0 before the first validation)."""
        weights = self._model.state_dict()
        # Sharded weights stay sharded: gathering them would need the memory that sharding saves.
        self.weights = {n: w.clone() for n, w in weights.items()} if self._ranks.sharding else on_host(weights)
        """Never modified, only replaced: a snapshot may still be writing them."""
        self.best_step = step

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a snapshot."""
        return {f"best.{name}": tensor for name, tensor in self.weights.items()}
