"""Beam search: a likely text of a model, as the answer to a source. Used by tasks whose answers are texts.

Of the texts that are continued, the ``beams`` likeliest are kept. Texts of different lengths are compared by their log
probability divided by ((5 + length) / 6)^alpha (Wu et al. 2016, "Google's Neural Machine Translation System", equation
14, without the coverage penalty; Vaswani et al. 2017, section 6.1, have 4 beams and an alpha of 0.6). The search for a
source ends when no text that is still continued can be better than the best one that has ended; its rows are then read
no more.

Shapes: B sources, K beams, R = B K rows, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from plm_core.text.tokenizers import EOS, PIECES

Advance = Callable[[Tensor, Tensor], Tensor]
"""``(rows, tokens)`` to the logits ``[R, V]`` of the token after ``tokens`` [R], each of which continues the text in
one of the ``rows`` [R] of the call before. R shrinks by K with each source whose search has ended."""


class Candidate(NamedTuple):
    """A text that has ended, or that there was no more room for."""

    score: float
    """Its log probability, in nats, divided by the length penalty."""
    ids: list[int]
    """Its tokens, without EOS."""
    nats: float
    """-log p, of EOS too if it has ended."""


def beam_search(
    first: Tensor, advance: Advance, beams: int, alpha: float, most: int, vocab_size: int
) -> list[Candidate]:
    """The best text for each of B sources, of at most ``most`` tokens, EOS included.

    ``first`` [R, V] are the logits of the first token; the K rows of a source are alike. Special tokens but EOS, and
    ids from ``vocab_size`` on, are never written.

    Raises:
        ValueError: there are more beams than tokens.
    """
    if beams > vocab_size - len(PIECES):
        raise ValueError(f"beams: {beams}; expected at most {vocab_size - len(PIECES)}, the tokens of the vocabulary")
    R, V = first.shape
    K = beams
    B = R // K
    device = first.device
    never = torch.ones(V, dtype=torch.bool, device=device)
    never[len(PIECES) : vocab_size] = never[EOS] = False
    texts = torch.empty(B, K, 0, dtype=torch.long, device=device)
    totals = torch.full((B, K), -math.inf, dtype=torch.float64, device=device)
    totals[:, 0] = 0.0  # at first all beams of a source are one
    open_sources = list(range(B))
    best: list[Candidate | None] = [None] * B
    logits = first
    for length in range(1, most + 1):
        # The likeliest 2 K continuations: at most K of them end a text, so K are left.
        log_p = logits.double().masked_fill(never, -math.inf).log_softmax(-1).view(-1, K, V)
        values, places = (totals[..., None] + log_p).flatten(1).topk(2 * K)
        beam = places // V
        token = places % V
        ends = token == EOS
        for place, rank in ends[:, :K].nonzero().tolist():
            total = float(values[place, rank])
            source = open_sources[place]
            ids = texts[place, beam[place, rank]].tolist()
            ended = Candidate(total / penalty(length, alpha), ids, -total)
            if total > -math.inf and (best[source] is None or ended > best[source]):  # type: ignore[operator]
                best[source] = ended
        kept = ends.long().argsort(dim=1, stable=True)[:, :K]
        totals, beam, token = (x.gather(1, kept) for x in (values, beam, token))
        totals = totals.masked_fill(token == EOS, -math.inf)
        texts = torch.cat((texts.gather(1, beam[..., None].expand(-1, -1, length - 1)), token[..., None]), dim=2)

        # Sources whose best text cannot be bettered by a longer one leave the batch.
        bounds = (totals[:, 0] / penalty(most, alpha)).tolist()
        left = []
        for place, (source, bound) in enumerate(zip(open_sources, bounds, strict=True)):
            candidate = best[source]
            if candidate is None or candidate.score < bound:
                left.append(place)
        if length == most or not left:
            break
        open_sources = [open_sources[place] for place in left]
        stay = torch.tensor(left, device=device)
        totals, texts, beam, token = (x[stay] for x in (totals, texts, beam, token))
        logits = advance((stay[:, None] * K + beam).flatten(), token.flatten())
    for source, ids, total in zip(open_sources, texts[:, 0].tolist(), totals[:, 0].tolist(), strict=True):
        best[source] = best[source] or Candidate(total / penalty(len(ids), alpha), ids, -total)
    return [candidate for candidate in best if candidate is not None]


def penalty(length: int, alpha: float) -> float:
    """The length penalty of a text of ``length`` tokens."""
    return float(((5 + length) / 6) ** alpha)
