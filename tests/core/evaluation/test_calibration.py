"""The calibration error of cases made by hand, of a calibrated and an over-confident model, and its bins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.evaluation.calibration import BINS, LEAST, bins, calibration


def test_calibration_of_one_bin_by_hand():
    result = calibration(np.array([[0.5, 0.7, 0.9, 0.9]]), np.array([[True, False, True, False]]))
    assert result.accuracy == 0.5
    assert result.confidence == result.accuracy + result.error == pytest.approx(0.75)
    assert result.brier == pytest.approx((0.25 + 0.49 + 0.01 + 0.81) / 4)


def test_calibration_bins_do_not_cancel_out():
    """20 answers with 0.6, of which 15 are right, and 20 with 0.9, of which 15 are right: 0.15 above, 0.15 below."""
    sure = np.repeat([0.9, 0.6], 20)
    right = np.tile(np.arange(20) < 15, 2)
    counts, means, shares = bins(sure, right)
    assert (counts.tolist(), shares.tolist()) == ([20, 20], [0.75, 0.75])
    assert means == pytest.approx([0.6, 0.9])
    result = calibration(sure[None], right[None])
    assert result.error == pytest.approx(0.15)
    assert result.confidence == pytest.approx(result.accuracy)


def test_calibration_seeds_do_not_cancel_out():
    sure, right = np.array([[0.9] * 4, [0.6] * 4]), np.array([[True, True, True, False]] * 2)
    assert calibration(sure, right).error == pytest.approx(0.15)


@given(st.lists(st.tuples(st.sampled_from([0.34, 0.5, 0.81, 0.999, 1.0]), st.booleans()), min_size=1, max_size=300))
def test_calibration_bins_partition_answers_in_order(answers):
    sure, right = (np.array(values) for values in zip(*answers, strict=True))
    counts, means, shares = bins(sure, right)
    assert counts.sum() == len(sure)
    assert len(counts) <= min(BINS, max(1, len(sure) // LEAST))
    assert (np.diff(means) > 0).all()
    assert counts @ means == pytest.approx(sure.sum())
    assert counts @ shares == pytest.approx(right.sum())
    assert abs(sure.mean() - right.mean()) - 1e-9 <= calibration(sure[None], right[None]).error <= 1
