"""``bits_per_byte``: the likelihood of a causal model, by the chain rule from left to right.

-log p(x) = -sum_t log p(x_t | x_<t) (Radford et al. 2018, equation 1): a proper probability of the text, each token
given those before it. Pseudo-likelihoods and permutation models' likelihoods condition differently, and have other
names.

Shapes: W windows, R texts side by side, T positions, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from plm_core.evaluation.likelihood.base import Likelihood, Text, scored, side_by_side, summed_nll, windows
from plm_core.sections.evaluation import LikelihoodConfig
from plm_core.training.device import Device

WINDOWS_AT_ONCE = 16


def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score whole documents: each is read as EOS, its tokens, EOS, and all but the first EOS are predicted once.

    A model without memory reads a document longer than its context in windows that advance by ``stride`` tokens: a
    token has at least ``context - stride`` tokens before it (except for the document's first ones), so a smaller stride
    costs more and predicts better. A model with memory reads segments of its context one after the other, and carries
    over the states of its last ``memory`` positions (Dai et al. 2019, section 3.2).
    """
    model.eval()
    if getattr(model.config, "memory", 0) > 0:
        return scored(texts, device.device, partial(_segments, model))
    alone = partial(_windows, model, stride=min(config.stride, model.config.context))
    return scored(texts, device.device, lambda sequences: map(alone, sequences))


def _windows(model: Any, sequence: torch.Tensor, stride: int) -> float:
    # Windows of one shape form a batch; the sum is exact enough in any order.
    shapes: dict[tuple[int, int], list[int]] = {}
    for start, first, stop in windows(len(sequence) - 1, model.config.context, stride):
        shapes.setdefault((stop - start, first - start), []).append(start)
    return math.fsum(
        _nats(model, sequence, starts[i : i + WINDOWS_AT_ONCE], length, skip)
        for (length, skip), starts in shapes.items()
        for i in range(0, len(starts), WINDOWS_AT_ONCE)
    )


def _nats(model: Any, sequence: torch.Tensor, starts: Sequence[int], length: int, skip: int) -> float:
    """The summed nats from position ``skip`` on in the windows of ``length`` tokens at ``starts``."""
    rows = torch.stack([sequence[start : start + length + 1] for start in starts])
    hidden, _ = model.read(rows[:, :-1], keep=False)
    return summed_nll(model.logits(hidden[:, skip:]), rows[:, skip + 1 :])


def _segments(model: Any, sequences: Sequence[torch.Tensor]) -> list[float]:
    context = model.config.context
    memory = model.empty_memory(len(sequences), 0)
    nats: list[list[float]] = [[] for _ in sequences]
    for segment in side_by_side(sequences, context + 1, context):
        inputs, attention_mask = segment.ids[:, :-1], segment.attention_mask[:, :-1]
        hidden, memory = model.read(inputs, attention_mask, memory.first(len(inputs)))
        memory = memory.last(model.config.memory)
        for text, found in zip(segment.live, segment.nats(model.logits(hidden)), strict=True):
            nats[text].append(found)
    return [math.fsum(found) for found in nats]
