"""Likelihoods of a permutation model: ``fixed_order_bits_per_byte`` and ``mean_order_bits_per_byte``.

For any order z the conditionals multiply to a probability of the text, -log p(x) = -sum_t log p(x_z(t) | x_z(<t)), and
another order gives another probability. The model was trained to make their mean over all orders small (Yang et al.
2019, equation 3). So two numbers are taken: in the order of reading, which training sees no oftener than any other, so
that it is not what a causal model's bits per byte are; and the mean over a few random orders, which estimates the loss
itself (as orderless NADE is measured: Uria, Murray and Larochelle 2014).

Both are taken from the query stream, which does not know the token that it predicts. A segment's content states are
carried on as memory, in the order in which the segment was read.

Shapes: R orders, T positions, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from plm_core.config import digest
from plm_core.evaluation.scores import DocumentScore, LikelihoodConfig, Text, summed_nats
from plm_core.training.device import Device

QUANTITY = "fixed_order_bits_per_byte"
MEAN_QUANTITY = "mean_order_bits_per_byte"


@torch.no_grad()
def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[DocumentScore]:
    """Score whole documents in the order of reading: EOS, the tokens, EOS; all but the first EOS are predicted once.

    Raises:
        ValueError: the model's context has no room for a token beside the one that is given.
    """
    model.eval()
    for text in texts:
        sequence = text.sequence(device.device)
        yield DocumentScore(_nats(model, sequence, [None]), len(sequence) - 1, text.bytes)


@torch.no_grad()
def score_orders(
    model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device
) -> Iterator[DocumentScore]:
    """Score the excerpt of each document in ``orders`` random orders and yield their mean; nothing for no orders.

    In each segment all positions are permuted, but for the EOS that is given. The orders are drawn from the tokens of
    the document: no document's depend on the others, and measuring again gives the same.

    Raises:
        ValueError: as ``score``.
    """
    model.eval()
    for text in texts if config.orders else ():
        text = text.first(config.excerpt)
        sequence = text.sequence(device.device)
        draws = [np.random.default_rng(int(digest(text.ids, number), 16)) for number in range(config.orders)]
        yield DocumentScore(_nats(model, sequence, draws) / len(draws), len(sequence) - 1, text.bytes)


def _nats(model: Any, sequence: torch.Tensor, draws: Sequence[np.random.Generator | None]) -> float:
    """The nats of a text, summed over R orders that are read side by side; None is the order of reading."""
    context, most = model.config.context, model.config.memory
    if context < 2:
        raise ValueError(
            f"context: {context}; expected at least 2, for a token that is given and one that is predicted"
        )
    rows, memory = sequence.expand(len(draws), -1), model.empty_memory(len(draws), 0)
    nats = []
    for start, stop, given in _segments(len(sequence), context, most > 0):
        ids = rows[:, start:stop]
        order = torch.tensor(np.stack([_order(stop - start, given, draw) for draw in draws]), device=ids.device)
        places = torch.arange(given, stop - start, device=ids.device).expand(len(draws), -1)
        hidden = model(ids, order=order, memory=memory, queries=places)
        memory = memory.extended(hidden.states, torch.ones_like(ids, dtype=torch.bool)).last(most)
        nats.append(summed_nats(model.logits(hidden.query), ids[:, given:]))
    return math.fsum(nats)


def _segments(length: int, context: int, carried: bool) -> Iterator[tuple[int, int, int]]:
    """``(start, stop, given)``: read positions [start, stop), predict all but the first ``given`` of them.

    With memory, segments follow one another. Without, each begins with the last token of the one before, or its first
    token would be predicted from nothing.
    """
    start, given = 0, 1
    while start + given < length:
        stop = min(length, start + context)
        yield start, stop, given
        start, given = (stop, 0) if carried else (stop - 1, 1)


def _order(size: int, given: int, draw: np.random.Generator | None) -> np.ndarray:
    """The place of each of ``size`` positions in the order of factorisation; what is given comes first."""
    order = np.arange(size)
    if draw is not None:
        draw.shuffle(order[given:])
    return order
