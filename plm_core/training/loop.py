"""The loop: state(t+1) = update(state(t), batch_at(t), rng_at(t)), as a generator of reports. Nothing calls back.

Used by pretraining and fine-tuning. Shapes: see the objectives.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from plm_core.config import BadInput
from plm_core.objectives.loss import Batch, Carry
from plm_core.text.views import stream_seed
from plm_core.training.compiling import LossOf, compiled
from plm_core.training.device import Device, Precision
from plm_core.training.optimizer import Optimizer, OptimizerConfig
from plm_core.training.schedule import learning_rate_at, progress_at
from plm_core.training.snapshot import Progress, Snapshots


@dataclass(frozen=True)
class LoopConfig:
    """What a training does besides its optimizer."""

    seed: int
    """Draws the initial weights, the order of the data and the dropout masks."""
    steps: int
    """Updates of the weights."""
    batch: int
    """Rows of the global batch, whatever the accumulation."""
    optimizer: OptimizerConfig
    accumulation: int = 1
    """Into how many parts a batch is cut to save memory; must divide ``batch``."""
    precision: Precision = "float32"
    """Of the forward pass; ``bfloat16`` falls back to ``float32`` where the hardware lacks it."""
    compile: bool = False
    """Compile the loss function (torch.compile): faster steps after a first one that takes half a minute, or a few
    seconds when the same was compiled before. A decision, for its sums are rounded otherwise. Validation is not
    compiled. Falls back to false, with a warning, on a machine without a C++ compiler."""
    report_every: int = 10
    """Steps between two reports of the training loss."""
    valid_every: int = 100
    """Steps between two validations; a multiple of ``report_every``. The last step is always validated."""
    snapshot_every: int = 100
    """Steps between two snapshots; a multiple of ``report_every``."""

    @property
    def order_seed(self) -> int:
        """The seed of the order of the data: with a step, all that a batch depends on."""
        return stream_seed(self.seed, "order")

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "report_every", "valid_every", "snapshot_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 1")
        if self.batch % self.accumulation:
            raise ValueError(f"accumulation: {self.accumulation} does not divide batch {self.batch}")
        for name in ("valid_every", "snapshot_every"):
            if getattr(self, name) % self.report_every:
                raise ValueError(f"{name}: {getattr(self, name)} is not a multiple of report_every {self.report_every}")
        if self.optimizer.warmup_steps >= self.steps:
            raise ValueError(
                f"optimizer.warmup_steps: {self.optimizer.warmup_steps}; expected fewer than the {self.steps} steps"
            )


@dataclass(frozen=True)
class Report:
    """What the loop says of the steps since the report before."""

    step: int
    """Steps done."""
    predictions: int
    """Predictions trained on in these steps (targets that are not ignored)."""
    positions: int
    """Positions read in these steps, each once: rows by their length, padding too."""
    loss: float
    """Their mean negative log-likelihood, in nats."""
    gradient_norm: float
    """The 2-norm of the last step's gradient, before clipping."""
    learning_rate: float
    """Of the last step."""
    valid_loss: float | None = None
    """Mean negative log-likelihood on validation data, in nats; None between validations."""
    seconds: float = 0.0
    """Wall clock of these steps, validation and snapshots left out; 0 for a report restored from a snapshot."""
    first: bool = False
    """Whether these were the first steps of a process, whose seconds hold compilation and other preparations."""

    @property
    def tokens_per_second(self) -> float | None:
        """Positions a second; None where that is not the speed of training: the first report and restored ones."""
        return None if self.first or self.seconds == 0.0 else self.positions / self.seconds


class Diverged(BadInput):
    """The loss or the gradient is not finite."""


def train(
    model: nn.Module,
    loss_of: LossOf,
    batch_at: Callable[[int], Batch],
    validate: Callable[[nn.Module], float],
    config: LoopConfig,
    device: Device,
    snapshots: Snapshots,
) -> Generator[Report, None, None]:
    """Train ``model`` in place and yield the reports of the whole run, those before a resumed snapshot included.

    ``batch_at(step)`` gives the global batch of a step (from 0), ``loss_of(model, rows, carry)`` its loss, where
    ``carry`` is what the loss of the same rows left at the step before, ``validate(model)`` the mean nats on held-out
    data. When the generator ends, the model holds the weights of the best validation. When it is closed at a report,
    the state of that report is saved, so that the next call goes on from there.

    Raises:
        Diverged: the loss or the gradient of a step is not finite; the message names the step.
    """
    optimizer = Optimizer(model, config.optimizer)
    loss_of = compiled(loss_of, device.device) if config.compile else loss_of
    reports: list[Report] = []
    best, best_step = _weights(model), 0
    carries: list[Carry | None] = [None] * config.accumulation
    if (resumed := snapshots.load(model, optimizer, config.accumulation)) is not None:
        progress, best, carries = resumed
        reports = [Report(**report) for report in progress.reports]  # type: ignore[arg-type]
        best_step = progress.best_step
        yield from reports
    begun = done = reports[-1].step if reports else 0
    best_loss = min((r.valid_loss for r in reports if r.valid_loss is not None), default=float("inf"))
    while done < config.steps:
        upto = min(config.steps, done - done % config.report_every + config.report_every)
        report = _steps(model, optimizer, loss_of, batch_at, carries, range(done, upto), config, device)
        report = replace(report, first=done == begun)
        done = report.step
        if done % config.valid_every == 0 or done == config.steps:
            model.eval()
            valid_loss = validate(model)
            if not math.isfinite(valid_loss):
                raise _diverged(done, f"the validation loss is {valid_loss}", config)
            report = replace(report, valid_loss=valid_loss)
            if valid_loss < best_loss:
                best, best_step, best_loss = _weights(model), done, valid_loss
        reports.append(report)
        progress = Progress(done, best_step, [asdict(replace(r, seconds=0.0, first=False)) for r in reports])
        if done % config.snapshot_every == 0 and done < config.steps:
            snapshots.save(model, optimizer, best, carries, progress)
        try:
            yield report
        except GeneratorExit:
            snapshots.save(model, optimizer, best, carries, progress)
            raise
    model.load_state_dict(best)


def best_report(reports: list[Report]) -> Report:
    """The report of the best validation: the one whose weights ``train`` leaves in the model."""
    return min((r for r in reports if r.valid_loss is not None), key=lambda r: (r.valid_loss, r.step))


def _steps(
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: LossOf,
    batch_at: Callable[[int], Batch],
    carries: list[Carry | None],
    steps: range,
    config: LoopConfig,
    device: Device,
) -> Report:
    """Do the updates of ``steps``, renewing ``carries``, and report; the device is waited for once, at the end."""
    start = perf_counter()
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    counts: list[int] = []
    positions = 0
    model.train()
    rate = 0.0
    for step in steps:
        batch = batch_at(step)
        count = int(batch.count)  # still on the CPU
        total = torch.zeros((), device=device.device)
        for part, rows in enumerate(batch.to(device.device).split(config.accumulation)):
            torch.manual_seed(stream_seed(config.seed, "dropout", step, part))
            with device.autocast(config.precision):
                loss = loss_of(model, rows, carries[part])
            (loss.nats / count).backward()
            total, carries[part] = total + loss.nats.detach(), loss.carry
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm))
        rate = learning_rate_at(step, progress_at(step, config.steps, config.optimizer), config.optimizer)
        optimizer.step(rate)
        losses.append(total)
        counts.append(count)
        positions += batch.inputs.numel()
    sums, lengths = torch.stack(losses).double().cpu(), torch.stack(norms).double().cpu()
    _require_finite(steps, sums, lengths, config)
    return Report(
        step=steps.stop,
        predictions=sum(counts),
        positions=positions,
        loss=float(sums.sum()) / sum(counts),
        gradient_norm=float(lengths[-1]),
        learning_rate=rate,
        seconds=perf_counter() - start,
    )


def _require_finite(steps: range, losses: Tensor, norms: Tensor, config: LoopConfig) -> None:
    bad = ~(torch.isfinite(losses) & torch.isfinite(norms))
    if bad.any():
        first = int(bad.nonzero()[0])
        what = f"the loss is {float(losses[first])} and the gradient norm {float(norms[first])}"
        raise _diverged(steps[first] + 1, what, config)


def _diverged(step: int, what: str, config: LoopConfig) -> Diverged:
    rate, warmup = config.optimizer.learning_rate, config.optimizer.warmup_steps
    return Diverged(
        f"optimizer.learning_rate: at step {step} {what}; expected finite numbers: lower the learning rate ({rate}) or "
        f"lengthen the warm-up ({warmup} steps)"
    )


def _weights(model: nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
