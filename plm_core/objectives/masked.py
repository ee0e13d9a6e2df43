"""Masked language modelling and next-sentence prediction. Devlin et al. 2019, section 3.1 and appendix A.1.

A share of the tokens is selected; of those 80 % become MASK, 10 % a random token, 10 % stay, and each is predicted.
With ``next_sentence`` a row is ``CLS A SEP B SEP``, and the first position tells whether B follows A. Without, it is
RoBERTa (Liu et al. 2019, section 4): ``CLS text SEP``, packed across documents. Masks are drawn anew each time a row is
read, for both. Rows begin and end at tokens, not at sentences.

Shapes: B rows, T positions, N masked positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from plm_core.objectives.loss import IGNORED, Batch, Batches, Carry, Loss, summed_nats
from plm_core.text.special import CLS, MASK, PAD, PIECES, SEP, UNK
from plm_core.text.store import TokenStore
from plm_core.text.views import Pairs, Windows, draws, items_at, spread, stream_seed

FOLLOWS, ELSEWHERE = 0, 1
"""The classes of next-sentence prediction, in the order of the released models."""


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Inputs ``[B, T]`` with masks, and the tokens ``[B, N]`` that were there; ``IGNORED`` fills rows with fewer."""

    positions: torch.Tensor
    """Where the targets stand, ``[B, N]``."""
    segments: torch.Tensor
    """0 up to the first SEP, 1 behind it, ``[B, T]``."""
    keep: torch.Tensor
    """False where the row is padded, ``[B, T]``."""
    following: torch.Tensor
    """``FOLLOWS`` or ``ELSEWHERE``, ``[B]``; ``IGNORED`` without next-sentence prediction."""


@dataclass(frozen=True)
class Masked:
    """The masked objective, and its section of the parameters."""

    needs: ClassVar[tuple[str, ...]] = ("pool",)

    rate: float = 0.15
    """The share of a row's tokens that is selected."""
    next_sentence: bool = False
    """Pairs of spans, and whether the second follows the first, as BERT; else packed text, as RoBERTa."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: {self.rate}; expected above 0 and below 1")

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        """Rows of at most ``context`` tokens.

        Raises:
            ValueError: the context has no room for text, or the model no second segment for a pair.
            BadInput: the store is too small, or has no two documents to draw pairs from.
        """
        length = config.context - (3 if self.next_sentence else 2)
        if length < 2:
            raise ValueError(
                f"model.context: {config.context} leaves {length} tokens of text a row; expected at least 2"
            )
        if self.next_sentence and config.segments < 2:
            raise ValueError(f"model.segments: {config.segments}; expected at least 2 for objective.next_sentence")
        view = Pairs(store, length) if self.next_sentence else Windows(store, length, length)
        return _Rows(self, view, config.context, rows, store.index.vocab_size)

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(masked token | row), in nats, plus -sum log p(class of the pair | row) times its masked tokens.

        Divided by the number of masked tokens, this is the paper's sum of two means, where rows count by their length.
        """
        assert isinstance(batch, MaskedBatch)
        hidden = model(batch.inputs, batch.segments, batch.keep)
        masked = hidden.gather(1, batch.positions[..., None].expand(-1, -1, hidden.shape[-1]))
        nats = summed_nats(model.logits(masked), batch.targets)
        if self.next_sentence:
            classes = batch.following[:, None].expand_as(batch.targets).where(batch.targets != IGNORED, IGNORED)
            pairs = model.next_sentence(model.pool(hidden))[:, None].expand(*classes.shape, -1)
            nats = nats + summed_nats(pairs, classes)
        return Loss(nats, batch.count)


def mask(
    ids: np.ndarray, rate: float, vocab_size: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select round(rate * n) of the n tokens in ``ids`` [T] that are not special, at least one if there is one.

    UNK stands for a word and is selected too, as in the released code.

    Returns:
        the ids with 80 % of the selected as MASK and 10 % as a random token; the positions ``[n]`` of the selected, in
        order; the tokens ``[n]`` that stood there.
    """
    candidates = np.flatnonzero((ids >= len(PIECES)) | (ids == UNK))
    chosen = min(len(candidates), max(1, round(rate * len(candidates))))
    positions = np.sort(draw.choice(candidates, chosen, replace=False))
    fate, strangers = draw.random(chosen), draw.integers(len(PIECES), vocab_size, chosen)
    targets, masked = ids[positions], ids.copy()
    masked[positions] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, strangers, targets))
    return masked, positions, targets


@dataclass(frozen=True)
class _Rows:
    objective: Masked
    view: Pairs | Windows
    context: int
    rows: int
    vocab_size: int

    def at(self, seed: int, step: int) -> MaskedBatch:
        return self._batch(items_at(seed, step, self.rows, len(self.view)), stream_seed(seed, "masks"), step)

    def held_out(self, count: int) -> list[Batch]:
        items = spread(count, len(self.view))
        return [self._batch(items[i : i + self.rows], 0, i) for i in range(0, len(items), self.rows)]

    def _batch(self, items: np.ndarray, seed: int, step: int) -> MaskedBatch:
        B, T = len(items), self.context
        slots = max(1, round(self.objective.rate * (T - (3 if self.objective.next_sentence else 2))))
        inputs, segments = np.full((B, T), PAD), np.zeros((B, T), dtype=np.int64)
        keep = np.zeros((B, T), dtype=bool)
        targets, positions = np.full((B, slots), IGNORED), np.zeros((B, slots), dtype=np.int64)
        following = np.full(B, IGNORED)
        for row, item in enumerate(items):
            draw = draws(seed, step, row)
            if isinstance(self.view, Pairs):
                a, b, follows = self.view.pair(int(item), draw)
                ids = np.concatenate(([CLS], a, [SEP], b, [SEP]))
                segments[row, len(a) + 2 : len(ids)] = 1
                following[row] = FOLLOWS if follows else ELSEWHERE
            else:
                ids = np.concatenate(([CLS], self.view.row(int(item)), [SEP]))
            keep[row, : len(ids)] = True
            ids, places, tokens = mask(ids, self.objective.rate, self.vocab_size, draw)
            inputs[row, : len(ids)] = ids
            positions[row, : len(places)], targets[row, : len(places)] = places, tokens
        columns = (inputs, targets, positions, segments, keep, following)
        return MaskedBatch(*(torch.from_numpy(column) for column in columns))
