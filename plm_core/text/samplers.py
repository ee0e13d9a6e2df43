"""Views: pure functions from a step to rows of tokens. What a run reads at a step depends only on (seed, step).

The objectives make their batches from them. The cost of a step depends on its rows, not on the size of the store,
except that the order of an epoch is drawn once. For several documents in a row see ``packing``. Shapes: B rows of the
global batch, n tokens per row, W windows.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plm_core.config import UserError, digest
from plm_core.text.token_store import TokenStore


class TokenRange(NamedTuple):
    """Tokens ``[start, stop)`` of a store's stream, the first of them at ``position`` in its row."""

    position: int
    start: int
    stop: int


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The permutation ``[count]`` in which an epoch visits its items; it differs between epochs."""
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
    order.setflags(write=False)
    return order


def items_at(seed: int, step: int, batch: int, count: int) -> np.ndarray:
    """Which of ``count`` items a step (from 0) reads, ``[batch]``; each epoch visits every item once."""
    order = []
    place = step * batch
    while place < (step + 1) * batch:
        epoch, first = divmod(place, count)
        stop = min(count, first + (step + 1) * batch - place)
        order.append(epoch_order(seed, epoch, count)[first:stop])
        place += stop - first
    return order[0] if len(order) == 1 else np.concatenate(order)


def spread(count: int, items: int) -> np.ndarray:
    """``count`` of ``items`` items (or all), evenly spread, in order."""
    return np.linspace(0, items - 1, min(count, items)).round().astype(np.int64)


def stream_seed(seed: int, *names: object) -> int:
    """A seed of 63 bits for a named stream of randomness, independent of every other name's."""
    return int(digest([seed, *names])[:16], 16) >> 1


def draws(seed: int, step: int, row: int) -> np.random.Generator:
    """The random numbers of one row of one step: a function of these three alone, whatever the size of the batch."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, row, step]))


@dataclass(frozen=True)
class Windows:
    """The stream of a store cut into rows of ``length`` tokens, each beginning ``advance`` after the one before.

    The first epoch cuts from the beginning of the stream, each later one at other offsets.
    """

    store: TokenStore
    length: int
    advance: int
    """Tokens from one row to the next; less than ``length`` for rows that overlap."""

    def __post_init__(self) -> None:
        _require(self.store, self.length)

    def __len__(self) -> int:
        """W; fewer than ``advance`` tokens at the end of the stream are in none."""
        return (len(self.store) - self.length) // self.advance + 1

    def starts_at(self, seed: int, step: int, batch: int) -> np.ndarray:
        """Where the rows ``[B]`` of a step begin in the stream, in the shuffled order of its epoch."""
        epochs = np.arange(step * batch, (step + 1) * batch) // len(self)
        shifts = [_first(seed, epoch, self.advance) if epoch else 0 for epoch in epochs.tolist()]
        starts = items_at(seed, step, batch, len(self)) * self.advance + shifts
        # A shifted last row may not fit: it reads the end of the stream instead.
        return np.minimum(starts, len(self.store) - self.length)

    def rows_at(self, seed: int, step: int, batch: int) -> np.ndarray:
        return self.store.rows(self.starts_at(seed, step, batch), self.length)

    def spread_rows(self, count: int) -> np.ndarray:
        """``count`` windows (or all), evenly spread over the stream: what validation reads every time."""
        return self.store.rows(spread(count, len(self)) * self.advance, self.length)


@dataclass(frozen=True)
class Streams:
    """The stream of a store as B streams side by side: row r of a step continues row r of the step before.

    What a model with memory reads (Dai et al. 2019, section 3.2). A pass through the store takes ``steps`` steps;
    each pass begins elsewhere, so that tokens are cut into rows differently.
    """

    store: TokenStore
    rows: int
    length: int
    advance: int
    """Tokens from a row to its continuation; less than ``length`` for rows that look ahead."""

    def __post_init__(self) -> None:
        _require(self.store, max(self.length, self.rows * self.advance))

    @property
    def steps(self) -> int:
        return len(self.store) // self.rows // self.advance

    def begins(self, step: int) -> bool:
        """Whether the rows of this step begin a pass, and continue nothing."""
        return step % self.steps == 0

    def starts_at(self, seed: int, step: int) -> np.ndarray:
        """Where the rows ``[B]`` of a step (from 0) begin in the stream."""
        passes, place = divmod(step, self.steps)
        length = len(self.store) // self.rows
        starts = _first(seed, passes, len(self.store)) + np.arange(self.rows) * length + place * self.advance
        return starts % len(self.store)

    def rows_at(self, seed: int, step: int) -> np.ndarray:
        """The rows ``[B, n]`` of a step (from 0); the end of the store is followed by its beginning."""
        starts = self.starts_at(seed, step)
        if starts.max() + self.length <= len(self.store):
            return self.store.rows(starts, self.length)
        ends = np.minimum(len(self.store), starts + self.length)
        # Each row is two spans; the second is empty, except in the row at the end.
        parts = np.stack((starts, np.zeros_like(starts)), axis=1).reshape(-1)
        sizes = np.stack((ends - starts, starts + self.length - ends), axis=1).reshape(-1)
        return self.store.spans(parts, sizes).reshape(self.rows, self.length)

    def spans(self, start: int, length: int, position: int = 0) -> list[TokenRange]:
        """The spans of the ``length`` tokens from ``start``, the first of which is at ``position`` of its row."""
        start %= len(self.store)
        before = min(length, len(self.store) - start)
        spans = [TokenRange(position, start, start + before), TokenRange(position + before, 0, length - before)]
        return spans[: 1 + (before < length)]


@dataclass(frozen=True)
class Pairs:
    """Spans of documents and what may follow them, for next-sentence prediction (Devlin et al. 2019, section 3.1).

    A span may be any contiguous text of a document; EOS is in none. Documents of one token are left out. A B from
    elsewhere is as long as the one that follows A, ends its document if and only if that one does, and never begins its
    document: only the content tells them apart.
    """

    store: TokenStore
    length: int
    """The most tokens of a pair."""

    def __post_init__(self) -> None:
        if (self._sizes >= 2).sum() < 2:
            raise UserError(
                f"{self.store.folder}: next_sentence draws pairs from at least two documents of two tokens; found "
                f"{int((self._sizes >= 2).sum())}: expected more documents, or next_sentence: false"
            )

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        """The tokens of each document, EOS left out."""
        return np.diff(self.store.offsets) - 1

    @functools.cached_property
    def _items(self) -> np.ndarray:
        """The number of items of each document: ceil(n / length) for n tokens."""
        return np.where(self._sizes >= 2, -(-self._sizes // self.length), 0)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self._items)

    @functools.cached_property
    def _inner(self) -> np.ndarray:
        """``_ends`` for only those items that do not end their document."""
        return np.cumsum(np.maximum(self._items - 1, 0))

    @functools.cached_property
    def _longest(self) -> tuple[np.ndarray, np.ndarray]:
        """The documents, the longest first, and their sizes, negative."""
        order = np.argsort(-self._sizes, kind="stable")
        return order, -self._sizes[order]

    def __len__(self) -> int:
        """W, the number of items: every token of a document is in at least one."""
        return int(self._ends[-1])

    def places(self, item: int, draw: np.random.Generator) -> tuple[tuple[int, int], tuple[int, int], bool]:
        """Where A and B of an item begin and end in the stream, and whether B follows A.

        A fair coin decides; otherwise B is from another document. If no other has enough tokens, B is shorter.
        """
        document = int(np.searchsorted(self._ends, item, side="right"))
        start = int(self.store.offsets[document])
        last = int(self.store.offsets[document + 1]) - 1
        place = item - (int(self._ends[document - 1]) if document else 0)
        start = max(start, min(start + place * self.length, last - self.length))
        stop = min(last, start + self.length)
        cut = start + int(draw.integers(1, stop - start))
        if draw.random() < 0.5:
            return (start, cut), (cut, stop), True
        elsewhere = None if stop == last else self._inside(document, cut - start, draw)
        return (start, cut), elsewhere or self._end(document, stop - cut, draw), False

    def _inside(self, document: int, cut: int, draw: np.random.Generator) -> tuple[int, int] | None:
        """What follows the first ``cut`` tokens of an item of another document, but not of a document's last item."""
        first = int(self._inner[document - 1]) if document else 0
        own = int(self._inner[document]) - first
        if (others := int(self._inner[-1]) - own) == 0:
            return None
        item = int(draw.integers(others))
        item += own if item >= first else 0
        other = int(np.searchsorted(self._inner, item, side="right"))
        place = item - (int(self._inner[other - 1]) if other else 0)
        start = int(self.store.offsets[other]) + place * self.length
        return start + cut, start + self.length

    def _end(self, document: int, length: int, draw: np.random.Generator) -> tuple[int, int]:
        """The last ``length`` tokens of another document, drawn from those that have more, or otherwise the longest."""
        order, negative = self._longest
        longer = int(np.searchsorted(negative, -length))
        other = document
        while other == document:
            other = int(order[draw.integers(max(2, longer))])
        stop = int(self.store.offsets[other + 1]) - 1
        return max(int(self.store.offsets[other]) + 1, stop - length), stop


@functools.lru_cache(maxsize=2)
def _first(seed: int, passes: int, tokens: int) -> int:
    """Where a pass through the store begins."""
    return int(draws(seed, passes, 0).integers(tokens))


def _require(store: TokenStore, tokens: int) -> None:
    if len(store) < tokens:
        raise UserError(
            f"{store.folder}: holds {len(store)} tokens, fewer than the {tokens} that one batch reads; expected a "
            "shorter model.context, a smaller training.batch or more text"
        )
