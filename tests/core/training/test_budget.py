"""A training with a budget of time, on a clock that each batch moves forward by a second."""

from dataclasses import replace

import pytest
from folds import CONFIG, OPTIMIZER, batch_at

from plm_core.training.loop import Stopped
from plm_core.training.schedule import learning_rate_at

BUDGET = replace(CONFIG, steps=999, minutes=0.5, report_every=2, valid_every=6, snapshot_every=4)


@pytest.fixture
def ticking(monkeypatch, in_turn):
    """A clock, and batches that take a second each."""
    now = [1000.0]
    monkeypatch.setattr("plm_core.training.schedule.perf_counter", lambda: now[0])

    def slow(step):
        now[0] += 1.0
        return batch_at(step)

    return now, slow


def test_it_ends_when_the_time_is_over_with_the_rate_annealed_and_validated(start, ticking):
    _, slow = ticking
    _, reports = start(BUDGET, batch_at=slow)
    reports = list(reports)
    assert reports[-1].step == 30
    assert reports[-1].valid_loss is not None
    # Three seconds of warm-up; the rate of a step is that of the time before it.
    falls = [learning_rate_at(r.step - 1, (r.step - 1 - 3) / 27, OPTIMIZER) for r in reports]
    assert [r.learning_rate for r in reports] == pytest.approx(falls)
    assert reports[-1].learning_rate < 0.12 * OPTIMIZER.learning_rate


def test_the_time_before_an_interruption_counts_and_the_time_between_does_not(start, ticking):
    now, slow = ticking
    with pytest.raises(Stopped):
        list(start(BUDGET, batch_at=slow, stop=13)[1])
    now[0] += 9999.0
    resumed = list(start(BUDGET, batch_at=slow)[1])
    assert resumed[-1].step == 30


def test_steps_that_end_sooner_end_it_with_their_own_schedule(start, undisturbed):
    _, reports = start(replace(CONFIG, minutes=60.0))
    assert [r.learning_rate for r in reports] == pytest.approx([r["learning_rate"] for r in undisturbed[1]])
