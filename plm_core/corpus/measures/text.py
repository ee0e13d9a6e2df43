"""A text as words, lines, sentences and paragraphs, each computed once. The input of every measure."""

import re
from collections import Counter
from functools import cached_property

import numpy as np
import numpy.typing as npt

from plm_core.corpus.normalize import paragraphs

Ints = npt.NDArray[np.int64]

CLOSING = "\"'”’)]»"
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
_END = "[.!?…。！？]"
# Match only from the beginning of a run of marks, without backtracking, so that the time is linear in its length.
_SENTENCE_END = re.compile(
    rf"{_END}(?<!{_END}{_END})(?:{_END}*+[{re.escape(CLOSING)}]*+(?=\s|$)|(?<=[。！？])|[.!?…]*+[。！？])"
)


class Text:
    """A text in normal form, and what is counted in it.

    A word is what is between whitespace, as in Dolma (Soldaini et al. 2024, arXiv:2402.00159): "end." is one word.
    datatrove counts punctuation as separate words, so that prose with many commas has few alphabetic words. Text
    without spaces (Chinese, Japanese, Thai) has few, long words here: use ``characters``.

    Empty lines do not count as lines, because they only separate our paragraphs.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._levels: list[tuple[Ints, Ints]] = []

    @cached_property
    def words(self) -> list[str]:
        """The words, in order."""
        return self.text.split()

    @cached_property
    def vocabulary(self) -> Counter[str]:
        """The distinct words, in order of first occurrence, and how often each occurs."""
        return Counter(self.words)

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not empty, stripped."""
        return [line for found in self.text.split("\n") if (line := found.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        """The paragraphs, stripped; between them are empty lines."""
        return paragraphs(self.text)

    @cached_property
    def lower(self) -> str:
        """The text in lowercase."""
        return self.text.lower()

    @cached_property
    def sentences(self) -> int:
        """How many sentences the lines have: each ends with ``.``, ``!``, ``?`` or ``…`` before whitespace, or with its
        line.

        An abbreviation ends one too ("Mr. X" counts two), which NLTK's tokenizer mostly avoids.
        """
        unfinished = sum(not line.rstrip(CLOSING).endswith(SENTENCE_ENDS) for line in self.lines)
        return len(_SENTENCE_END.findall(self.text)) + unfinished

    @cached_property
    def word_ends(self) -> Ints:
        """The number of characters before each word and after the last, not counting whitespace: ``(words + 1,)``."""
        lengths = np.fromiter(map(len, self.words), np.int64, len(self.words))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def repeated(self, n: int) -> tuple[Ints, Ints]:
        """The n-grams of words that occur more than once: their places in order, and a number that equal ones share.

        Exact, without a hash: an n-gram can occur twice only where both (n-1)-grams in it do, so each n checks only the
        few places left, and two numbers below 2^32 make the next one.
        """
        if not self._levels:
            self._levels.append(self._repeated_words())
        while len(self._levels) < n:
            self._levels.append(_longer_by_one(*self._levels[-1]))
        return self._levels[n - 1]

    def _repeated_words(self) -> tuple[Ints, Ints]:
        number = {word: i for i, (word, count) in enumerate(self.vocabulary.items()) if count > 1}
        numbers = np.array([number.get(word, -1) for word in self.words], np.int64)
        places = np.flatnonzero(numbers >= 0)
        return places, numbers[places]


def _longer_by_one(places: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    if not len(places):
        return places, numbers
    first = np.flatnonzero(places[1:] - places[:-1] == 1)
    return _more_than_once(places[first], (numbers[first] << 32) | numbers[first + 1])


def _more_than_once(places: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """The places whose key occurs at another place too, and a number from 1 for each such key."""
    if len(keys) < 2:
        return places[:0], keys[:0]
    # np.unique takes three times as long, which matters for texts of a few words.
    order = keys.argsort()
    ordered = keys[order]
    begins = np.ones(len(keys) + 1, bool)
    begins[1:-1] = ordered[1:] != ordered[:-1]
    again = np.empty(len(keys), bool)
    numbers = np.empty(len(keys), np.int64)
    again[order] = ~(begins[:-1] & begins[1:])
    numbers[order] = begins[:-1].cumsum()
    return places[again], numbers[again]
