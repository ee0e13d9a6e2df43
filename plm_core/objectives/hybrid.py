"""Causal and masked language modelling of one decoder. Charpentier and Samuel 2024, "GPT or BERT: why not both?".

Rows are those of the causal objective. A share of them is read like BERT's, in both directions, with some tokens masked
and predicted. A masked token is predicted from the state of the position before it (masked next-token prediction;
BehnamGhader et al. 2024, "LLM2Vec", section 2.1), like the next token in a causal row: so one output layer serves both,
and no weight is added.

All rows have equal weight: the loss is the mean over rows of the mean over a row's predictions, and the share of masked
rows is their share of the loss. The released code (``pretraining/train_10m.py``) does the same, with one kind of row
per process. Three things deviate from it: tokens are selected individually, as in BERT, and not in spans of one to
three; the mask rate is constant, and does not fall from 0.3 to 0.15 during training; and every batch has rows of both
kinds, so that one process trains on both.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from plm_core.config import section
from plm_core.objectives.causal import Causal, CausalBatch, PackedCausalBatch
from plm_core.objectives.masked import mask
from plm_core.objectives.objective import IGNORED, Batch, Batches, Carry, Loss, Quantity, output_nll
from plm_core.text.samplers import TokenRange, draws, stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import EOS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class HybridBatch(PackedCausalBatch):
    """Causal rows, and rows with masks, whose targets are ``IGNORED`` except before a selected token."""

    bidirectional: torch.Tensor
    """``[B]`` bool: which rows are read in both directions."""
    weights: torch.Tensor
    """``[B]``, float64: the weight of a prediction in each row, so that rows have equal weight; the mean over all
    predictions is 1."""


@section
class Hybrid(Causal):
    """The causal objective with a share of masked rows, and its section of the parameters."""

    beside = (
        Quantity(
            "shifted_pseudo_bits_per_byte",
            scorer="plm_core.evaluation.likelihood.pseudo_bits_per_byte:score_shifted",
            meaning="each token given all the others, by the position before it (pseudo-log-likelihood): not a "
            "likelihood of the text, and not comparable with one",
            excerpt=True,
        ),
    )
    distilled = ()
    input_format = "plm_core.finetuning.input_formats:EXTRACT_BIDIRECTIONAL"
    legend = (
        "A row without <mask> is causal: every position predicts the next token. One with it is read in both "
        "directions, and a position predicts the next token where that is masked, or was selected and stays or "
        "became another word."
    )

    masked_rows: Annotated[float, Field(gt=0, lt=1)] = 0.9375
    """The share of rows that are masked. The released models have 15/16, a causal-to-mask ratio of 1:15."""
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of a masked row's tokens that are selected."""

    def __post_init__(self) -> None:
        if self.streams:
            raise ValueError(
                "streams: true; expected false, because the text before a row is not read in both directions"
            )

    def require_fit(self, config: Any) -> None:
        super().require_fit(config)
        if config.context < 2:
            raise ValueError(f"model.context: {config.context}; expected at least 2, to predict a token from another")

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        return _Rows(super().batches(store, config, rows), self, rows, store.index.vocab_size)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(token | tokens before it, or row with masks), in nats, each times the weight of its row."""
        import torch

        assert isinstance(batch, HybridBatch)
        hidden = model.read(batch.inputs, documents=batch.documents, bidirectional=batch.bidirectional)
        targets = batch.targets
        weights = batch.weights[:, None].expand_as(targets)
        if hidden.device.type == "cpu" and not torch.compiler.is_compiling():
            # Most positions of a masked row predict nothing, and their logits would take a third of a small model's
            # step. Left out only here: on a GPU this would wait for the device, and a compiled graph has one shape.
            chosen = targets != IGNORED
            hidden, targets, weights = hidden[chosen], targets[chosen], weights[chosen]
        return Loss(output_nll(model.output(hidden), targets, weights), batch.num_targets)

    def facts(self, batch: Batch, row: int) -> dict[str, Any]:
        assert isinstance(batch, HybridBatch)
        return {"read_both_ways": bool(batch.bidirectional[row])}


def spread_evenly(numbers: np.ndarray, share: float) -> np.ndarray:
    """Which of the rows with these ``numbers`` [n] belong to a share, ``[n]`` bool.

    Among any consecutive rows (of a micro-batch, a process, a run), their number differs from the exact one by less
    than one.
    """
    return np.floor((numbers + 1) * share) > np.floor(numbers * share)


def mask_next(
    ids: np.ndarray, documents: np.ndarray, rate: float, vocab_size: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mask ids ``[T]`` like ``masked.mask``, except the first of each of the ``documents`` [T]: the position before it
    is in another document, or there is none.

    Returns:
        the ids with masks ``[T]``; and the targets ``[T]``: the token that was selected at the next position, otherwise
        ``IGNORED``.
    """
    first = np.append(True, documents[1:] != documents[:-1])
    # A special token is never selected.
    masked, positions, tokens = mask(np.where(first, EOS, ids), rate, vocab_size, draw)
    targets = np.full_like(ids, IGNORED)
    targets[positions - 1] = tokens
    return np.where(first, ids, masked), targets


@dataclass(frozen=True)
class _Rows(Batches):
    view: Batches
    """The same rows, all causal."""
    objective: Hybrid
    rows: int
    vocab_size: int

    def at(self, seed: int, step: int) -> HybridBatch:
        return self._batch(self.view.at(seed, step), stream_seed(seed, "masks"), step * self.rows)

    def held_out(self, count: int) -> list[Batch]:
        return [self._batch(batch, 0, i * self.rows) for i, batch in enumerate(self.view.held_out(count))]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        return self.view.spans(seed, step)

    def metrics(self) -> dict[str, float]:
        return self.view.metrics()

    def _batch(self, batch: Batch, seed: int, first: int) -> HybridBatch:
        """A causal batch, whose first row has the number ``first`` in the run, with some rows masked."""
        import torch

        assert isinstance(batch, CausalBatch)
        # Rows of the stream are read as one document.
        documents = batch.documents if isinstance(batch, PackedCausalBatch) else torch.zeros_like(batch.inputs)
        # Copies, because the inputs and targets of one row may share memory.
        inputs, targets = batch.inputs.numpy().copy(), batch.targets.numpy().copy()
        numbers = first + np.arange(len(inputs))
        bidirectional = spread_evenly(numbers, self.objective.masked_rows)
        for row in np.flatnonzero(bidirectional):
            draw = draws(seed, 0, int(numbers[row]))
            inputs[row], targets[row] = mask_next(
                inputs[row], documents[row].numpy(), self.objective.rate, self.vocab_size, draw
            )
        predicted = (targets != IGNORED).sum(axis=1)
        # A row of special tokens alone predicts nothing, and has no weight.
        weights = predicted.sum() / max(1, (predicted > 0).sum()) / np.maximum(predicted, 1)
        return HybridBatch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            batch.begins,
            documents,
            torch.from_numpy(bidirectional),
            torch.from_numpy(weights),
        )
