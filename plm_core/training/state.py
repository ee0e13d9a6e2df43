"""The state of a run between two steps: everything that a snapshot keeps, each part with one owner.

Randomness and the order of the data are functions of (seed, step), and therefore not part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plm_core.objectives.objective import Carry
from plm_core.training.callbacks.anomaly_monitor import AnomalyMonitor
from plm_core.training.callbacks.loss_metrics import BestWeights, Metrics
from plm_core.training.learning_rate import TimeBudget
from plm_core.training.optimizer import Optimizer
from plm_core.training.ranks import Ranks, Unfit
from plm_core.training.snapshot import Saved, Snapshots
from plm_core.training.training_config import LoopConfig


class TrainState:
    """What a step changes: weights, optimizer, the model's memory, and how many steps are done."""

    def __init__(self, model: nn.Module, config: LoopConfig, ranks: Ranks) -> None:
        self.model, self._ranks = model, ranks
        self.optimizer = Optimizer(model, config.optimizer)
        self.step = 0
        """Steps done."""
        self.rows = config.batch // ranks.size
        """The rows of this process."""
        self.carries: list[Carry | None] = [None]
        """The memory that the next step's loss continues from, for each micro-batch of this process."""
        self.split(-(-config.accumulation // ranks.size))

    def split(self, least: int) -> None:
        """Split this process's rows into at least this many equal micro-batches from now on."""
        parts = next(parts for parts in range(max(1, least), self.rows + 1) if self.rows % parts == 0)
        whole = join_carries(self.carries)
        self.carries = [None] * parts if whole is None else list(zip(*(c.chunk(parts) for c in whole), strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that change from step to step, by names that do not depend on the number of processes."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        carry = enumerate(join_carries(self.carries) or ())
        return tensors | {f"carry.{i}": self._ranks.sharded(tensor) for i, tensor in carry}

    def state_dict(self) -> dict[str, Any]:
        """The rest of the state, as JSON."""
        return {"step": self.step, "accumulation": len(self.carries) * self._ranks.size}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore it; any number of processes may have saved it."""
        self.step = saved["step"]
        self.split(-(-saved["accumulation"] // self._ranks.size))


@dataclass
class RunState:
    """The whole state: what a step changes, and what watches the run."""

    state: TrainState
    metrics: Metrics
    budget: TimeBudget
    anomalies: AnomalyMonitor
    best: BestWeights

    def save(self, snapshots: Snapshots, every: int) -> None:
        """Begin to write a snapshot (``Snapshots.save``)."""
        progress: dict[str, Any] = {}
        for part in vars(self).values():
            progress |= part.state_dict()
        snapshots.save(self.state.tensors(), self.best.tensors(), progress, every)

    def restore(self, saved: Saved) -> None:
        """Restore the state from a snapshot, which any number of processes may have written."""
        state, ranks = self.state, saved.ranks
        self.best.keep(0)  # new tensors to fill: a snapshot may still be writing the old ones
        device = next(state.model.parameters()).device
        shapes = sorted(saved.shapes("carry.").items(), key=lambda item: int(item[0].removeprefix("carry.")))
        carry = [
            torch.empty((size[0] // ranks.size, *size[1:]), dtype=dtype, device=device) for _, (size, dtype) in shapes
        ]
        shards = {f"carry.{i}": ranks.sharded(tensor) for i, tensor in enumerate(carry)}
        state.carries = [None]
        saved.fill(state.tensors() | self.best.tensors() | shards)
        state.carries = [tuple(carry) or None]
        for part in vars(self).values():
            part.load_state_dict(saved.progress)

    def roll_back(self, snapshots: Snapshots, every: int) -> None:
        """Return to the last periodic snapshot before the newest anomaly, and skip the batches read since.

        Raises:
            Unfit: there is no such snapshot.
        """
        # The snapshot is older than these: restoring it would lose them.
        anomalies, rollbacks = self.anomalies.anomalies, self.anomalies.rollbacks
        parts = len(self.state.carries)
        step = anomalies[-1]
        saved = snapshots.find(at_most=step - 1, every=every)
        if saved is None:
            raise Unfit(f"snapshot_every: no snapshot of a step up to {step - 1} in {snapshots.folder} to roll back to")
        self.restore(saved)
        snapshots.remove_after(self.state.step)
        self.anomalies.anomalies = anomalies
        self.anomalies.rollbacks = [*rollbacks, (self.state.step, step - self.state.step)]
        # The model's memory holds text that is now skipped.
        self.state.carries = [None] * max(parts, len(self.state.carries))


def join_carries(carries: list[Carry | None]) -> Carry | None:
    """The carries of all micro-batches as one: copies, because a snapshot cannot store a view of a larger tensor."""
    if carries[0] is None:
        return None
    return tuple(torch.cat(parts) for parts in zip(*(carry or () for carry in carries), strict=True))
