"""Gopher's repetition measures: Rae et al. 2021 (arXiv:2112.11446), appendix A.1.1, "Repetition Removal", table A1.

A share of characters is relative to all characters of the text, including whitespace. For an empty text all are 0.
"""

from collections.abc import Sequence

import numpy as np

from plm_core.corpus.measures.gopher import share
from plm_core.corpus.measures.text import Text


def duplicate_line_share(text: Text) -> float:
    """Share of lines that repeat an earlier line; at most 0.30."""
    return share(len(text.lines) - len(set(text.lines)), len(text.lines))


def duplicate_line_character_share(text: Text) -> float:
    """Share of characters in lines that repeat an earlier line; at most 0.20.

    FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6) divides by the characters without line ends and sets a
    bound of 0.1; the default of datatrove is 0.01.
    """
    return share(_repeated_characters(text.lines), len(text.text))


def duplicate_paragraph_share(text: Text) -> float:
    """Share of paragraphs that repeat an earlier paragraph; at most 0.30."""
    return share(len(text.paragraphs) - len(set(text.paragraphs)), len(text.paragraphs))


def duplicate_paragraph_character_share(text: Text) -> float:
    """Share of characters in paragraphs that repeat an earlier paragraph; at most 0.20."""
    return share(_repeated_characters(text.paragraphs), len(text.text))


def top_ngram_character_share(text: Text, n: int) -> float:
    """Share of characters in the most frequent n-gram of words; at most 0.20, 0.18, 0.16 for n = 2, 3, 4.

    As in datatrove: the first if several are equally frequent, with a space between words. If no n-gram occurs twice it
    is the text's first one, which has a large share of a short paragraph: use it for documents.
    """
    count = len(text.words)
    if count < n:
        return 0.0
    places, numbers = text.repeated(n)
    first, times = 0, 1
    if len(places):
        occurrences = np.bincount(numbers)[numbers]
        first = int(places[occurrences.argmax()])
        times = int(occurrences.max())
    characters = int(text.word_ends[first + n] - text.word_ends[first]) + n - 1
    return share(characters * times, len(text.text))


def duplicate_ngram_character_share(text: Text, n: int) -> float:
    """Share of characters in n-grams that repeat an earlier one; at most 0.15, 0.14, ... 0.10 for n = 5, 6, ... 10.

    As in datatrove: from left to right, without whitespace; after a repeated n-gram the next one begins after it, so
    that no character counts twice.
    """
    places, numbers = text.repeated(n)
    if not len(places):
        return 0.0
    seen = set[int]()
    free = 0
    characters = 0
    for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
        if place < free:
            continue
        if number in seen:
            characters += int(text.word_ends[place + n] - text.word_ends[place])
            free = place + n
        else:
            seen.add(number)
    return share(characters, len(text.text))


def _repeated_characters(parts: Sequence[str]) -> int:
    # A text seldom repeats a part: the difference of two sums is faster than checking each.
    return sum(map(len, parts)) - sum(map(len, set(parts)))
