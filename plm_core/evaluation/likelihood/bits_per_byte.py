"""``bits_per_byte``: the likelihood of a causal model, -log p(x) = -sum_t log p(x_t | x_<t) (Radford et al. 2018,
equation 1). Also ``two_way_bits_per_byte``, of a model that predicts in both directions.

Shapes: R texts side by side, T positions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood.document_scores import (
    Likelihood,
    Text,
    group_texts,
    read_in_batches,
    score_documents,
    side_by_side,
    token_nats,
    windows,
)
from plm_core.training.device import Device

WINDOWS_AT_ONCE = 16
"""The number of windows of the context's length in a batch; it holds more of shorter ones."""


def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score whole documents: each is read as EOS, its tokens, EOS, and all but the first EOS are predicted once.

    A model without memory reads a document longer than its context in windows that advance by ``stride`` tokens: a
    token has at least ``context - stride`` tokens before it (except for the document's first ones), so a smaller stride
    costs more and predicts better. A model with memory reads segments of its context one after the other, and carries
    over the states of its last ``memory`` positions (Dai et al. 2019, section 3.2).
    """
    model.eval()
    if getattr(model.config, "memory", 0) > 0:
        return score_documents(group_texts(texts), device.device, partial(_segments, model))
    return _in_windows(model, texts, config, device, partial(_windows, model, model.read))


def score_two_way(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """The mean of the likelihoods in both directions (Peters et al. 2018, section 3.1), for ``two_way_bits_per_byte``.

    Forward as ``score``; backward the same for the reversed document: all but the last EOS are predicted once, from the
    tokens after them.
    """
    model.eval()

    def mean(sequences: Sequence[torch.Tensor], stride: int, batch: int) -> list[float]:
        forward = _windows(model, model.read, sequences, stride, batch)
        turned = [sequence.flip(0) for sequence in sequences]
        backward = _windows(model, lambda ids: model.read_back(ids.flip(1)).flip(1), turned, stride, batch)
        return [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]

    return _in_windows(model, texts, config, device, mean)


def _in_windows(
    model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device, nats_of: Callable[..., list[float]]
) -> Iterator[Likelihood]:
    context = model.config.context
    batch = WINDOWS_AT_ONCE * context
    groups = group_texts(texts, lambda text: len(text.ids), batch)
    return score_documents(groups, device.device, partial(nats_of, stride=min(config.stride, context), batch=batch))


def _windows(
    model: Any,
    read: Callable[[torch.Tensor], torch.Tensor],
    sequences: Sequence[torch.Tensor],
    stride: int,
    batch: int,
) -> list[float]:
    context = model.config.context

    def nats_of(shape: tuple[int, int], places: list[tuple[int, int]]) -> torch.Tensor:
        length, skip = shape
        rows = torch.stack([sequences[text][start : start + length + 1] for text, start in places])
        hidden = read(rows[:, :-1])
        return token_nats(model, hidden[:, skip:], rows[:, skip + 1 :]).sum(1)

    every = (
        ((stop - start, first - start), (text, start))
        for text, sequence in enumerate(sequences)
        for start, first, stop in windows(len(sequence) - 1, context, stride)
    )
    return read_in_batches(len(sequences), every, nats_of, batch)


def _segments(model: Any, sequences: Sequence[torch.Tensor]) -> list[float]:
    context = model.config.context
    memory = model.empty_memory(len(sequences), 0)
    nats: list[list[float]] = [[] for _ in sequences]
    for segment in side_by_side(sequences, context + 1, context):
        inputs, attention_mask = segment.ids[:, :-1], segment.attention_mask[:, :-1]
        hidden, memory = model.read_with_memory(inputs, attention_mask, memory.first(len(inputs)))
        memory = memory.last(model.config.memory)
        for text, segment_nats in zip(segment.live, segment.nats(model, hidden), strict=True):
            nats[text].append(segment_nats)
    return [math.fsum(segment_nats) for segment_nats in nats]
