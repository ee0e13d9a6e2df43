"""``pseudo_bits_per_byte``: the pseudo-log-likelihood of a masked model.

-sum_t log p(x_t | all other tokens): each token is masked in turn and predicted from both sides (Wang and Cho 2019,
"BERT has a Mouth"; Salazar et al. 2020, "Masked Language Model Scoring", equation 1). These conditionals do not
multiply to a probability of the text: a token helps to predict its neighbour and is predicted by it. So the number is
usually lower than a likelihood by the chain rule, and must not be compared with one; masked models are compared by it.

``shifted_pseudo_bits_per_byte`` is the same for a decoder that was also trained on masked tokens, which it predicts at
the position before (Charpentier and Samuel 2024).

The rest of a long word gives a token away. With ``within_word`` the tokens of the same word to its right are masked as
well (Kauf and Ivanova 2023, "A Better Way to Do Masked Language Model Scoring": PLL-word-l2r).

Shapes: N masked copies, n tokens of a window, T positions, D width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.evaluation.likelihood.base import Likelihood, Text, summed_nll, windows
from plm_core.sections.evaluation import LikelihoodConfig
from plm_core.text.special import CLS, EOS, MASK, SEP
from plm_core.training.device import Device

COPIES_AT_ONCE = 64

Predict = Callable[[Tensor, Tensor], Tensor]
"""Windows ``[N, n]`` with masks, and the place ``[N, 1]`` of the requested token in each, to its logits ``[N, 1,
V]``."""


def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score the excerpt of each document: every token of it is predicted once, at a mask, in one copy of its window.

    A window is framed as in training, ``CLS tokens SEP``. A text that is longer than the context is read in windows one
    after the other; the last one begins early, so that its tokens have as much context as any.

    Raises:
        ValueError: the model's context has no room for a token between CLS and SEP.
    """
    room = model.config.context - 2
    if room < 1:
        raise ValueError(f"context: {model.config.context}; expected at least 3, for CLS, a token and SEP")
    model.eval()

    def predict(masked: Tensor, place: Tensor) -> Tensor:
        return model.predict(F.pad(F.pad(masked, (1, 0), value=CLS), (0, 1), value=SEP), 1 + place)

    return _scored(texts, config, device, room, predict)


def score_shifted(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """As ``score``, for a decoder that reads in both directions and predicts at the position before the mask.

    A window is ``EOS tokens``, so that every token has a position before it. Nothing follows, as in training.

    Raises:
        ValueError: the model's context has no room for a token after EOS.
    """
    room = model.config.context - 1
    if room < 1:
        raise ValueError(f"context: {model.config.context}; expected at least 2, for EOS and a token")
    model.eval()

    def predict(masked: Tensor, place: Tensor) -> Tensor:
        both = torch.ones(len(masked), dtype=torch.bool, device=masked.device)
        hidden, _ = model.read(F.pad(masked, (1, 0), value=EOS), bidirectional=both)
        # With EOS in front, this place in the padded window is the position before the token.
        return model.logits(hidden.gather(1, place[..., None].expand(-1, -1, hidden.shape[-1])))

    return _scored(texts, config, device, room, predict)


@torch.no_grad()
def _scored(
    texts: Iterable[Text], config: LikelihoodConfig, device: Device, room: int, predict: Predict
) -> Iterator[Likelihood]:
    """Score the excerpt of each document in windows of at most ``room`` tokens."""
    for text in texts:
        text = text.first(config.excerpt)
        ids = torch.tensor(text.ids, dtype=torch.long, device=device.device)
        # Tokens of one word are masked together; without `within_word` every token is its own word.
        alone = torch.tensor(text.starts, dtype=torch.bool, device=device.device) | (not config.within_word)
        copies = [
            (start, token) for start, first, stop in windows(len(ids), room, room) for token in range(first, stop)
        ]
        length = min(len(ids), room)
        nats = (
            _nats(predict, ids, alone.cumsum(0), copies[i : i + COPIES_AT_ONCE], length)
            for i in range(0, len(copies), COPIES_AT_ONCE)
        )
        yield Likelihood(math.fsum(nats), len(ids), text.bytes)


def _nats(predict: Predict, ids: Tensor, words: Tensor, copies: Sequence[tuple[int, int]], length: int) -> float:
    """The summed nats of one masked token each in N windows of ``length`` tokens, given as (start, token)."""
    start, token = torch.tensor(copies, device=ids.device).T[..., None]
    places = start + torch.arange(length, device=ids.device)
    hidden = (places >= token) & (words[places] == words[token])
    return summed_nll(predict(ids[places].masked_fill(hidden, MASK), token - start), ids[token])
