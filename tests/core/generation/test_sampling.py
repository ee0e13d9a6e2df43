"""The next token is drawn by the papers' distributions: each filter does what it says, and nothing else."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.generation import SamplingConfig, distribution

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
V = 13


def rows(values):
    return torch.tensor(values, dtype=torch.float64)


LOGITS = st.lists(
    st.lists(st.floats(-30, 30, allow_subnormal=False), min_size=V, max_size=V), min_size=1, max_size=3
).map(rows)
UNSEEN = torch.zeros(1, V, dtype=torch.bool)


def shares(logits, seen=UNSEEN, **changed):
    return distribution(logits, seen.expand(len(logits), -1), SamplingConfig(**(PLAIN | changed)))


def require_likeliest(p, kept):
    """What is kept are the most likely tokens, in their proportions."""
    chosen = kept > 0
    assert chosen.all() or p[chosen].min() >= p[~chosen].max()
    torch.testing.assert_close(kept[chosen], p[chosen] / p[chosen].sum())
    assert kept.sum() == pytest.approx(1.0)


@given(LOGITS, st.integers(1, V + 5))
def test_top_k_keeps_the_k_most_likely_in_their_proportions(logits, k):
    for p, kept in zip(shares(logits / 5), shares(logits / 5, top_k=k), strict=True):
        assert int((kept > 0).sum()) == min(k, V)
        require_likeliest(p, kept)


@given(LOGITS, st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_set_whose_mass_reaches_p(logits, mass):
    for p, kept in zip(shares(logits / 5), shares(logits / 5, top_p=mass), strict=True):
        assert p[kept > 0].sum() >= mass - 1e-12
        smaller = int((kept > 0).sum()) - 1
        assert p.sort(descending=True).values[:smaller].sum() < mass + 1e-12
        require_likeliest(p, kept)


def test_top_p_comes_after_top_k_and_temperature():
    logits = rows([[0.1, 0.4, 0.05, 0.2, 0.25]]).log() / 2
    config = SamplingConfig(temperature=0.5, top_k=3, top_p=0.7)
    # Of 0.85 that the three have together, the first two are 0.65: more than 0.7 of it.
    expected = rows([[0.0, 0.4, 0.0, 0.0, 0.25]]) / 0.65
    torch.testing.assert_close(distribution(logits, UNSEEN[:, :5], config), expected)


@given(LOGITS, st.floats(1, 50), st.sets(st.integers(0, V - 1)))
def test_repetition_penalty_affects_seen_tokens_only(logits, penalty, tokens):
    seen = torch.zeros(1, V, dtype=torch.bool)
    seen[:, list(tokens)] = True
    expected = logits.clone()
    expected[:, list(tokens)] = torch.where(logits > 0, logits / penalty, logits * penalty)[:, list(tokens)]
    assert torch.equal(shares(logits, seen, repetition_penalty=penalty), shares(expected))
    assert (expected <= logits).all()


@given(LOGITS)
def test_temperature_one_is_the_model_and_zero_is_greedy(logits):
    unseen = torch.zeros(logits.shape, dtype=torch.bool)
    own = distribution(logits, unseen, SamplingConfig(**PLAIN))
    torch.testing.assert_close(own, logits.softmax(-1))
    greedy = distribution(logits, unseen, SamplingConfig(temperature=0.0))
    assert (greedy.sum(-1) == 1).all()
    assert torch.equal(greedy.argmax(-1), logits.argmax(-1))


@given(LOGITS)
def test_temperature_extremes_are_greedy_and_uniform(logits):
    logits = logits.round(decimals=3)
    two = logits.topk(2).values
    assume(bool((two[:, 0] > two[:, 1]).all()))
    unseen = torch.zeros(logits.shape, dtype=torch.bool)
    greedy = distribution(logits, unseen, SamplingConfig(temperature=0.0))
    for low in (1e-6, 5e-324):
        torch.testing.assert_close(distribution(logits, unseen, SamplingConfig(temperature=low, top_k=0)), greedy)
    uniform = distribution(logits, unseen, SamplingConfig(temperature=1e300, top_k=0))
    torch.testing.assert_close(uniform, torch.full_like(logits, 1 / V))


def test_sampling_keeps_impossible_tokens_impossible():
    logits = rows([[-math.inf, 1.0, -math.inf, 2.0, -9.0]])
    config = SamplingConfig(temperature=9.0, top_k=4, top_p=0.9999, repetition_penalty=3.0)
    p = distribution(logits, torch.ones(1, 5, dtype=torch.bool), config)
    assert (p[0, [0, 2]] == 0).all()
    assert (p[0, [1, 3, 4]] > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens: 0; expected at least 1"),
        ({"temperature": -0.5}, r"temperature: -0\.5"),
        ({"top_p": 0.0}, r"top_p: 0\.0; expected above 0 and at most 1"),
        ({"repetition_penalty": 0.9}, r"repetition_penalty: 0\.9; expected at least 1"),
        ({"seed": 1 << 63}, r"seed: 9223372036854775808"),
    ],
)
def test_invalid_sampling_setting_is_refused(change, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        SamplingConfig(**change)
    with pytest.raises(UserError, match=rf"^sampling\.{message}"):
        from_dict(SamplingConfig, change, "sampling")
