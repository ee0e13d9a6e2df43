"""A document's side and its number of copies are functions of its id alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.corpus.splits_and_mixtures import SPLITS, MixtureConfig, SplitConfig, copies, repeats, split_of

CONFIG = SplitConfig(valid=0.08, test=0.12, salt="plm")


@given(st.lists(st.text(), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_split_is_stable_under_new_documents_and_order(ids, random):
    before = {i: split_of(i, CONFIG) for i in ids[: len(ids) // 2 + 1]}
    after = {i: split_of(i, CONFIG) for i in random.sample(ids, len(ids))}
    assert before.items() <= after.items()
    assert set(after.values()) <= set(SPLITS)


def test_split_sides_are_pinned_across_versions():
    """A hash that changed would move held-out documents into the training text of the next night."""
    sides = "".join(split_of(f"document {i}", CONFIG)[1] for i in range(60))
    assert sides == "rrrrrrrrrrrerrrrrrrrrarrerarerrrrarraararerrrrerrrrerrerrrrr"
    other = SplitConfig(0.08, 0.12, "salt")
    assert [split_of(f"document {i}", other)[1] for i in range(60)] != list(sides)


def test_split_shares_are_met_on_many_documents():
    counts = Counter(split_of(f"d{i}", CONFIG) for i in range(20_000))
    # Four standard deviations of a binomial with n = 20 000.
    assert counts["test"] == pytest.approx(2400, abs=4 * (20_000 * 0.12 * 0.88) ** 0.5)
    assert counts["valid"] == pytest.approx(1600, abs=4 * (20_000 * 0.08 * 0.92) ** 0.5)
    assert sum(counts.values()) == 20_000


def test_a_larger_test_share_only_adds_to_the_test_side():
    larger = SplitConfig(valid=0.08, test=0.3, salt="plm")
    ids = [f"d{i}" for i in range(999)]
    assert {i for i in ids if split_of(i, CONFIG) == "test"} < {i for i in ids if split_of(i, larger) == "test"}


@pytest.mark.parametrize(
    ("valid", "test"), [(0.0, 0.1), (0.1, 0.0), (0.5, 0.5), (-0.1, 0.5), (1.0, 0.1), (0.1, float("nan"))]
)
def test_split_refuses_shares_that_leave_a_side_empty(valid, test):
    with pytest.raises(ValueError, match=r"valid|test"):
        SplitConfig(valid, test, "plm")


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 10**9), min_size=1),
    st.floats(1.0, 4.0),
    st.data(),
)
def test_mixture_meets_shares_within_the_allowed_repeats(sizes, most, data):
    weights = {name: data.draw(st.floats(0.01, 1.0)) for name in sizes}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    often = repeats(sizes, MixtureConfig(shares, most))
    taken = {name: often[name] * sizes[name] for name in sizes}
    for name, share in shares.items():
        assert taken[name] / sum(taken.values()) == pytest.approx(share)
    # As much as can be had: one of them stands there as often as it may.
    assert max(often.values()) == pytest.approx(most)


def test_mixture_copies_match_repeats_and_are_stable():
    ids = [f"a/{i}" for i in range(4000)]
    for often in (0.3, 1.0, 2.25):
        counts = [copies(name, often) for name in ids]
        assert sum(counts) / len(ids) == pytest.approx(often, abs=0.03)
        assert set(counts) <= {int(often), int(often) + 1}
    # Who is in with a smaller share is in with a larger one.
    assert all(copies(name, 0.3) <= copies(name, 0.6) for name in ids)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shares": {"a": 0.5, "b": 0.6}}, "shares: they sum to 1.1; expected 1"),
        ({"shares": {"a": 1.0, "b": 0.0}}, "mixture.shares.b: found 0.0; expected above 0"),
        ({"max_repeats": 0.5}, "mixture.max_repeats: found 0.5; expected at least 1"),
    ],
)
def test_mixture_refuses_invalid_shares(values, message):
    with pytest.raises(UserError, match=message):
        from_dict(MixtureConfig, values, "mixture")


def test_mixture_shares_must_name_the_sources():
    with pytest.raises(UserError, match=r"mixture.shares: found a, c; expected the sources with training text: a, b"):
        repeats({"a": 1, "b": 1}, MixtureConfig({"a": 0.5, "c": 0.5}))
