"""A training step, (state, batch) -> metrics, and the loss on held-out rows, in micro-batches that fit into memory."""

import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plm_core.objectives.objective import Batch, Carry, Loss
from plm_core.shared.errors import is_out_of_memory
from plm_core.training.callbacks.anomaly_monitor import AnomalyMonitor
from plm_core.training.callbacks.loss_metrics import StepResult
from plm_core.training.callbacks.speed_monitor import SpeedMonitor
from plm_core.training.device import Device
from plm_core.training.parallelize import ParallelLoss
from plm_core.training.ranks import Ranks, Unfit, full_tensor
from plm_core.training.state import TrainState, join_carries
from plm_core.training.training_config import LoopConfig

Seeds = Callable[[int], int]
"""From the number of a step's micro-batch, counted over all processes, to its dropout seed."""

Evaluate = Callable[[Batch, Carry | None], Loss]
"""The loss of rows that continue those of a previous call, without a gradient."""


class TrainStep:
    """The step of a run: it changes a state, and nothing else."""

    def __init__(
        self,
        loss: ParallelLoss,
        config: LoopConfig,
        device: Device,
        ranks: Ranks,
        speed: SpeedMonitor,
        anomalies: AnomalyMonitor,
    ) -> None:
        self.loss, self.config, self.device, self.ranks = loss, config, device, ranks
        self.speed, self.anomalies = speed, anomalies
        self.evaluated_at_once = sys.maxsize
        """The most held-out rows that fit into memory at once, as far as is known; a resumed run finds out again."""

    def __call__(self, state: TrainState, batch: Batch, rate: float, seeds: Seeds) -> StepResult:
        """Update ``state`` with the gradient of the global batch, of which ``batch`` has the rows of this process.

        An update that the anomaly monitor rejects is skipped: the step counts, but no weight changes.
        """
        # The rows. Targets are counted while they are still on the CPU, to avoid waiting for the GPU.
        num_targets = int(self.ranks.sum(batch.num_targets.double()))
        rows = batch.to(self.device.device)
        self.speed.lap("data")

        # Forward and backward; whenever memory runs out, again with twice as many micro-batches.
        while True:
            try:
                nll, carries = self._passes(state, rows, num_targets, seeds)
                break
            except RuntimeError as error:
                # Several processes cannot agree to split: the others have not failed, and are in the middle of a step.
                self._split(state, _reason(error), agreed=self.ranks.size == 1)
            self._clear()

        # The update, unless its gradient is an anomaly. With sharded weights the norm is gathered from all shards.
        norm = full_tensor(nn.utils.clip_grad_norm_(state.model.parameters(), self.config.optimizer.clip_norm))
        wrong = self.anomalies.before_update(nll, norm, num_targets)
        if wrong is None:
            state.optimizer.step(rate, state.step)
            state.carries = carries
        else:
            state.model.zero_grad(set_to_none=True)
            # Empty the model's memory: it does not hold the text right before the next batch.
            state.carries = [None] * len(state.carries)
        state.step += 1
        self.speed.lap("optimizer")
        return StepResult(nll, norm, num_targets, batch.inputs.numel() * self.ranks.size, wrong)

    def _passes(
        self, state: TrainState, rows: Batch, num_targets: int, seeds: Seeds
    ) -> tuple[Tensor, list[Carry | None]]:
        """Leave the gradient of a step in the parameters; return the summed nll and the micro-batches' carries."""
        parts = len(state.carries)
        nll = torch.zeros((), device=self.device.device)
        carries: list[Carry | None] = []
        state.model.train()
        for part, micro_batch in enumerate(rows.split(parts)):
            # Numbered over all processes: however a batch is shared, no two micro-batches draw the same dropout.
            torch.manual_seed(seeds(self.ranks.rank * parts + part))
            with self.loss.micro_batch(last=part == parts - 1):
                with self.device.autocast(self.config.precision):
                    loss = self.loss(micro_batch, state.carries[part])
                self.speed.lap("forward")
                # Divided by the global batch's predictions, so that gradients of micro-batches and processes add up.
                self.loss.add_gradient(loss, num_targets)
                self.speed.lap("backward")
            nll = nll + loss.nll.detach()
            carries.append(loss.carry)
        return nll, carries

    def evaluate(self, state: TrainState, rows: Batch, carry: Carry | None) -> Loss:
        """The loss on rows that all processes have, in a step's precision and micro-batches no larger than its own.

        If the rows can be shared evenly, each process computes its share, and ``carry`` belongs to that share.
        """
        # Every process takes its share of the rows.
        shared = self.ranks.size > 1 and len(rows.inputs) % self.ranks.size == 0
        if shared:
            rows = list(rows.split(self.ranks.size))[self.ranks.rank]

        # The losses of micro-batches, which shrink each time memory runs out. The micro-batches of training keep their
        # size: a replayed CUDA graph keeps its memory, so validation may have less.
        while True:
            at_once = min(len(rows.inputs), state.rows // len(state.carries), self.evaluated_at_once)
            parts = -(-len(rows.inputs) // at_once)
            carries = [None] * parts if carry is None else zip(*(c.chunk(parts) for c in carry), strict=True)
            try:
                with self.device.autocast(self.config.precision):
                    losses = [self.loss.evaluate(*some) for some in zip(rows.split(parts), carries, strict=True)]
                break
            except RuntimeError as error:
                reason = _reason(error)
            # The others wait after these passes, so this process may retry alone; with sharded weights, within.
            _require_smaller(state, at_once, reason, agreed=not self.ranks.sharding)
            self.evaluated_at_once = at_once // 2
            warnings.warn(
                f"out of memory in validation: from now on {at_once // 2} rows at a time ({reason})", stacklevel=2
            )
            if self.device.device.type == "cuda":
                torch.cuda.empty_cache()

        # One sum and one count, over all micro-batches and processes.
        nll = torch.stack([loss.nll for loss in losses]).sum()
        num_targets = torch.stack([loss.num_targets for loss in losses]).sum()
        if shared:
            dist.all_reduce(nll)
            dist.all_reduce(num_targets)
        return Loss(nll, num_targets, join_carries([loss.carry for loss in losses]))

    def rehearse(self, state: TrainState, batch: Batch) -> None:
        """Dry run: split the rows until one micro-batch fits on every process; no weight changes."""
        # In a step the others would wait forever for a process that has run out of memory. A single process needs no
        # rehearsal, and with sharded weights the others would wait here too.
        if self.ranks.size == 1 or self.ranks.sharding:
            return
        while True:
            lacking = self._lacking(state, batch)
            failed, _ = self.ranks.all_reduce_max(lacking is not None, 0.0)
            if not failed:
                return
            self._split(state, lacking or "in another process", agreed=True)

    def _lacking(self, state: TrainState, batch: Batch) -> str | None:
        """The error if this process runs out of memory on a micro-batch; None if it fits."""
        # The first micro-batch stands for all, but is tried twice: from the second on, gradients take memory too.
        state.model.train()
        rows = next(batch.split(len(state.carries))).to(self.device.device)
        try:
            for _ in state.carries[:2]:
                with self.loss.micro_batch(last=False):
                    with self.device.autocast(self.config.precision):
                        loss = self.loss(rows, state.carries[0])
                    self.loss.add_gradient(loss, 1)
            return None
        except RuntimeError as error:
            return _reason(error)
        finally:
            self._clear()

    def _split(self, state: TrainState, reason: str, agreed: bool) -> None:
        """Split the rows of this process into twice as many micro-batches, if all processes have ``agreed`` to it."""
        _require_smaller(state, state.rows // len(state.carries), reason, agreed)
        state.split(2 * len(state.carries))
        warnings.warn(
            f"out of memory at step {state.step + 1}: from now on {state.rows // len(state.carries)} rows at a time, "
            f"in {len(state.carries)} micro-batches ({reason})",
            stacklevel=3,
        )

    def _clear(self) -> None:
        """Drop the gradient of an incomplete step, and on a GPU the memory that it held."""
        self.loss.model.zero_grad(set_to_none=True)
        if self.device.device.type == "cuda":
            if self.config.compile and self.ranks.size == 1:
                # A captured graph that ran out of memory may be broken, and the compiled function would use it again.
                torch.compiler.reset()
            torch.cuda.empty_cache()


def _reason(error: RuntimeError) -> str:
    """The message of an out-of-memory error in one line; any other error is raised again."""
    if not is_out_of_memory(error):
        raise error
    return " ".join(str(error).split())


def _require_smaller(state: TrainState, at_once: int, reason: str, agreed: bool) -> None:
    """Raise Unfit if ``at_once`` rows cannot be split, or if not all processes have ``agreed`` to it."""
    if at_once > 1 and agreed:
        return
    alone = "batch", "one row", ""
    several = "accumulation", f"{at_once} rows", "more accumulation, "
    place, rows, more = alone if at_once == 1 else several
    raise Unfit(
        f"{place}: out of memory at step {state.step + 1} with {rows} at a time ({reason}); expected {more}"
        "a smaller model.context, or a smaller model"
    )
