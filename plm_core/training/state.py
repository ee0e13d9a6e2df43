"""The state of a run between two steps: everything that a snapshot keeps, and the reports on it. Used by the loop.

Randomness and the order of the data are functions of (seed, step), so weights, optimizer moments, what a model with
memory carries from batch to batch, and a few numbers are the whole state.
"""

import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from plm_core.config import UserError
from plm_core.objectives.loss import Carry
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device, on_host
from plm_core.training.optimizer import Optimizer
from plm_core.training.profiler import Throughput
from plm_core.training.ranks import Ranks
from plm_core.training.schedule import learning_rate_at, progress_at
from plm_core.training.snapshot import Progress, Saved

SHARED = {f.name for f in fields(Progress)} - {"pending", "reports", "accumulation"}
"""The fields that ``State`` and ``Progress`` share."""


class Unfit(UserError):
    """The batch does not fit the machine: its memory, or its processes."""


def require_fit(config: LoopConfig, device: Device, ranks: Ranks) -> None:
    """Raise Unfit if the processes cannot share the rows of a batch evenly, or would not compute alike.

    With ddp, one without bfloat16 would train in float32 beside the others; with fsdp it would end or hang them. Other
    differences between GPUs are a warning.
    """
    if config.batch % ranks.size:
        raise Unfit(
            f"batch: {config.batch} rows for {ranks.size} processes (PLM_RANKS, or torchrun); expected a multiple of "
            f"{ranks.size}"
        )
    about = {
        "torch": torch.__version__,
        "bfloat16": device.bfloat16 or config.precision != "bfloat16",
        "device": torch.cuda.get_device_name() if device.device.type == "cuda" else "CPU",
    }
    told = ranks.gathered(about)
    for name in about:
        found = {str(each[name]): f"{each[name]} in process {rank}" for rank, each in enumerate(told)}
        if len(found) == 1:
            continue
        said = f"{name}: {', '.join(found.values())}"
        if name != "device" or "CPU" in found:
            raise Unfit(f"{said}; expected the same in all processes, as on machines of one kind")
        if ranks.first:
            warnings.warn(f"{said}: a step takes as long as the slower ones need", stacklevel=3)


@dataclass(frozen=True)
class StepMetrics:
    """A report of the loop on the steps since the previous one."""

    step: int
    """Steps done."""
    steps: int
    """The number of these steps."""
    predictions: int
    """Predictions trained on in these steps (targets that are not ignored)."""
    positions: int
    """Positions read in these steps, each once: rows by their length, padding too."""
    loss: float
    """The mean negative log-likelihood of the predictions, in nats; NaN if all updates were left out."""
    gradient_norm: float
    """The 2-norm of the last step's gradient, before clipping."""
    learning_rate: float
    """The learning rate of the last step."""
    skipped: int = 0
    """The number of these steps whose update was left out."""
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
        """Whether it is from a snapshot, about steps of an earlier process."""
        return self.throughput is None


class Validation(NamedTuple):
    """The result of the weights on held-out data."""

    loss: float
    """Mean negative log-likelihood, in nats."""
    score: float | None = None
    """The score by which the best weights are chosen, higher is better; None if the lowest loss chooses them."""


class Done(NamedTuple):
    """A step that no report covers yet."""

    nll: Tensor | float
    """The summed negative log-likelihood: of this process's rows while a tensor, of the global batch as a number."""
    norm: Tensor | float
    """The 2-norm of the gradient, before clipping."""
    predictions: int
    positions: int
    skipped: bool


@dataclass
class State:
    """The state before and after a step."""

    model: nn.Module
    config: LoopConfig
    ranks: Ranks
    step: int = 0
    """Steps done."""
    seconds: float = 0.0
    """How long the run has taken; 0 unless it has a time budget."""
    warm: float = 0.0
    """How many of these seconds the warm-up took."""
    best_step: int = 0
    """The step of the best validation; 0 for none yet."""
    reports: list[StepMetrics] = field(default_factory=list)
    pending: list[Done] = field(default_factory=list)
    recent: list[tuple[float, float]] = field(default_factory=list)
    """The losses and gradient norms that the next step is compared with."""
    anomalies: list[int] = field(default_factory=list)
    """The steps (from 1) at which something was wrong."""
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of a step (from 0) and how many more batches are skipped from there on."""
    best: dict[str, Tensor] = field(init=False)
    """The weights of the best validation, or the initial ones before the first. Never modified, only replaced."""
    evaluated_at_once: int = sys.maxsize
    """The most held-out rows that fit into memory at once, as far as is known; a resumed run finds out again."""
    carries: list[Carry | None] = field(init=False)
    """The memory that the next step's loss continues from, for each micro-batch of this process."""

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.model, self.config.optimizer)
        self.best = self._weights()  # so that a run without a better validation leaves the initial weights
        self.carries = [None]
        self.cut(-(-self.config.accumulation // self.ranks.size))

    @property
    def rows(self) -> int:
        """The rows of this process."""
        return self.config.batch // self.ranks.size

    @property
    def batch(self) -> int:
        """The data index (from 0) of the batch that the next step reads."""
        return self.step + sum(passed for begin, passed in self.rollbacks if self.step >= begin)

    @property
    def ended(self) -> bool:
        """Whether no steps or no time are left."""
        budget = self.config.minutes
        return self.step == self.config.steps or (budget is not None and self.seconds >= 60 * budget)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        config = self.config
        progress = progress_at(self.step, self.config.steps, self.config.optimizer)
        if config.minutes is not None:
            progress = max(progress, (self.seconds - self.warm) / max(1e-9, 60 * config.minutes - self.warm))
        return learning_rate_at(self.step, progress, config.optimizer)

    @property
    def report_due(self) -> bool:
        """Whether the steps since the last report are to be reported."""
        return bool(self.pending) and (self.step % self.config.report_every == 0 or self.ended)

    def cut(self, least: int) -> None:
        """Split this process's rows into at least this many equal micro-batches from now on."""
        parts = next(parts for parts in range(max(1, least), self.rows + 1) if self.rows % parts == 0)
        whole = joined(self.carries)
        self.carries = [None] * parts if whole is None else list(zip(*(c.chunk(parts) for c in whole), strict=True))

    def losses(self) -> Iterator[tuple[int, float, float]]:
        """Step (from 0), mean loss and gradient norm of each pending step whose update was done; ``settle`` first."""
        for step, done in enumerate(self.pending, start=self.step - len(self.pending)):
            if not done.skipped:
                yield step, float(done.nll) / done.predictions, float(done.norm)

    def settle(self) -> None:
        """Turn the tensors of the pending steps into numbers, with one wait for the device."""
        # Those from a snapshot are numbers already.
        waiting = [done for done in self.pending if isinstance(done.nll, Tensor)]
        if not waiting:
            return
        nll, norms = (torch.stack([getattr(done, name) for done in waiting]).double().cpu() for name in ("nll", "norm"))
        numbers = zip(waiting, self.ranks.sum(nll).tolist(), norms.tolist(), strict=True)
        settled = [done._replace(nll=one, norm=norm) for done, one, norm in numbers]
        self.pending[len(self.pending) - len(waiting) :] = settled

    def told(self, rate: float, valid: Validation | None, throughput: Throughput, first: bool) -> StepMetrics:
        """Report the pending steps, which must be settled, and clear them; the last one had the rate ``rate``."""
        trained = [done for done in self.pending if not done.skipped]
        predictions = sum(done.predictions for done in trained)
        report = StepMetrics(
            step=self.step,
            steps=len(self.pending),
            predictions=predictions,
            positions=sum(done.positions for done in self.pending),
            loss=math.fsum(float(done.nll) for done in trained) / predictions if trained else math.nan,
            gradient_norm=float(self.pending[-1].norm),
            learning_rate=rate,
            skipped=len(self.pending) - len(trained),
            passed=self.batch - self.step,
            valid_loss=valid and valid.loss,
            valid_score=valid and valid.score,
            throughput=throughput,
            first=first,
        )
        self.pending = []
        self.reports.append(report)
        return report

    def keep_best(self) -> None:
        """Keep the weights as the best so far."""
        self.best = self._weights()
        self.best_step = self.step

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that change from step to step, by names that do not depend on the number of processes."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        found |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        carry = enumerate(joined(self.carries) or ())
        return found | {f"carry.{i}": self.ranks.sharded(tensor) for i, tensor in carry}

    def fixed(self) -> dict[str, Tensor]:
        """The tensors that do not change from step to step."""
        return {f"best.{name}": tensor for name, tensor in self.best.items()}

    def progress(self) -> Progress:
        """The rest of a snapshot."""
        self.settle()
        return Progress(
            **{name: getattr(self, name) for name in SHARED},
            pending=[(float(d.nll), float(d.norm), d.predictions, d.positions, d.skipped) for d in self.pending],
            reports=[vars(report) | {"throughput": None, "first": False} for report in self.reports],
            accumulation=len(self.carries) * self.ranks.size,
        )

    def restore(self, saved: Saved) -> None:
        """Restore the state from a snapshot, which any number of processes may have written."""
        for name in SHARED:
            setattr(self, name, getattr(saved.progress, name))
        self.reports = [StepMetrics(**report) for report in saved.progress.reports]
        self.pending = [Done(*done) for done in saved.progress.pending]
        self.best = self._weights()
        device = next(self.model.parameters()).device
        carry = {
            name: torch.empty((size[0] // self.ranks.size, *size[1:]), dtype=dtype, device=device)
            for name, (size, dtype) in sorted(saved.shapes("carry.").items(), key=lambda item: int(item[0][6:]))
        }
        self.carries = [None]
        sharded = {name: self.ranks.sharded(tensor) for name, tensor in carry.items()}
        saved.fill(self.tensors() | self.fixed() | sharded)
        self.carries = [tuple(carry.values()) or None]
        self.cut(-(-saved.progress.accumulation // self.ranks.size))

    def _weights(self) -> dict[str, Tensor]:
        weights = self.model.state_dict()
        # Sharded weights stay sharded: gathering them would need the memory that sharding saves.
        if self.ranks.sharding:
            return {name: tensor.clone() for name, tensor in weights.items()}
        return on_host(weights)


def joined(carries: list[Carry | None]) -> Carry | None:
    """The carries of all micro-batches as one."""
    if carries[0] is None:
        return None
    return tuple(torch.cat(parts) for parts in zip(*(carry or () for carry in carries), strict=True))
