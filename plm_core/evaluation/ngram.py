"""Likelihoods without a neural model: a modified Kneser-Ney n-gram model, and a compressor. Used by text-baseline.

Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", sections 3 and 4.1.6, with
interpolation: the highest order by its counts, each lower one by how many different tokens precede it, except n-grams
at the beginning of a document, which nothing precedes, by their counts. All as sorted arrays, without a loop over
tokens.

Shapes: N positions of a stream, which begins with EOS and in which EOS ends each document; G different n-grams of an
order; V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyppmd

from plm_core.text.tokenizers import EOS

UNKNOWN = -1
"""The number of an n-gram that was not seen, or that would reach into the previous document."""
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts if the text is too short to estimate them."""
PPMD_ORDER = 16
MEMORY = 1 << 30
"""The bytes of memory that PPMd may take; beyond them it forgets all that it has read."""
ROOM = MEMORY // 24
"""The bytes of text that fit into it. A byte of English takes 21 to 24, of Chinese or noise 12 to 14."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order; the number of an n-gram is the place of its key. The last place of each array belongs
    to ``UNKNOWN``."""

    keys: np.ndarray
    """``[G + 1]``, sorted: the number of the n-gram without its last token, times V, plus this token."""
    discounted: np.ndarray
    """``[G + 1]``: the probability: its count minus its discount, over the counts of n-grams with the same history."""
    left: np.ndarray
    """For each n-gram of the order below (for order 2, each token), as a history: the probability mass that discounting
    leaves; 1 if nothing ever followed."""

    def numbers(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of these keys; ``UNKNOWN`` if there is none."""
        places = np.searchsorted(self.keys, keys)
        return np.where(self.keys[places] == keys, places, UNKNOWN)


class NGrams:
    """The model: ``nats`` of another text's tokens, each given those before it in its document."""

    def __init__(self, stream: np.ndarray, order: int, vocab_size: int) -> None:
        """Count the n-grams up to ``order`` in the tokens ``[N]``: EOS, then documents that each end with EOS."""
        self.vocab_size = vocab_size
        numbers = [stream]
        keys, counts, places = [], [], []
        for key in self._keys(stream, numbers, order):
            valid = np.flatnonzero(key != UNKNOWN)
            unique, first, number, count = np.unique(
                key[valid], return_index=True, return_inverse=True, return_counts=True
            )
            numbers.append(np.full(len(stream), UNKNOWN))
            numbers[-1][valid] = number
            keys.append(unique)
            counts.append(count)
            places.append(valid[first])
        for n in range(order - 1):
            # Each n-gram of the next order is one more token that preceded its last n tokens.
            before = np.bincount(numbers[n + 1][places[n + 1]], minlength=len(keys[n]))
            counts[n] = np.where(before, before, counts[n])
        histories = [1, vocab_size, *(len(unique) for unique in keys[1:])]
        self._orders = [
            _order(unique, count, unique // vocab_size if n else np.zeros_like(unique), histories[n])
            for n, (unique, count) in enumerate(zip(keys, counts, strict=True))
        ]

    def nats(self, stream: np.ndarray) -> np.ndarray:
        """-log p of each token but the first of a stream ``[N]``: ``[N - 1]`` numbers."""
        probability = np.full(len(stream), 1 / self.vocab_size)
        numbers = [stream]
        for n, key in enumerate(self._keys(stream, numbers, len(self._orders))):
            order = self._orders[n]
            number = order.numbers(key)
            history = key // self.vocab_size if n else np.zeros_like(key)
            probability = order.discounted[number] + order.left[history] * probability
            numbers.append(number)
        return -np.log(probability[1:])

    def _keys(self, stream: np.ndarray, numbers: list[np.ndarray], order: int) -> Iterator[np.ndarray]:
        """The keys ``[N]`` of the n-grams that end at each position, for n = 1, 2, ... ``order``.

        The caller appends the numbers of each order's n-grams before it asks for the next. The first position is not
        predicted and has no key.
        """
        places = np.arange(len(stream))
        ends = np.where(stream == EOS, places, 0)
        begins = np.maximum.accumulate(np.concatenate(([0], ends[:-1])))
        yield np.where(places > 0, stream, UNKNOWN)
        for n in range(2, order + 1):
            # A history of one token is the token itself: including EOS, which no 1-gram of its own document precedes.
            history = np.concatenate(([UNKNOWN], (stream if n == 2 else numbers[n - 1])[:-1]))
            inside = (places - begins >= n - 1) & (history != UNKNOWN) & (places > 0)
            yield np.where(inside, history * self.vocab_size + stream, UNKNOWN)


def _order(keys: np.ndarray, counts: np.ndarray, history: np.ndarray, histories: int) -> _Order:
    """Discount the counts (Chen and Goodman 1998, equations 26 and 27)."""
    n1, n2, n3, n4 = (int((counts == n).sum()) for n in (1, 2, 3, 4))
    discounts = np.array([0.0, *FALLBACK])
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        estimated = [0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discounts = np.array(estimated) if min(estimated[1:]) > 0 else discounts
    taken = np.minimum(discounts[np.minimum(counts, 3)], counts)
    totals = np.bincount(history, weights=counts, minlength=histories)
    taken_of = np.bincount(history, weights=taken, minlength=histories)
    left = np.divide(taken_of, totals, out=np.ones(histories), where=totals > 0)
    discounted = np.append((counts - taken) / totals[history], 0.0)
    return _Order(np.append(keys, np.iinfo(np.int64).max), discounted, np.append(left, 1.0))


# A compressor is a language model of bytes that learns as it reads (Deletang et al. 2024, "Language Modeling Is
# Compression"). PPMd (Shkarin 2002) predicts a byte from up to 16 preceding ones; `xz -9` needs a third more bits.


def ppmd_bits_after(before: bytes, text: bytes) -> int:
    """The bits by which PPMd's output grows when ``text`` follows ``before``; ``ROOM`` holds both."""
    sizes = [len(pyppmd.compress(some, max_order=PPMD_ORDER, mem_size=MEMORY)) for some in (before + text, before)]
    return 8 * (sizes[0] - sizes[1])
