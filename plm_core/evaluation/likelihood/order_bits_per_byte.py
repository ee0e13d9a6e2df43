"""Likelihoods of a permutation model: ``fixed_order_bits_per_byte`` and ``mean_order_bits_per_byte``.

For any order z, -log p(x) = -sum_t log p(x_z(t) | x_z(<t)), and another order gives another probability; the model was
trained to make their mean small (Yang et al. 2019, equation 3). So two numbers are measured: in reading order, which
training sees no more often than any other, and the mean over a few random orders, which estimates the loss itself (as
in orderless NADE: Uria, Murray and Larochelle 2014).

Both use the query stream, which does not see the token that it predicts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from plm_core.config import digest
from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood.document_scores import Likelihood, Text, group_texts, score_documents, side_by_side
from plm_core.training.device import Device


def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score whole documents in the order of reading: EOS, the tokens, EOS; all but the first EOS are predicted once.

    Raises:
        ValueError: the model's context has no room for a token in addition to the one that is given.
    """
    model.eval()
    return score_documents(
        group_texts(texts), device.device, lambda sequences: _nats(model, sequences, [None] * len(sequences))
    )


@torch.no_grad()
def score_orders(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score the excerpt of each document in ``orders`` random orders and yield their mean; nothing if ``orders`` is 0.

    In each segment all positions except the given EOS are permuted. The orders are seeded by the document's tokens, so
    they do not depend on other documents, and measuring again gives the same result.

    Raises:
        ValueError: as in ``score``.
    """
    model.eval()
    for text in texts if config.orders else ():
        text = text.first(config.excerpt)
        sequence = text.sequence(device.device)
        draws = [np.random.default_rng(int(digest(text.ids, number), 16)) for number in range(config.orders)]
        sums = _nats(model, [sequence] * len(draws), draws)
        yield Likelihood(math.fsum(sums) / len(sums), len(sequence) - 1, text.bytes)


def _nats(model: Any, sequences: Sequence[torch.Tensor], draws: Sequence[np.random.Generator | None]) -> list[float]:
    """The nats of each text in the order that its generator draws; None is the order of reading.

    With memory, segments follow one another. Without, each begins with the last token of the one before; otherwise its
    first token would be predicted from nothing.
    """
    context, most = model.config.context, model.config.memory
    if context < 2:
        raise ValueError(
            f"context: {context}; expected at least 2, for a token that is given and one that is predicted"
        )
    memory = model.empty_memory(len(sequences), 0)
    nats: list[list[float]] = [[] for _ in sequences]
    for segment in side_by_side(sequences, context, context if most else context - 1):
        T = segment.ids.shape[1]
        sizes = segment.attention_mask.sum(dim=1).tolist()
        orders = [_order(size, segment.given, draws[text]) for text, size in zip(segment.live, sizes, strict=True)]
        # Positions after the end of a text come last.
        order = torch.tensor(np.stack([np.append(places, np.full(T - len(places), T)) for places in orders]))
        queries = torch.arange(segment.given, T, device=segment.ids.device).expand(len(sizes), -1)
        memory = memory.first(len(sizes))
        hidden = model(segment.ids, order.to(segment.ids.device), memory=memory, queries=queries)
        memory = memory.extended(hidden.states, segment.attention_mask).last(most)
        for text, segment_nats in zip(segment.live, segment.nats(model, hidden.query), strict=True):
            nats[text].append(segment_nats)
    return [math.fsum(segment_nats) for segment_nats in nats]


def _order(size: int, given: int, draw: np.random.Generator | None) -> np.ndarray:
    """The place of each of ``size`` positions in the order of factorisation; what is given comes first."""
    order = np.arange(size)
    if draw is not None:
        draw.shuffle(order[given:])
    return order
