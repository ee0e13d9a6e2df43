"""A document's side is a function of its id alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.split import SPLITS, SplitConfig, split_of

CONFIG = SplitConfig(valid=0.08, test=0.12, salt="plm")


@given(st.lists(st.text(), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_new_documents_and_another_order_move_no_document(ids, random):
    before = {i: split_of(i, CONFIG) for i in ids[: len(ids) // 2 + 1]}
    after = {i: split_of(i, CONFIG) for i in random.sample(ids, len(ids))}
    assert before.items() <= after.items()
    assert set(after.values()) <= set(SPLITS)


def test_the_sides_are_those_of_every_process_and_every_version():
    """A hash that changed would move held-out documents into the training text of the next night."""
    sides = "".join(split_of(f"document {i}", CONFIG)[1] for i in range(60))
    assert sides == "rrrrrrrrrrrerrrrrrrrrarrerarerrrrarraararerrrrerrrrerrerrrrr"
    other = SplitConfig(0.08, 0.12, "salt")
    assert [split_of(f"document {i}", other)[1] for i in range(60)] != list(sides)


def test_shares_are_met_on_many_documents():
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
def test_shares_that_leave_a_side_empty_are_refused(valid, test):
    with pytest.raises(ValueError, match=r"valid|test"):
        SplitConfig(valid, test, "plm")
