"""The learning rate at its corners, what holds of every schedule, and a run with a budget of time."""

import math
from dataclasses import replace

import pytest
from folds import CONFIG, OPTIMIZER, batch_at
from hypothesis import given
from hypothesis import strategies as st

from plm_core.training.learning_rate import learning_rate_at, progress_at
from plm_core.training.loop import Stopped
from plm_core.training.optimizer import OptimizerConfig

PEAK = 0.5
SCHEDULES = ("cosine", "linear", "wsd")


def rate_of(step, steps, config):
    return learning_rate_at(step, progress_at(step, steps, config), config)


@st.composite
def configs(draw):
    schedule = draw(st.sampled_from(SCHEDULES))
    decay = {"decay_fraction": draw(st.floats(0.001, 1))} if schedule == "wsd" else {}
    fraction = draw(st.floats(0, 1))
    return OptimizerConfig(PEAK, draw(st.integers(0, 49)), schedule=schedule, final_fraction=fraction, **decay)


@pytest.mark.parametrize(
    ("schedule", "progress", "height"),
    [
        ("cosine", 0.25, (1 + math.sqrt(0.5)) / 2),
        ("cosine", 0.5, 0.5),
        ("linear", 0.25, 0.75),
        ("linear", 0.5, 0.5),
        ("wsd", 0.6, 1.0),
        ("wsd", 0.6 + 0.4 / 4, 0.5),  # a quarter of the decay: 1 - sqrt(1/4)
        ("wsd", 0.6 + 0.4 * 0.81, 0.1),
    ],
)
def test_learning_rate_schedules_match_their_papers(schedule, progress, height):
    decay = {"decay_fraction": 0.4} if schedule == "wsd" else {}
    config = OptimizerConfig(PEAK, 7, schedule=schedule, final_fraction=0.2, **decay)
    assert learning_rate_at(7, progress, config) == pytest.approx(PEAK * (0.2 + 0.8 * height), rel=1e-12)


def test_inverse_square_root_halves_after_four_warm_ups():
    """Vaswani et al. 2017, equation 3, whose peak is d^-0.5 warmup^-0.5."""
    config = OptimizerConfig(PEAK, 50, schedule="inverse_sqrt")
    rates = [rate_of(step, 999, config) for step in (0, 49, 50, 199, 799)]
    assert rates == pytest.approx([PEAK / 50, PEAK, PEAK * math.sqrt(50 / 51), PEAK / 2, PEAK / 4])


@given(configs(), st.integers(1, 60))
def test_learning_rate_warms_up_then_falls_within_bounds(config, after):
    warmup, steps = config.warmup_steps, config.warmup_steps + after
    rates = [rate_of(step, steps, config) for step in range(steps)]
    assert rates[:warmup] == pytest.approx([PEAK * (step + 1) / warmup for step in range(warmup)], rel=1e-12)
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in rates)
    assert rates[warmup] == pytest.approx(PEAK)
    if after > 1:
        assert rates[-1] == pytest.approx(PEAK * config.final_fraction, abs=1e-12)


@given(configs(), st.lists(st.floats(-1, 3), min_size=2), st.integers(0, 1000))
def test_learning_rate_falls_with_progress(config, progress, steps):
    """As with a budget of time, whose progress has no relation to the steps."""
    step = config.warmup_steps + steps
    rates = [learning_rate_at(step, p, config) for p in sorted(progress)]
    assert rates == sorted(rates, reverse=True)
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in rates)
    assert learning_rate_at(step, 0.0, config) == pytest.approx(PEAK)
    assert learning_rate_at(step, 1.0, config) == pytest.approx(PEAK * config.final_fraction, abs=1e-12)
    if config.warmup_steps:
        assert learning_rate_at(config.warmup_steps - 1, progress[0], config) == PEAK, "no jump after the warm-up"


BUDGET = replace(CONFIG, steps=999, minutes=0.5, report_every=2, valid_every=6, snapshot_every=4)


@pytest.fixture
def ticking(monkeypatch, in_turn):
    """A clock, and batches that take a second each."""
    now = [1000.0]
    monkeypatch.setattr("plm_core.training.learning_rate.perf_counter", lambda: now[0])

    def slow(step):
        now[0] += 1.0
        return batch_at(step)

    return now, slow


def test_time_budget_ends_with_learning_rate_annealed(start, ticking):
    _, slow = ticking
    _, reports = start(BUDGET, batch_at=slow)
    reports = list(reports)
    assert reports[-1].step == 30
    assert reports[-1].valid_loss is not None
    # Three seconds of warm-up; the rate of a step is that of the time before it.
    falls = [learning_rate_at(r.step - 1, (r.step - 1 - 3) / 27, OPTIMIZER) for r in reports]
    assert [r.learning_rate for r in reports] == pytest.approx(falls)
    assert reports[-1].learning_rate < 0.12 * OPTIMIZER.learning_rate


def test_time_budget_excludes_interruptions(start, ticking):
    now, slow = ticking
    with pytest.raises(Stopped):
        list(start(BUDGET, batch_at=slow, stop=13)[1])
    now[0] += 9999.0
    resumed = list(start(BUDGET, batch_at=slow)[1])
    assert resumed[-1].step == 30


def test_time_budget_yields_to_fewer_steps(start, undisturbed):
    _, reports = start(replace(CONFIG, minutes=60.0))
    assert [r.learning_rate for r in reports] == pytest.approx([r["learning_rate"] for r in undisturbed[1]])
