"""Causal language modelling: each token given those before it. Radford et al. 2018, equation 1.

With ``streams``, rows continue each other and the model's memory is passed from batch to batch: Transformer-XL (Dai et
al. 2019, section 3.2). With ``packing: documents``, a row holds documents that do not see each other (Ding et al.
2024). Documents have the same form as in scoring and generation: an EOS precedes each, and EOS is the last token
predicted; a piece of a longer document begins with the last token of the previous piece. So every token of the store is
predicted once per epoch, and never across a document boundary. With both options, the stream continues from row to row,
and a position sees the row and the memory only back to the EOS before its document.

Shapes: B rows, T positions, P pieces, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from plm_core.config import section
from plm_core.objectives.objective import (
    IGNORED,
    Batch,
    Batches,
    Carry,
    Hidden,
    Loss,
    Objective,
    Quantity,
    output_nll,
)
from plm_core.text.packing import Packed
from plm_core.text.samplers import Streams, TokenRange, Windows, items_at, spread
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import EOS, PAD

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CausalBatch(Batch):
    """Inputs ``[B, T]`` and the tokens that follow each of them, ``[B, T]``."""

    begins: torch.Tensor
    """``[B]`` bool: whether a row begins a text instead of continuing one."""


@dataclass(frozen=True)
class PackedCausalBatch(CausalBatch):
    """Documents side by side in rows."""

    documents: torch.Tensor
    """``[B, T]`` int: the document of each position in its row; padding is one more document."""


@section
class Causal(Objective):
    """The causal objective, and its section of the parameters."""

    likelihood = Quantity(
        "bits_per_byte",
        scorer="plm_core.evaluation.likelihood.bits_per_byte:score",
        meaning="each token given those before it, by the chain rule: a likelihood of the text",
    )
    perplexity = True
    input_format = "plm_core.finetuning.input_formats:EXTRACT"
    decoder = "plm_core.generation:causal"
    ranker = "plm_core.evaluation.fewshot_scoring:likelihoods"
    distilled: ClassVar[tuple[str, ...]] = ("soft", "cosine")
    frame = (EOS,), ()
    legend = "Every position predicts the next token; </s> begins and ends a document."

    streams: bool = False
    """Read contiguous rows and pass the model's memory on; for models that have one."""
    packing: Literal["stream", "documents"] = "stream"
    """What a row holds: consecutive tokens of the stream, or ``documents`` that do not see each other, cut as rarely as
    possible. With ``streams``, rows always continue the stream, and ``documents`` only keeps the documents in a row and
    in memory from seeing each other."""

    def require_fit(self, config: Any) -> None:
        if getattr(config, "backward", False):
            raise ValueError("model.backward: true; expected false, or objective.name: bidirectional")
        memory = getattr(config, "memory", None)
        if self.packing == "documents" and memory == 0:
            raise ValueError(
                "objective.packing: documents for a model with memory 0; expected stream, the only packing that "
                "such a model supports without memory"
            )
        if self.streams != bool(memory):
            raise ValueError(
                f"objective.streams: {self.streams} for a model with memory {memory}; expected true for one with "
                "memory above 0, and false for one without"
            )

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        return self.causal_rows(store, config, rows)

    def causal_rows(self, store: TokenStore, config: Any, rows: int) -> Batches:
        """Rows in which every token is predicted from those before it."""
        T = config.context
        # Rows of T + 1 tokens that overlap by one: inputs and their next tokens.
        if self.packing == "documents" and not self.streams:
            return _Documents(Packed(store, T), rows)
        return _Streams(Streams(store, rows, T + 1, T)) if self.streams else _Windows(Windows(store, T + 1, T), rows)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """L1 = -sum log p(token | tokens before it), in nats, over the targets that are not ignored."""
        if not self.streams:
            return Loss(output_nll(model.output(self.hidden(model, batch).states), batch.targets), batch.num_targets)
        assert isinstance(batch, CausalBatch)
        # Transformer-XL: reads the states of the previous row, and passes on those of this one, without a gradient.
        ends = batch.inputs == EOS if self.packing == "documents" else None
        before = model.memory_for(batch.begins, carry)
        hidden, memory = model.read_with_memory(batch.inputs, memory=before, ends=ends)
        left = tuple(memory.last(model.config.memory))
        return Loss(output_nll(model.output(hidden), batch.targets), batch.num_targets, left)

    def hidden(self, model: Any, batch: Batch) -> Hidden:
        """States ``[B, T, D]``; the row is the whole context, and packed documents all begin in it."""
        packed = {"documents": batch.documents} if isinstance(batch, PackedCausalBatch) else {}
        return Hidden(model.read(batch.inputs, **packed), 0.0)

    def mark(self, number: int, read: str) -> None:
        return None  # all tokens are predicted


def causal_batch(rows: np.ndarray, begins: bool = True) -> CausalBatch:
    """Windows ``[B, T + 1]``: the first T tokens are the inputs, the last T their targets."""
    import torch

    tokens = torch.from_numpy(rows)
    return CausalBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.full((len(rows),), begins))


@dataclass(frozen=True)
class _Windows(Batches):
    view: Windows
    rows: int

    def at(self, seed: int, step: int) -> CausalBatch:
        return causal_batch(self.view.rows_at(seed, step, self.rows))

    def held_out(self, count: int) -> list[Batch]:
        rows = self.view.spread_rows(count)
        return [causal_batch(rows[i : i + self.rows]) for i in range(0, len(rows), self.rows)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        starts = self.view.starts_at(seed, step, self.rows).tolist()
        return [[TokenRange(0, start, start + self.view.length - 1)] for start in starts]


@dataclass(frozen=True)
class _Streams(Batches):
    view: Streams

    def at(self, seed: int, step: int) -> CausalBatch:
        return causal_batch(self.view.rows_at(seed, step), self.view.begins(step))

    def held_out(self, count: int) -> list[Batch]:
        steps = min(self.view.steps, max(1, count // self.view.rows))
        return [self.at(0, step) for step in range(steps)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        return [self.view.spans(start, self.view.length - 1) for start in self.view.starts_at(seed, step).tolist()]


@dataclass(frozen=True)
class _Documents(Batches):
    view: Packed
    rows: int

    def at(self, seed: int, step: int) -> PackedCausalBatch:
        return self._batch(items_at(seed, step, self.rows, len(self.view)))

    def held_out(self, count: int) -> list[Batch]:
        items = spread(count, len(self.view))
        return [self._batch(items[i : i + self.rows]) for i in range(0, len(items), self.rows)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        spans: list[list[TokenRange]] = [[] for _ in range(self.rows)]
        pieces = self.view.pieces(items_at(seed, step, self.rows, len(self.view)))
        for row, position, start, length, begins in zip(*(column.tolist() for column in pieces), strict=True):
            # The last token is only a target; the first one is preceded by EOS, or by the previous piece.
            spans[row].append(TokenRange(position + begins, start - (not begins), start + length - 1))
        return spans

    def metrics(self) -> dict[str, float]:
        return self.view.metrics()

    def _batch(self, items: np.ndarray) -> PackedCausalBatch:
        import torch

        row, position, start, *_ = pieces = self.view.pieces(items)
        targets, documents, padding = self.view.laid_out(pieces, len(items))
        inputs = np.roll(targets, 1, axis=1)
        # In the store, every document but the first is preceded by the EOS of the previous one.
        inputs[row, position] = np.where(start > 0, self.view.store.rows(np.maximum(start - 1, 0), 1)[:, 0], EOS)
        inputs, targets = np.where(padding, PAD, inputs), np.where(padding, IGNORED, targets)
        columns = (inputs, targets, np.ones(len(items), dtype=bool), documents)
        return PackedCausalBatch(*(torch.from_numpy(column) for column in columns))
