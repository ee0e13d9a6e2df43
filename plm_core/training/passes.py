"""The passes of a step and of a validation over the rows of a batch, in parts that fit into memory. Used by the loop.

Out of memory cuts the rows into twice as many parts, of the same batch.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plm_core.objectives.loss import Batch, Carry, Loss
from plm_core.text.views import stream_seed
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device
from plm_core.training.meters import Instruments
from plm_core.training.ranks import Ranks, Shared
from plm_core.training.state import State, Unfit, joined

Evaluate = Callable[[Batch, Carry | None], Loss]
"""The loss of rows that continue what another call's rows left, without a gradient."""


@dataclass(frozen=True)
class Passes:
    """The model's passes over the rows of this process."""

    state: State
    shared: Shared
    config: LoopConfig
    device: Device
    ranks: Ranks
    instruments: Instruments

    def gradient(self, rows: Batch, count: int) -> tuple[Tensor, list[Carry | None]]:
        """Leave the gradient of a step in the parameters; the summed nats and what the parts carry on."""
        while True:
            try:
                return self._parts(rows, count)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self._smaller_parts(" ".join(str(error).split()))
            self.shared.model.zero_grad(set_to_none=True)
            if self.device.device.type == "cuda":
                torch.cuda.empty_cache()

    def _parts(self, rows: Batch, count: int) -> tuple[Tensor, list[Carry | None]]:
        state, config = self.state, self.config
        parts = len(state.carries)
        nats = torch.zeros((), device=self.device.device)
        carries: list[Carry | None] = []
        self.shared.model.train()
        for part, some in enumerate(rows.split(parts)):
            torch.manual_seed(stream_seed(config.seed, "dropout", state.step, self.ranks.rank * parts + part))
            with self.shared.part(last=part == parts - 1):
                with self.device.autocast(config.precision):
                    loss = self.shared.loss(some, state.carries[part])
                self.instruments.lap("forward")
                self.shared.add_gradient(loss, count)
                self.instruments.lap("backward")
            nats = nats + loss.nats.detach()
            carries.append(loss.carry)
        return nats, carries

    def _smaller_parts(self, error: str) -> None:
        """Cut the rows of this process into twice as many parts."""
        parts, state = len(self.state.carries), self.state
        if parts == state.rows or self.ranks.size > 1:
            raise Unfit(
                f"accumulation: out of memory at step {state.step + 1} with {state.rows // parts} rows at a time "
                f"({error}); expected more parts, a smaller model.context, or a smaller model"
            )
        state.cut(2 * parts)
        warnings.warn(
            f"out of memory at step {state.step + 1}: from now on {state.rows // len(state.carries)} rows at a time, "
            f"in {len(state.carries)} parts of the same batch ({error})",
            stacklevel=2,
        )

    def evaluate(self, rows: Batch, carry: Carry | None) -> Loss:
        """The loss on rows that every process reads, no more of them at a time than in a step."""
        while True:
            most = self.state.rows // len(self.state.carries)
            parts = -(-len(rows.inputs) // most)
            carries = [None] * parts if carry is None else zip(*(c.chunk(parts) for c in carry), strict=True)
            try:
                found = [self.shared.evaluate(*some) for some in zip(rows.split(parts), carries, strict=True)]
                break
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self._smaller_parts(" ".join(str(error).split()))
        nats, count = torch.stack([f.nats for f in found]).sum(), torch.stack([f.count for f in found]).sum()
        return found[0] if parts == 1 else Loss(nats, count, joined([f.carry for f in found]))


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU or the CPU's allocator had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
