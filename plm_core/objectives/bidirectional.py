"""Language modelling in both directions: each token given those before it, and given those after it. Peters et al.
2018, section 3.1.

Rows are those of the causal objective. The forward direction predicts the token after each position, as there; the
backward direction, which reads from right to left, the token before it. The loss is the joint log-likelihood of the
paper: the sum over both.

Shapes: B rows, T positions, P the size of one direction's state, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plm_core.config import section
from plm_core.objectives.causal import Causal, CausalBatch, PackedCausalBatch
from plm_core.objectives.objective import IGNORED, Batch, Batches, Carry, Loss, Quantity, output_nll
from plm_core.text.samplers import TokenRange
from plm_core.text.token_store import TokenStore

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TwoWayBatch(PackedCausalBatch):
    """Inputs ``[B, T]``, and for each of them the token after and the token before it, ``[B, 2, T]``."""

    @property
    def target_positions(self) -> torch.Tensor:
        """``[B, 2, T]``: each position predicts two tokens, one in each direction."""
        import torch

        return torch.arange(self.inputs.shape[1], device=self.targets.device).expand_as(self.targets)


@section
class Bidirectional(Causal):
    """The objective of both directions, and its section of the parameters."""

    likelihood = Quantity(
        "two_way_bits_per_byte",
        scorer="plm_core.evaluation.likelihood.bits_per_byte:score_two_way",
        meaning="the mean of two likelihoods of the text, from left to right and from right to left, each by the chain "
        "rule",
    )
    beside = (Causal.likelihood,)
    perplexity = False
    distilled = ()
    input_format = "plm_core.finetuning.input_formats:BETWEEN_ENDS"
    legend = (
        "Every position predicts the next token, and in the other direction the one before; </s> begins and ends a "
        "document."
    )

    def __post_init__(self) -> None:
        if self.streams:
            raise ValueError("streams: true; expected false, because the text after a row is not known in it")

    def require_fit(self, config: Any) -> None:
        if not config.backward:
            raise ValueError("model.backward: false; expected true, or objective.name: causal")

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        return _Rows(self.causal_rows(store, config, rows))

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(token | tokens before it) - sum log p(token | tokens after it), in nats (section 3.1)."""
        assert isinstance(batch, TwoWayBatch)
        hidden = model(batch.inputs, documents=batch.documents if self.packing == "documents" else None)
        directions = hidden.unflatten(-1, (2, -1)).transpose(1, 2)
        return Loss(output_nll(model.output(directions), batch.targets), batch.num_targets)


@dataclass(frozen=True)
class _Rows(Batches):
    view: Batches
    """The same rows, with the targets of the forward direction alone."""

    def at(self, seed: int, step: int) -> TwoWayBatch:
        return self._batch(self.view.at(seed, step))

    def held_out(self, count: int) -> list[Batch]:
        return [self._batch(batch) for batch in self.view.held_out(count)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        return self.view.spans(seed, step)

    def metrics(self) -> dict[str, float]:
        return self.view.metrics()

    def _batch(self, batch: Batch) -> TwoWayBatch:
        import torch

        assert isinstance(batch, CausalBatch)
        documents = batch.documents if isinstance(batch, PackedCausalBatch) else torch.zeros_like(batch.inputs)
        # The first position of a row or a document has none before it, and padding predicts nothing.
        before = batch.inputs.roll(1, dims=1)
        before[:, 0] = IGNORED
        before[:, 1:][(documents.diff(dim=1) != 0) | (batch.targets[:, 1:] == IGNORED)] = IGNORED
        return TwoWayBatch(batch.inputs, torch.stack((batch.targets, before), dim=1), batch.begins, documents)
