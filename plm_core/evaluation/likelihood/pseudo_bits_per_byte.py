"""``pseudo_bits_per_byte``: the pseudo-log-likelihood of a masked model, -sum_t log p(x_t | all other tokens).

Each token is masked in turn and predicted from both sides (Wang and Cho 2019, "BERT has a Mouth"; Salazar et al. 2020,
"Masked Language Model Scoring", equation 1). These conditionals do not multiply to a probability of the text, so the
number must not be compared with a likelihood by the chain rule.

``shifted_pseudo_bits_per_byte`` is the same for a decoder that was also trained on masked tokens, which it predicts at
the position before (Charpentier and Samuel 2024).

With ``within_word`` the tokens of the same word to the right are masked as well, because the rest of a long word gives
a token away (Kauf and Ivanova 2023, "A Better Way to Do Masked Language Model Scoring": PLL-word-l2r).

Shapes: N masked copies, n tokens of a window, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood.document_scores import Likelihood, Text, group_texts, read_in_batches, windows
from plm_core.text.tokenizers import CLS, EOS, MASK, SEP
from plm_core.training.device import Device

COPIES_AT_ONCE = 64
"""The number of masked copies of the longest windows in a batch; it holds more of shorter ones."""

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

    A window is ``EOS tokens``, so that every token has a position before it. No token follows the text, as in training.

    Raises:
        ValueError: the model's context has no room for a token after EOS.
    """
    room = model.config.context - 1
    if room < 1:
        raise ValueError(f"context: {model.config.context}; expected at least 2, for EOS and a token")
    model.eval()

    def predict(masked: Tensor, place: Tensor) -> Tensor:
        both = torch.ones(len(masked), dtype=torch.bool, device=masked.device)
        hidden = model.read(F.pad(masked, (1, 0), value=EOS), bidirectional=both)
        # With EOS in front, this place in the padded window is the position before the token.
        return model.logits(hidden.gather(1, place[..., None].expand(-1, -1, hidden.shape[-1])))

    return _scored(texts, config, device, room, predict)


@torch.no_grad()
def _scored(
    texts: Iterable[Text], config: LikelihoodConfig, device: Device, room: int, predict: Predict
) -> Iterator[Likelihood]:
    """Score the excerpt of each document in windows of at most ``room`` tokens."""
    excerpts = (text.first(config.excerpt) for text in texts)
    batch = COPIES_AT_ONCE * room
    for group in group_texts(excerpts, lambda text: len(text.ids) * min(len(text.ids), room), batch):
        ids = torch.tensor([token for text in group for token in text.ids], dtype=torch.long, device=device.device)
        # Tokens of one word are masked together; without `within_word` every token is its own word.
        starts = torch.tensor([start for text in group for start in text.starts], dtype=torch.bool)
        words = (starts.to(device.device) | (not config.within_word)).cumsum(0)
        begins = accumulate((len(text.ids) for text in group), initial=0)
        copies = [
            ((min(len(text.ids), room),), (number, begin + start, begin + token))
            for number, (text, begin) in enumerate(zip(group, begins, strict=False))
            for start, first, stop in windows(len(text.ids), room, room)
            for token in range(first, stop)
        ]
        sums = read_in_batches(len(group), copies, partial(_nats, predict, ids, words), batch)
        yield from (Likelihood(nats, len(text.ids), text.bytes) for text, nats in zip(group, sums, strict=True))


def _nats(predict: Predict, ids: Tensor, words: Tensor, shape: tuple[int], copies: Sequence[tuple[int, ...]]) -> Tensor:
    """The nats ``[N]`` of one masked token each in N windows of one length, given as (text, start, token)."""
    _, start, token = torch.tensor(copies, device=ids.device).T[..., None]
    places = start + torch.arange(*shape, device=ids.device)
    hidden = (places >= token) & (words[places] == words[token])
    logits = predict(ids[places].masked_fill(hidden, MASK), token - start)
    return F.cross_entropy(logits[:, 0], ids[token[:, 0]], reduction="none").double()
