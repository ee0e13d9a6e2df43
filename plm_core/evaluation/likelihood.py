"""Held-out likelihood of a causal model, per document: nats, tokens, bytes, and from them bits per byte.

Bits per byte divides by the UTF-8 bytes of the text, so that models with different tokenizers can be compared (Gao
et al. 2020, "The Pile", section 3.1); perplexity per token cannot. Shapes: T positions, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from plm_core.text.special import EOS
from plm_core.training.device import Device

QUANTITY = "bits_per_byte"
"""The name of what this file measures; masked and permutation models measure other quantities under other names."""
WINDOWS_AT_ONCE = 16


@dataclass(frozen=True)
class DocumentScore:
    """The likelihood of one document."""

    nats: float
    """-sum log p over its tokens and the EOS that ends it, in nats."""
    tokens: int
    """How many predictions that is: tokens + 1."""
    bytes: int
    """The UTF-8 bytes of its text; EOS adds none."""


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a set of documents: sums, divided once."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        """The mean negative log-likelihood of a token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of ``nats_per_token``: comparable only between models with the same tokenizer."""
        return math.exp(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float:
        """The sum in bits over the bytes of the text: comparable between causal models of any tokenizer."""
        return self.nats / math.log(2) / self.bytes


def total(scores: Iterable[DocumentScore]) -> Likelihood:
    """Sum the scores of documents."""
    rows = list(scores)
    return Likelihood(
        math.fsum(row.nats for row in rows), sum(row.tokens for row in rows), sum(row.bytes for row in rows)
    )


@torch.no_grad()
def score(
    model: Any, documents: Iterable[tuple[Sequence[int], int]], stride: int, device: Device
) -> Iterator[DocumentScore]:
    """Score documents given as ``(token ids without EOS, bytes of the text)``.

    Each document is read as EOS, its tokens, EOS: every token of it and the closing EOS are predicted once. One
    longer than the context is read in windows that advance by ``stride`` tokens: a token has at least ``context -
    stride`` tokens before it (but for the document's first ones), so a smaller stride costs more and predicts
    better.

    Raises:
        ValueError: ``stride`` is not between 1 and the model's context.
    """
    context = model.config.context
    if not 1 <= stride <= context:
        raise ValueError(f"stride: {stride} is not between 1 and the context {context}")
    model.eval()
    for ids, size in documents:
        sequence = torch.tensor([EOS, *ids, EOS], device=device.device)
        # Windows of one shape go through the model together; the sum is exact enough in any order.
        shapes: dict[tuple[int, int], list[int]] = {}
        for start, first, stop in _windows(len(sequence) - 1, context, stride):
            shapes.setdefault((stop - start, first - start), []).append(start)
        nats = math.fsum(
            _nats(model, sequence, starts[i : i + WINDOWS_AT_ONCE], length, skip)
            for (length, skip), starts in shapes.items()
            for i in range(0, len(starts), WINDOWS_AT_ONCE)
        )
        yield DocumentScore(nats, len(ids) + 1, size)


def _nats(model: Any, sequence: torch.Tensor, starts: Sequence[int], length: int, skip: int) -> float:
    """The summed nats from position ``skip`` on in the windows of ``length`` tokens at ``starts``."""
    rows = torch.stack([sequence[start : start + length + 1] for start in starts])
    logits = model.logits(model(rows[:, :-1])[:, skip:])
    nats = F.cross_entropy(logits.flatten(0, 1), rows[:, skip + 1 :].flatten(), reduction="none")
    return float(nats.double().sum())


def _windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """``(start, first, stop)``: read inputs [start, stop), take the predictions of [first, stop); each input once."""
    scored = 0
    while scored < length:
        stop = min(length, context if scored == 0 else scored + stride)
        yield max(0, stop - context), scored, stop
        scored = stop
