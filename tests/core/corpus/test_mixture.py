"""Shares of sources become repeats of documents, which are a function of their ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.corpus.mixture import MixtureConfig, copies, repeats


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 10**9), min_size=1),
    st.floats(1.0, 4.0),
    st.data(),
)
def test_the_shares_are_met_and_no_source_is_repeated_more_than_allowed(sizes, most, data):
    weights = {name: data.draw(st.floats(0.01, 1.0)) for name in sizes}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    often = repeats(sizes, MixtureConfig(shares, most))
    taken = {name: often[name] * sizes[name] for name in sizes}
    for name, share in shares.items():
        assert taken[name] / sum(taken.values()) == pytest.approx(share)
    # As much as can be had: one of them stands there as often as it may.
    assert max(often.values()) == pytest.approx(most)


def test_copies_are_the_repeats_on_average_and_never_move():
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
def test_shares_that_are_none_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        from_dict(MixtureConfig, values, "mixture")


def test_shares_must_name_the_sources():
    with pytest.raises(UserError, match=r"mixture.shares: found a, c; expected the sources with training text: a, b"):
        repeats({"a": 1, "b": 1}, MixtureConfig({"a": 0.5, "c": 0.5}))
