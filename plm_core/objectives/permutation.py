"""Permutation language modelling: each token given those before it in a random order. Yang et al. 2019, section 2.

A row is text of a stream that continues the previous row, of which the model keeps a memory (section 2.4), followed by
a pair ``A SEP B SEP CLS``, where A continues the stream and B continues A or, with probability 1/2, comes from
elsewhere (section 2.5; which of the two is not predicted). As released, both parts have their own order and the stream
never sees the pair: its memory must not know what the next row will predict. The last 1/K of each order is predicted
(section 2.3, partial prediction), by the query stream; SEP and CLS never are.

Unlike in the released code, no rows are read backwards.

Shapes: B rows, T positions, N predicted positions, R positions of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveInt

from plm_core.config import section
from plm_core.objectives.objective import Batch, Batches, Carry, Loss, Objective, Quantity, output_nll
from plm_core.text.samplers import Streams, TokenRange, draws, stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import CLS, EOS, SEP

if TYPE_CHECKING:
    import torch

FRAME = 3
"""The special tokens of a pair."""


@dataclass(frozen=True)
class PermutationBatch(Batch):
    """Inputs ``[B, T]`` and the tokens ``[B, N]`` that are predicted."""

    queries: torch.Tensor
    """The positions of the targets, ``[B, N]``."""
    order: torch.Tensor
    """The place of each position in the factorisation order, ``[B, T]``; all given tokens share a place."""
    segments: torch.Tensor
    """0 for the stream and A, 1 for B, 2 for CLS, ``[B, T]``."""
    begins: torch.Tensor
    """``[B]`` bool: whether a row begins a text instead of continuing one."""

    @property
    def target_positions(self) -> torch.Tensor:
        return self.queries


@section
class Permutation(Objective):
    """The permutation objective, and its section of the parameters."""

    likelihood = Quantity(
        "fixed_order_bits_per_byte",
        scorer="plm_core.evaluation.likelihood.order_bits_per_byte:score",
        meaning="each token given those before it, by the query stream: a likelihood of the text in one of the orders "
        "that training draws, not comparable with that of a causal model",
    )
    beside = (
        Quantity(
            "mean_order_bits_per_byte",
            scorer="plm_core.evaluation.likelihood.order_bits_per_byte:score_orders",
            meaning="the mean over random orders, each a likelihood of the text: what training minimises",
            excerpt=True,
        ),
    )
    input_format = "plm_core.finetuning.input_formats:CLS_LAST"
    decoder = "plm_core.generation:permutation"
    frame = (EOS,), ()
    legend = "<3: word> was predicted third, from what it may see of its row and the row's memory."

    predict: PositiveInt = 6
    """K: one token in K is predicted (appendix A.4: 6)."""
    span: PositiveInt = 1
    """Predicted tokens are drawn in spans of one to this many neighbours (released: 5). A whole name or word is harder
    to predict than the rest of one."""
    packing: Literal["stream", "documents"] = "stream"
    """What a position may see of the stream and its memory: everything, or only its own document, which ends with
    EOS."""
    reuse: PositiveInt | None = None
    """R, how many tokens of a row belong to the stream (``reuse_len``); null for half the context, as released."""

    def reused(self, context: int) -> int:
        """R for a model of this context."""
        return context // 2 if self.reuse is None else self.reuse

    def text_length(self, context: int) -> int:
        """How many tokens of text a row holds in addition to its special tokens."""
        R = self.reused(context)
        return R + max(0, context - R - FRAME)

    def require_fit(self, config: Any) -> None:
        if config.context < 2:
            raise ValueError(f"model.context: {config.context}; expected at least 2, to predict a token from another")
        R = self.reused(config.context)
        pair = config.context - R
        if pair and pair < FRAME + 2:
            raise ValueError(
                f"objective.reuse: {R} leaves {pair} of the {config.context} positions of model.context for a pair; "
                f"expected at least {FRAME + 2}, or none"
            )
        if R // self.predict + (self.text_length(config.context) - R) // self.predict < 1:
            raise ValueError(
                f"objective.predict: {self.predict}; with model.context {config.context}, no token would be predicted"
            )

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        R, length = self.reused(config.context), self.text_length(config.context)
        return _Rows(self, Streams(store, rows, length, R), R, config.context)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(token | tokens before it in the order, memory), in nats (equations 3 to 5)."""
        import torch

        assert isinstance(batch, PermutationBatch)
        # The query stream predicts from the row and the memory of the rows before it.
        memory = model.memory_for(batch.begins, carry)
        ends = batch.inputs == EOS if self.packing == "documents" else None
        documents = None if ends is None else model.documents_between(ends)
        hidden = model(batch.inputs, batch.order, batch.segments, memory, batch.queries, documents)
        nll = output_nll(model.output(hidden.query), batch.targets)
        # Only the stream continues in the next row; the pair after it comes from another place in the text.
        R = self.reused(model.config.context)
        stream = torch.ones_like(batch.inputs[:, :R], dtype=torch.bool)
        documents = None if ends is None else model.documents_between(ends[:, :R])
        kept = memory.extended(hidden.states[:, :, :R], stream, documents).last(model.config.memory)
        return Loss(nll, batch.num_targets, tuple(kept))

    def mark(self, number: int, read: str) -> str:
        return str(number)  # its place in the order


def factorisation(
    predictable: np.ndarray, predict: int, first: int, draw: np.random.Generator, span: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """A random order of the positions that are predictable ([n] bool), the last 1/``predict`` of which are predicted.

    With a ``span`` above 1 these are spans of one to this many neighbours, which may touch, still in a random order.

    Returns:
        the place of each position ``[n]``: ``first`` for all given ones, then one place each; and the predicted
        positions, in their order.
    """
    positions = np.flatnonzero(predictable)
    count = len(positions) // predict
    if span > 1:
        in_spans = np.zeros(len(positions), dtype=bool)
        while left := count - int(in_spans.sum()):
            start = int(draw.integers(len(positions)))
            in_spans[start : start + min(left, int(draw.integers(1, span + 1)))] = True
        positions = positions[in_spans]
    order = draw.permutation(positions)
    predicted = order[len(order) - count :]
    places = np.full(len(predictable), first)
    places[predicted] = first + 1 + np.arange(len(predicted))
    return places, predicted


@dataclass(frozen=True)
class _Rows(Batches):
    objective: Permutation
    view: Streams
    reuse: int
    context: int

    def at(self, seed: int, step: int) -> PermutationBatch:
        return self.share(seed, step, 0, 1)

    def share(self, seed: int, step: int, rank: int, size: int) -> PermutationBatch:
        import torch

        first = rank * self.view.rows // size
        texts = self.view.rows_at(seed, step)[first : first + self.view.rows // size]
        orders = stream_seed(seed, "orders")
        rows = [self._row(text, draws(orders, step, row)) for row, text in enumerate(texts, start=first)]
        inputs, targets, queries, order, segments = (
            torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True)
        )
        begins = torch.full((len(rows),), self.view.begins(step))
        return PermutationBatch(inputs, targets, queries, order, segments, begins)

    def held_out(self, count: int) -> list[Batch]:
        steps = min(self.view.steps, max(1, count // self.view.rows))
        return [self.at(0, step) for step in range(steps)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        orders = stream_seed(seed, "orders")
        length = self.view.length
        rows = []
        for row, start in enumerate(self.view.starts_at(seed, step).tolist()):
            cut, other = (length, None) if length == self.reuse else self._cut(draws(orders, step, row))
            spans = self.view.spans(start, cut)
            if other is not None:
                spans += [TokenRange(cut + 1, other, other + length - cut)]
            elif cut < length:
                spans += self.view.spans(start + cut, length - cut, cut + 1)
            rows.append(spans)
        return rows

    def _row(self, text: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Inputs, targets, queries, order and segments of one row."""
        # The text of the stream, and of the pair if there is one.
        R = self.reuse
        segments = np.zeros(self.context, dtype=np.int64)
        ids = text[:R]
        if len(text) > R:
            cut, other = self._cut(draw)
            b = text[cut:] if other is None else self.view.store.tokens(other, other + len(text) - cut)
            ids = np.concatenate((text[:cut], [SEP], b, [SEP, CLS]))
            segments[cut + 1 : -1], segments[-1] = 1, 2
        predictable = (ids != SEP) & (ids != CLS)
        # Two orders, the stream's first: memory must not know what the pair predicts.
        stream, targets = factorisation(predictable[:R], self.objective.predict, 0, draw, self.objective.span)
        pair, more = factorisation(predictable[R:], self.objective.predict, len(targets) + 1, draw, self.objective.span)
        queries = np.concatenate((targets, R + more))
        return ids, ids[queries], queries, np.concatenate((stream, pair)), segments

    def _cut(self, draw: np.random.Generator) -> tuple[int, int | None]:
        """Where A ends in the row's text, and where in the store B begins; None if B continues A."""
        cut = self.reuse + int(draw.integers(1, self.view.length - self.reuse))
        if draw.random() < 0.5:
            return cut, None
        return cut, int(draw.integers(len(self.view.store) - (self.view.length - cut) + 1))
