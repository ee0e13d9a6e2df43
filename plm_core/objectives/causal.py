"""Causal language modelling: each token given those before it. Radford et al. 2018, equation 1.

With ``streams``, rows continue each other and the model's memory goes from batch to batch: Transformer-XL (Dai et al.
2019, section 3.2). Shapes: B rows, T positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from plm_core.objectives.loss import Batch, Batches, Carry, Loss, summed_nats
from plm_core.text.store import TokenStore
from plm_core.text.views import Streams, Windows


@dataclass(frozen=True)
class CausalBatch(Batch):
    """Inputs ``[B, T]`` and the tokens that follow each of them, ``[B, T]``."""

    begins: torch.Tensor
    """``[B]`` bool: whether a row continues nothing."""


@dataclass(frozen=True)
class Causal:
    """The causal objective, and its section of the parameters."""

    needs: ClassVar[tuple[str, ...]] = ("read",)

    streams: bool = False
    """Read contiguous rows and carry the model's memory on; for models that have one."""

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        """Rows of ``context`` + 1 tokens that overlap by one: inputs and their next tokens.

        Raises:
            ValueError: ``streams`` and the model's memory do not fit each other.
            BadInput: the store is too small.
        """
        memory = getattr(config, "memory", None)
        if self.streams != bool(memory):
            raise ValueError(
                f"objective.streams: {self.streams} for a model with memory {memory}; expected true for one with "
                "memory above 0, and false for one without"
            )
        T = config.context
        return _Streams(Streams(store, rows, T + 1, T)) if self.streams else _Windows(Windows(store, T + 1, T), rows)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """L1 = -sum log p(token | tokens before it), in nats, over the targets that are not ignored."""
        if not self.streams:
            return Loss(summed_nats(model.logits(model.read(batch.inputs)[0]), batch.targets), batch.count)
        assert isinstance(batch, CausalBatch)
        hidden, memory = model.read(batch.inputs, state=model.memory_for(batch.begins, carry))
        carry = tuple(memory.last(model.config.memory))
        return Loss(summed_nats(model.logits(hidden), batch.targets), batch.count, carry)


def causal_batch(rows: np.ndarray, begins: bool = True) -> CausalBatch:
    """Windows ``[B, T + 1]``: the first T tokens are the inputs, the last T their targets."""
    tokens = torch.from_numpy(rows)
    return CausalBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.full((len(rows),), begins))


@dataclass(frozen=True)
class _Windows:
    view: Windows
    rows: int

    def at(self, seed: int, step: int) -> CausalBatch:
        return causal_batch(self.view.rows_at(seed, step, self.rows))

    def held_out(self, count: int) -> list[Batch]:
        rows = self.view.spread_rows(count)
        return [causal_batch(rows[i : i + self.rows]) for i in range(0, len(rows), self.rows)]


@dataclass(frozen=True)
class _Streams:
    view: Streams

    def at(self, seed: int, step: int) -> CausalBatch:
        return causal_batch(self.view.rows_at(seed, step), self.view.begins(step))

    def held_out(self, count: int) -> list[Batch]:
        steps = min(self.view.steps, max(1, count // self.view.rows))
        return [self.at(0, step) for step in range(steps)]
