"""Measures of sampled texts: how varied they are, how often they repeat themselves or copy. Used by evaluate.

All count words, so that models with different tokenizers can be compared. ``copied`` takes the words of ``overlap``;
the others lowercase and split at whitespace, or between the characters of scripts without it.
"""

import math
from collections.abc import Sequence

import numpy as np

from plm_core.corpus.normalize import words_of
from plm_core.corpus.shingles import words
from plm_core.evaluation.overlap import NGRAM, Search

COPIED_WORDS = NGRAM


def distinct(texts: Sequence[str], n: int) -> float:
    """distinct-n: the different n-grams of all texts, as a share of their n-grams (Li et al. 2016, "A
    Diversity-Promoting Objective Function for Neural Conversation Models"); NaN if there is none.
    """
    grams = [gram for text in texts for gram in _grams(_words(text), n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def repeated(texts: Sequence[str], n: int) -> float:
    """seq-rep-n: the share of a text's n-grams that occur earlier in it, the mean over texts that have any (Welleck et
    al. 2020, "Neural Text Generation with Unlikelihood Training"); NaN if none has.
    """
    every = [grams for text in texts if (grams := _grams(_words(text), n))]
    return sum(1 - len(set(grams)) / len(grams) for grams in every) / len(every) if every else math.nan


def copied(texts: Sequence[str], search: Search, n: int = COPIED_WORDS) -> tuple[float, int]:
    """What occurs verbatim in the training text: the share of the texts' n-grams, and the longest run of words.

    A run consists of n-grams that each occur somewhere in it, so it is the longest that may have been copied as a whole
    (compare Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better", with 50 tokens). NaN and 0 if
    there is no n-gram.
    """
    read = words(texts)
    shingles = read.shingles(n)
    counts = np.diff(read.ends, prepend=0)
    split = zip(np.split(shingles.hashes, shingles.ends[:-1]), counts, strict=False)
    every = [grams for grams, count in split if count >= n]
    if not every:
        return math.nan, 0
    wanted = np.unique(np.concatenate(every))
    seen = wanted[search({n: wanted})[n]]
    standing = [np.isin(grams, seen) for grams in every]
    longest = 0
    for hits in standing:
        run = 0
        for hit in hits.tolist():
            run = run + 1 if hit else 0
            longest = max(longest, run)
    return float(np.concatenate(standing).mean()), longest + n - 1 if longest else 0


def _words(text: str) -> list[str]:
    return words_of(text.lower())


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))
