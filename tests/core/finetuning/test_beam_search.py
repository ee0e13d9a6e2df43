"""Beam search finds what trying every text finds, if it has enough beams, and what greedy decoding finds with one."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.finetuning.beam_search import beam_search, penalty
from plm_core.text.tokenizers import EOS, PIECES

V = len(PIECES) + 3
WORDS = range(len(PIECES), V)


def table(seed):
    """Logits of a token given the one before it, as a stand-in for a model."""
    return torch.randn(V, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def log_p(logits, ids):
    """The log probability of a text that ends, when only words and EOS can be written."""
    allowed = [EOS, *WORDS]
    total, before = 0.0, 0
    for token in (*ids, EOS):
        row = logits[before, allowed].log_softmax(-1)
        total += float(row[allowed.index(token)])
        before = token
    return total


def search(logits, beams, alpha, most):
    first = logits[0].expand(beams, V)
    return beam_search(first, lambda _, tokens: logits[tokens], beams, alpha, most, V)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_enough_beams_find_the_best_text(seed, alpha):
    logits, most = table(seed), 4
    texts = [ids for n in range(most) for ids in itertools.product(WORDS, repeat=n)]
    best = max(texts, key=lambda ids: log_p(logits, ids) / penalty(len(ids) + 1, alpha))
    with_many = torch.cat((logits, torch.full((V, 99), -math.inf)), dim=1)  # room for more beams than words

    def advance(rows, tokens):
        return with_many[tokens.clamp(max=V - 1)]

    candidates = beam_search(with_many[0].expand(90, -1), advance, 45, alpha, most, V + 99)
    for candidate in candidates:
        assert tuple(candidate.ids) == best
        assert candidate.nats == pytest.approx(-log_p(logits, best))


@given(seed=st.integers(0, 10**6))
def test_a_single_beam_is_greedy(seed):
    logits = table(seed)
    (candidate,) = search(logits, 1, 0.6, 9)
    ids, before = [], 0
    allowed = torch.tensor([EOS, *WORDS])
    while len(ids) < 9:
        before = int(allowed[logits[before, allowed].argmax()])
        if before == EOS:
            break
        ids.append(before)
    assert candidate.ids == ids


def counted(tables, beams):
    """The best texts for several sources, and how many rows each step of the search reads."""
    state = {"source": torch.arange(len(tables)).repeat_interleave(beams)}
    read = []

    def advance(rows, tokens):
        state["source"] = state["source"][rows]
        read.append(len(rows))
        return tables[state["source"], tokens]

    return beam_search(tables[:, 0].repeat_interleave(beams, dim=0), advance, beams, 0.6, 9, V), read


@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=5), beams=st.integers(1, 3))
def test_sources_leave_the_batch_when_their_texts_are_found(seeds, beams):
    tables = torch.stack([table(seed) for seed in seeds])
    together, read = counted(tables, beams)
    alone = [counted(tables[number : number + 1], beams) for number in range(len(seeds))]
    assert together == [candidate for (candidate,), _ in alone]
    assert read == [sum(rows) for rows in itertools.zip_longest(*(rows for _, rows in alone), fillvalue=0)]


def test_more_beams_than_tokens_are_refused():
    with pytest.raises(ValueError, match=r"^beams: 4; expected at most 3, the tokens of the vocabulary"):
        search(table(0), 4, 0.6, 9)
