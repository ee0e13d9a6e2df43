"""Texts as hashed words and shingles, many at a time. Used wherever texts are compared.

A word is a run of letters, digits and their marks, ignoring case, or one character of a script without spaces (Chinese,
Japanese, Thai, ...). Everything else, such as punctuation and whitespace, only separates. A shingle is ``n`` words in
sequence (Broder 1997). Everything is whole-number arithmetic modulo 2^64: the same on every machine.

Shapes: N texts, C characters, W words and S shingles, of all texts together.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from plm_core.corpus.normalize import UNSPACED, split_text

T = TypeVar("T")

SEPARATOR, PART, WHOLE = range(3)
"""The kinds of characters: between words, part of a word, a word by itself."""
LAST_LETTER = 0x33FFF
"""No letter or digit of Unicode has a larger code: nothing after the third plane of ideographs is text."""
BASE = 0x9E3779B97F4A7C15
"""The base of the polynomial hash of a word: odd, so that it has an inverse modulo 2^64."""
CHARACTERS_AT_ONCE = 1 << 16
"""Characters of texts that are hashed together: few enough for a CPU cache."""


@dataclass(frozen=True)
class Shingles:
    """The shingles of N texts, concatenated; within a text they may repeat."""

    hashes: np.ndarray
    """``[S]`` uint64."""
    places: np.ndarray
    """``[S]`` int64: the word that each begins with, counted over all texts."""
    ends: np.ndarray
    """``[N]`` int64: where each text's shingles end."""


@dataclass(frozen=True)
class Words:
    """The words of N texts, concatenated."""

    hashes: np.ndarray
    """``[W]`` uint64."""
    ends: np.ndarray
    """``[N]`` int64: where each text's words end."""

    def shingles(self, n: int) -> Shingles:
        """All sequences of ``n`` words; a text with fewer words is one shingle, and one without words has none."""
        counts = np.diff(self.ends, prepend=0)
        whole = np.arange(len(self.hashes)) + n <= np.repeat(self.ends, counts)
        short = np.flatnonzero((counts > 0) & (counts < n))
        whole[self.ends[short] - counts[short]] = True
        places = np.flatnonzero(whole)
        sums = self.sums(n)
        for text in short:
            start = int(self.ends[text] - counts[text])
            end = int(self.ends[text])
            sums[start] = sum((int(h) * int(_multiplier(k)) for k, h in enumerate(self.hashes[start:end])), 0) % 2**64
        return Shingles(scrambled(sums[places]), places, np.searchsorted(places, self.ends))

    def sums(self, n: int) -> np.ndarray:
        """The hash of the ``n`` words from each on before its bits are mixed, ``[W]``, of whichever text they are."""
        padded = np.concatenate((self.hashes, np.zeros(n, dtype=np.uint64)))
        sums = np.zeros(len(self.hashes), dtype=np.uint64)
        for k in range(n):
            sums += padded[k : k + len(sums)] * _multiplier(k)
        return sums

    def shingles_at(self, places: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The shingles of ``n`` words that begin at these words, in order: those that fit into their texts, and where
        they begin."""
        places = places[places + n <= self.ends[np.searchsorted(self.ends, places, side="right")]]
        sums = np.zeros(len(places), dtype=np.uint64)
        for k in range(n):
            sums += self.hashes[places + k] * _multiplier(k)
        return scrambled(sums), places


def words(texts: Sequence[str]) -> Words:
    """The hashed words of texts, processed a limited number of characters at a time, however long a text is."""
    parts = [list(split_text(text, CHARACTERS_AT_ONCE)) for text in texts]
    hashed = [_words(group) for group in batches((part for text in parts for part in text), str)]
    counts = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(batch.ends, prepend=0) for batch in hashed)])
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *(batch.hashes for batch in hashed)])
    return Words(hashes, counts.cumsum()[np.cumsum([len(text) for text in parts], dtype=np.int64)])


def _words(texts: Sequence[str]) -> Words:
    folded = [text.casefold() for text in texts]
    # A separator after every text, so that no word reaches from one into the next.
    data = "\n".join([*folded, ""]).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(data, dtype=np.uint32)
    kinds = _kinds()[codes]
    part, whole = kinds == PART, kinds == WHOLE
    # The last character is a separator: what is rolled around to the front belongs to no word.
    starts = np.flatnonzero((part & ~np.roll(part, 1)) | whole)
    stops = np.flatnonzero((part & ~np.roll(part, -1)) | whole) + 1
    powers, inverses = _powers(1 << len(codes).bit_length())
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum((codes + np.uint64(1)) * powers[: len(codes)], out=sums[1:])
    hashes = scrambled((sums[stops] - sums[starts]) * inverses[starts])
    return Words(hashes, np.searchsorted(starts, np.cumsum([len(text) + 1 for text in folded])))


def batches(items: Iterable[T], text_of: Callable[[T], Sized]) -> Iterator[list[T]]:
    """Groups of items whose texts have at most ``CHARACTERS_AT_ONCE`` characters or tokens, or of one item."""
    group: list[T] = []
    size = 0
    for item in items:
        length = len(text_of(item))
        if group and size + length > CHARACTERS_AT_ONCE:
            yield group
            group = []
            size = 0
        group.append(item)
        size += length
    if group:
        yield group


@functools.cache
def _multiplier(k: int) -> np.uint64:
    """The multiplier of the k-th word of a shingle: odd, so that no bit of the word is lost."""
    return np.uint64(pow(BASE, 2 * k + 1, 1 << 64))


def scrambled(values: np.ndarray) -> np.ndarray:
    """Each value's bits mixed, one to one: the finalizer of splitmix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _kinds() -> np.ndarray:
    """The kind of each code point, ``[0x110000]`` uint8."""
    kinds = np.zeros(0x110000, dtype=np.uint8)
    whole = re.compile(f"[{UNSPACED}]")
    for code in range(LAST_LETTER + 1):
        character = chr(code)
        if unicodedata.category(character)[0] in "LNM":
            kinds[code] = WHOLE if whole.match(character) else PART
    return kinds


@functools.cache
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first powers of ``BASE`` and of its inverse modulo 2^64, ``[count]`` each."""
    powers, inverses = np.ones((2, count), dtype=np.uint64)
    np.multiply.accumulate(np.full(count - 1, BASE, dtype=np.uint64), out=powers[1:])
    np.multiply.accumulate(np.full(count - 1, pow(BASE, -1, 1 << 64), dtype=np.uint64), out=inverses[1:])
    return powers, inverses
