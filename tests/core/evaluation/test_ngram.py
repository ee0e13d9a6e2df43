"""The n-gram model by hand, and the compressor."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.evaluation.ngram import FALLBACK, NGrams, ppmd_bits_after
from plm_core.text.tokenizers import EOS

VOCABULARY = 11
WORDS = st.integers(7, VOCABULARY - 1)
DOCUMENTS = st.lists(st.lists(WORDS, max_size=9), min_size=1, max_size=9)


def stream(documents):
    return np.array([EOS, *(token for document in documents for token in (*document, EOS))])


def prose(seed, count):
    """Documents in which some tokens follow others often."""
    draw = np.random.default_rng(seed)
    documents = []
    for length in draw.integers(0, 60, count):
        ids = [int(draw.integers(7, VOCABULARY))]
        for _ in range(length):
            ids.append(7 + (3 * ids[-1] + int(draw.integers(3))) % (VOCABULARY - 7))
        documents.append(ids)
    return documents


def peer(documents, order):
    """p(token | history), by Chen and Goodman 1998, equations 23 to 27, with n-grams as tuples."""
    counts = [Counter() for _ in range(order + 1)]
    for document in documents:
        text = (EOS, *document, EOS)
        for end in range(1, len(text)):
            for n in range(1, min(order, end + 1) + 1):
                counts[n][text[end - n + 1 : end + 1]] += 1
    for n in range(1, order):
        before = Counter(gram[1:] for gram in counts[n + 1])
        counts[n] = Counter({gram: before[gram] or count for gram, count in counts[n].items()})
    tables = []
    for n in range(1, order + 1):
        n1, n2, n3, n4 = (sum(count == i for count in counts[n].values()) for i in (1, 2, 3, 4))
        discounts = FALLBACK
        if n1 and n2 and n3:
            y = n1 / (n1 + 2 * n2)
            estimated = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            discounts = estimated if min(estimated) > 0 else FALLBACK
        followed = defaultdict(dict)
        for gram, count in counts[n].items():
            followed[gram[:-1]][gram[-1]] = count
        tables.append((discounts, followed))

    def probability(history, token):
        if history is None:
            return 1 / VOCABULARY
        lower = probability(history[1:] if history else None, token)
        discounts, followed = tables[len(history)]
        if history not in followed:
            return lower
        followers = followed[history]
        taken = {word: min(discounts[min(count, 3) - 1], count) for word, count in followers.items()}
        total = sum(followers.values())
        return (followers.get(token, 0) - taken.get(token, 0)) / total + sum(taken.values()) / total * lower

    return probability


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [2, 37])
def test_ngram_probabilities_match_the_equations(order, count):
    learned, unseen = prose(3, count), prose(5, 13)
    expected = peer(learned, order)
    nats = []
    for document in unseen:
        text = (EOS, *document, EOS)
        for end in range(1, len(text)):
            nats.append(-math.log(expected(text[max(0, end - order + 1) : end], text[end])))
    actual = NGrams(stream(learned), order, VOCABULARY).nats(stream(unseen))
    np.testing.assert_allclose(actual, nats, rtol=1e-12)


@given(learned=DOCUMENTS, history=st.lists(WORDS, max_size=7), order=st.integers(1, 5))
def test_ngram_probabilities_sum_to_one(learned, history, order):
    model = NGrams(stream(learned), order, VOCABULARY)
    following = [math.exp(-model.nats(np.array([EOS, *history, token]))[-1]) for token in range(VOCABULARY)]
    assert sum(following) == pytest.approx(1, rel=1e-12)
    assert min(following) > 0


def test_compressor_spends_little_on_repeats_and_all_on_noise():
    text, noise = (random.Random(seed).randbytes(20_000) for seed in (1, 2))
    assert ppmd_bits_after(text, text) < 0.02 * 8 * len(text)
    assert 0.99 < ppmd_bits_after(text, noise) / (8 * len(noise)) < 1.1
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(300)]
    before, text = (" ".join(draw.choices(words, k=3000)).encode() for _ in range(2))
    assert ppmd_bits_after(before, text) < 0.95 * ppmd_bits_after(b"", text)
