"""Views: pure functions from a step to rows of tokens. What a run reads at a step depends on (seed, step) alone.

Used by training and validation. Shapes: B rows of the global batch, T context, W windows.
"""

import functools
from dataclasses import dataclass

import numpy as np

from plm_core.config import BadInput, digest
from plm_core.text.store import TokenStore


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The permutation ``[count]`` in which an epoch visits its items; another epoch, another permutation."""
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
    order.setflags(write=False)
    return order


def items_at(seed: int, step: int, batch: int, count: int) -> np.ndarray:
    """Which ``[batch]`` of ``count`` items a step (from 0) reads: epoch after epoch, each visits every item once."""
    positions = np.arange(step * batch, (step + 1) * batch)
    epochs, places = positions // count, positions % count
    return np.asarray([epoch_order(seed, int(e), count)[p] for e, p in zip(epochs, places, strict=True)])


def stream_seed(seed: int, *names: object) -> int:
    """A seed of 63 bits for a named stream of randomness, independent of every other name's."""
    return int(digest([seed, *names])[:16], 16) >> 1


@dataclass(frozen=True)
class Windows:
    """The stream of a store cut into windows of T + 1 tokens that overlap by one: inputs and their next tokens."""

    store: TokenStore
    context: int
    """T, in tokens."""

    def __post_init__(self) -> None:
        if len(self.store) <= self.context:
            raise BadInput(
                f"{self.store.folder}: holds {len(self.store)} tokens, fewer than one window of context {self.context} "
                "+ 1; expected a shorter model.context or more text"
            )

    def __len__(self) -> int:
        """W, the number of windows; at most T tokens at the end of the stream are in none."""
        return (len(self.store) - 1) // self.context

    def row(self, window: int) -> np.ndarray:
        """The tokens ``[T + 1]`` of a window."""
        start = window * self.context
        return self.store.tokens(start, start + self.context + 1)

    def rows_at(self, seed: int, step: int, batch: int) -> np.ndarray:
        """The rows ``[B, T + 1]`` of a step, in the shuffled order of its epoch."""
        return np.stack([self.row(int(w)) for w in items_at(seed, step, batch, len(self))])

    def first_rows(self, count: int) -> np.ndarray:
        """The first ``count`` windows (or all) in the order of the stream: what validation reads every time."""
        return np.stack([self.row(w) for w in range(min(count, len(self)))])
