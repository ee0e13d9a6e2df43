"""How sampled texts read: how varied they are, how often they repeat themselves, how much they copy. Used by evaluate.

All of it is of words, lower-cased and split at white space, so that models with different tokenizers can be compared.
"""

import math
from collections.abc import Iterable, Sequence

COPIED_WORDS = 8
"""Words in a row that are found by chance only where they are a common phrase."""


def distinct(texts: Sequence[str], n: int) -> float:
    """distinct-n: the different n-grams of all texts, as a share of their n-grams (Li et al. 2016, "A
    Diversity-Promoting Objective Function for Neural Conversation Models"); NaN where there is none.
    """
    grams = [gram for text in texts for gram in _grams(_words(text), n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def repeated(texts: Sequence[str], n: int) -> float:
    """seq-rep-n: the share of a text's n-grams that stand in it before, the mean over texts that have any (Welleck et
    al. 2020, "Neural Text Generation with Unlikelihood Training"); NaN where none has.
    """
    every = [grams for text in texts if (grams := _grams(_words(text), n))]
    return sum(1 - len(set(grams)) / len(grams) for grams in every) / len(every) if every else math.nan


def copied(texts: Sequence[str], training: Iterable[str], n: int = COPIED_WORDS) -> tuple[float, int]:
    """What stands in the training texts word for word: the share of the texts' n-grams, and the longest run of words.

    A run is of n-grams that all stand somewhere in them, so it is the longest that may have been copied at once
    (compare Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better", with 50 tokens).
    No n-gram at all: NaN and 0.
    """
    every = [_grams(_words(text), n) for text in texts]
    wanted = {gram for grams in every for gram in grams}
    if not wanted:
        return math.nan, 0
    found: set[tuple[str, ...]] = set()
    for text in training:
        found.update(gram for gram in _grams(_words(text), n) if gram in wanted)
    longest = run = 0
    for grams in every:
        run = 0
        for gram in grams:
            run = run + 1 if gram in found else 0
            longest = max(longest, run + n - 1 if run else 0)
    share = sum(gram in found for grams in every for gram in grams) / sum(map(len, every))
    return share, longest


def _words(text: str) -> list[str]:
    return text.lower().split()


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))
