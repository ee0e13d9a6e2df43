"""Span corruption. Raffel et al. 2020, section 3.1.4 (the objective of T5).

A share of the tokens of a row is left out, in spans of some tokens each; a sentinel takes the place of each span. The
encoder reads the row with its sentinels, the decoder writes each sentinel followed by the tokens of its span. Both
sequences end with EOS. Rows are consecutive tokens of the stream, as long as what is read with the sentinels fills the
context; the lengths of spans and of what is between them are drawn as released (a random partition of each total).

Shapes: B rows, T positions of the source, N of the target, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from plm_core.config import section
from plm_core.objectives.objective import Batch, Batches, Carry, Loss, Objective, Quantity, output_nll
from plm_core.text.samplers import TokenRange, Windows, draws, spread, stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import EOS, PAD

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CorruptedBatch(Batch):
    """Sources ``[B, T]`` with sentinels, and targets ``[B, N]``: each sentinel followed by what it stands for."""

    positions: torch.Tensor
    """Where in the source the sentinel of each target is, ``[B, N]``; its last position for EOS."""

    @property
    def target_positions(self) -> torch.Tensor:
        return self.positions


@section
class SpanCorruption(Objective):
    """Span corruption, and its section of the parameters."""

    likelihood = Quantity(
        "span_bits_per_byte",
        scorer="plm_core.evaluation.likelihood.span_bits_per_byte:score",
        meaning="each span of three tokens given the text around it, in which every seventh span is left out: not a "
        "likelihood of the text, and not comparable with one",
    )
    input_format = "plm_core.finetuning.input_formats:ENCODED"
    filler = "plm_core.evaluation.samples:fill_span"
    frame = (), (EOS,)
    legend = "<sentinel: words> is a span that was left out of the source and had to be written."

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of a row's tokens that are left out."""
    span: Annotated[float, Field(ge=1)] = 3.0
    """The mean number of tokens in a span."""

    def sizes(self, length: int) -> tuple[int, int]:
        """How many of a row's ``length`` tokens are left out, and in how many spans."""
        left_out = min(max(1, round(self.rate * length)), length - 1)
        return left_out, min(max(1, round(left_out / self.span)), length - left_out)

    def text_length(self, context: int) -> int:
        """How many tokens of text a row holds, so that its source fills the context as far as possible."""
        length = 2
        while self._source(length + 1) <= context:
            length += 1
        return length

    def _source(self, length: int) -> int:
        left_out, spans = self.sizes(length)
        return length - left_out + spans + 1

    def require_fit(self, config: Any) -> None:
        length = self.text_length(config.context)
        left_out, spans = self.sizes(length)
        if self._source(length) > config.context or left_out + spans + 1 > config.context:
            raise ValueError(
                f"model.context: {config.context}; expected at least {max(self._source(length), left_out + spans + 1)} "
                f"for objective.rate {self.rate:g} and objective.span {self.span:g}"
            )
        if spans > config.sentinels:
            raise ValueError(
                f"model.sentinels: {config.sentinels}; expected at least {spans}, one for each span of a row"
            )

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        length = self.text_length(config.context)
        return _Corrupted(Windows(store, length, length), rows, self.sizes(length), config.first_sentinel)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(token of the target | source, tokens before it), in nats."""
        hidden = model.decode(shifted(batch.targets), model.encode(batch.inputs))
        return Loss(output_nll(model.output(hidden), batch.targets), batch.num_targets)

    def mark(self, number: int, read: str) -> str:
        return "sentinel"


def shifted(targets: torch.Tensor) -> torch.Tensor:
    """What the decoder reads to write ``targets`` [B, N]: PAD, then all but the last, with PAD for ignored ones."""
    from torch.nn import functional as F

    return F.pad(targets[:, :-1].clamp(min=PAD), (1, 0), value=PAD)


@dataclass(frozen=True)
class _Corrupted(Batches):
    view: Windows
    rows: int
    sizes: tuple[int, int]
    """How many tokens of a row are left out, and in how many spans."""
    first_sentinel: int

    def at(self, seed: int, step: int) -> CorruptedBatch:
        return self._batch(self.view.starts_at(seed, step, self.rows), stream_seed(seed, "spans"), step)

    def held_out(self, count: int) -> list[Batch]:
        starts = spread(count, len(self.view)) * self.view.advance
        return [self._batch(starts[i : i + self.rows], 0, i) for i in range(0, len(starts), self.rows)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        ranges = []
        for row, start in enumerate(self.view.starts_at(seed, step, self.rows).tolist()):
            position = 0
            ranges.append(list[TokenRange]())
            for kept, left_out in self._lengths(stream_seed(seed, "spans"), step, row):
                ranges[-1].append(TokenRange(position, start, start + kept))
                position += kept + 1
                start += kept + left_out
        return ranges

    def _lengths(self, seed: int, step: int, row: int) -> list[tuple[int, int]]:
        """The tokens before each span of a row, and those in it."""
        draw = draws(seed, step, row)
        left_out, spans = self.sizes
        kept = partition(self.view.length - left_out, spans, draw)
        return list(zip(kept, partition(left_out, spans, draw), strict=True))

    def _batch(self, starts: np.ndarray, seed: int, step: int) -> CorruptedBatch:
        import torch

        inputs, targets, positions = [], [], []
        for row, tokens in enumerate(self.view.store.rows(starts, self.view.length).tolist()):
            source: list[int] = []
            target: list[int] = []
            places: list[int] = []
            begin = 0
            for number, (kept, left_out) in enumerate(self._lengths(seed, step, row)):
                stop = begin + kept + left_out
                sentinel = self.first_sentinel - number
                source += [*tokens[begin : begin + kept], sentinel]
                target += [sentinel, *tokens[begin + kept : stop]]
                places += [len(source) - 1] * (1 + left_out)
                begin = stop
            inputs.append([*source, EOS])
            targets.append([*target, EOS])
            positions.append([*places, len(source)])
        return CorruptedBatch(torch.tensor(inputs), torch.tensor(targets), torch.tensor(positions))


def partition(total: int, parts: int, draw: np.random.Generator) -> list[int]:
    """``total`` as a sum of ``parts`` numbers of at least 1, each such sum being equally likely."""
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total).tolist()
