"""``span_bits_per_byte``: -log p of spans given the text around them, by an encoder-decoder that was trained on spans.

A text is read in windows. Each is cut into spans of three tokens, and read ``PASSES`` times with every seventh span
left out, so that about as much is missing as in training (Raffel et al. 2020: 15 %) and each token is predicted once.
Only tokens of the text count; where a span ends is given. Like the pseudo-likelihood of masked models it is not the
probability of a text: what is predicted in one pass is read in the others.

Shapes: N readings of a window, n tokens of a window, T positions of a target.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood.document_scores import (
    Likelihood,
    Text,
    group_texts,
    read_in_batches,
    token_nats,
    windows,
)
from plm_core.objectives.objective import IGNORED
from plm_core.objectives.span_corruption import shifted
from plm_core.text.tokenizers import EOS
from plm_core.training.device import Device

SPAN, PASSES = 3, 7
"""The tokens of a span, and how often a window is read."""
WINDOWS_AT_ONCE = 64
"""The number of readings of the longest windows in a batch; it holds more of shorter ones."""


@torch.no_grad()
def score(model: Any, texts: Iterable[Text], config: LikelihoodConfig, device: Device) -> Iterator[Likelihood]:
    """Score whole documents. A text that is longer than the context is read in windows one after the other; the last
    one begins early, so that its tokens have as much context as any. Windows have no more spans than there are
    sentinels.
    """
    model.eval()
    # EOS and a sentinel for each span that is left out take the place of its three tokens or fewer.
    room = max(1, min(model.config.context - 1, PASSES * SPAN * model.config.sentinels))
    batch = WINDOWS_AT_ONCE * room

    for group in group_texts(texts, lambda text: PASSES * len(text.ids), batch):
        ids = torch.tensor([token for text in group for token in text.ids], dtype=torch.long, device=device.device)
        begins = accumulate((len(text.ids) for text in group), initial=0)

        def nats_of(shape: tuple[int, ...], places: Sequence[tuple[int, ...]], ids: torch.Tensor = ids) -> torch.Tensor:
            length, skip, number = shape
            starts = torch.tensor([start for _, start in places], device=ids.device)
            rows = ids[starts[:, None] + torch.arange(length, device=ids.device)]
            return _span_nats(model, rows, skip, number)

        readings = [
            ((stop - start, first - start, number), (text, begin + start))
            for text, (one_text, begin) in enumerate(zip(group, begins, strict=False))
            for start, first, stop in windows(len(one_text.ids), room, room)
            for number in range(PASSES)
        ]
        sums = read_in_batches(len(group), readings, nats_of, batch)
        yield from (Likelihood(nats, len(text.ids), text.bytes) for text, nats in zip(group, sums, strict=True))


def _span_nats(model: Any, rows: torch.Tensor, skip: int, number: int) -> torch.Tensor:
    """The nats ``[N]`` of every seventh span of ``rows`` [N, n], from span ``number`` on, without the first ``skip``
    tokens of the rows."""
    length = rows.shape[1]
    source: list[torch.Tensor] = []
    target: list[torch.Tensor] = []
    counted: list[torch.Tensor] = []

    def sentinel(n: int) -> torch.Tensor:
        return rows.new_full((len(rows), 1), model.config.first_sentinel - n)

    for n, start in enumerate(range(0, length, SPAN)):
        span = rows[:, start : start + SPAN]
        if n % PASSES != number:
            source.append(span)
            continue
        places = torch.arange(start, start + span.shape[1], device=rows.device)
        source.append(sentinel(n // PASSES))
        target += [sentinel(n // PASSES), span]
        counted += [rows.new_full((len(rows), 1), IGNORED), span.where(places >= skip, IGNORED)]
    if not target:
        return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    end = rows.new_full((len(rows), 1), EOS)
    written, goal = torch.cat(target, 1), torch.cat(counted, 1)
    hidden = model.decode(shifted(written), model.encode(torch.cat([*source, end], 1)))
    return token_nats(model, hidden, goal).sum(1)
