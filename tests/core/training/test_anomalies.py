"""Losses that are not finite or far above those before: stopped at, skipped or gone back from, as the policy says."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from folds import CAUSAL, CONFIG, batch_at, plain, same

from plm_core.config import UserError
from plm_core.objectives.objective import Loss
from plm_core.training.callbacks.anomaly_monitor import Diverged
from plm_core.training.loop import Stopped
from plm_core.training.training_config import AnomalyConfig


def policy(name, **more):
    return replace(CONFIG, anomalies=AnomalyConfig(name, **more))


def poisoned(*steps, by=math.nan):
    """Batches of ``batch_at``, and a loss that is ``by`` times too large on those of some steps."""
    rows = {step: batch_at(step).inputs for step in steps}

    def loss(model, batch, carry):
        result = CAUSAL.loss(model, batch, carry)
        bad = any(torch.equal(batch.inputs, some) for some in rows.values())
        return Loss(result.nll * by, result.num_targets) if bad else result

    return loss


def hungry(rows, learning=True):
    """A loss that refuses more than so many rows as an allocator would, when it learns or when it does not."""

    def loss(model, batch, carry):
        if len(batch.inputs) > rows and torch.is_grad_enabled() == learning:
            raise torch.OutOfMemoryError("no room")
        return CAUSAL.loss(model, batch, carry)

    return loss


def without_passed(reports):
    return [report | {"passed": 0} for report in plain(reports)]


def test_skipped_step_changes_only_the_schedule(start, in_turn):
    weights = {}

    def watched(step):
        weights[step] = [p.detach().clone() for p in model.parameters()]
        return batch_at(step)

    model, reports = start(policy("skip"), batch_at=watched, loss=poisoned(7))
    with pytest.warns(UserWarning, match=r"^at step 8 the loss is nan .*its update is skipped \(1 of 10\)"):
        reports = list(reports)
    assert all(torch.equal(a, b) for a, b in zip(weights[7], weights[8], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[8], weights[9], strict=True))
    assert [r.skipped for r in reports] == [0, 0, 0, 1] + [0] * 9
    assert [r.predictions for r in reports] == [176] * 3 + [88] + [176] * 9
    assert all(math.isfinite(r.loss) for r in reports)


def test_report_of_only_skipped_steps_has_no_loss(start):
    with warnings.catch_warnings(record=True):
        expected = plain(start(policy("skip"), folder="a", loss=poisoned(4, 5))[1])
        with pytest.raises(Stopped):
            list(start(policy("skip"), loss=poisoned(4, 5), stop=9)[1])
        resumed = plain(start(policy("skip"), loss=poisoned(4, 5))[1])
    assert [math.isnan(r["loss"]) for r in resumed] == [False, False, True] + [False] * 10
    assert str(resumed) == str(expected)


def test_run_without_anomaly_is_equal_under_every_policy(start, undisturbed):
    for name in ("skip", "rollback"):
        model, reports = start(policy(name, sigmas=99.0), folder=name)
        assert plain(reports) == undisturbed[1]
        assert same(model, undisturbed[0])


def test_rollback_continues_behind_the_bad_batch(start):
    """As a run that reads 0 ... 7 and then 11, 12, ...: the batches from the snapshot on are passed over."""
    _, reports = start(policy("rollback"), loss=poisoned(10))
    with pytest.warns(UserWarning, match=r"^at step 11 the loss is nan .*: rolling back to the last periodic snapshot"):
        reports = list(reports)
    _, expected = start(folder="other", batch_at=lambda step: batch_at(step if step < 8 else step + 3))
    assert [r.step for r in reports] == [2, 4, 6, 8, 10, *range(10, 27, 2)]
    assert without_passed(reports[:4] + reports[5:]) == without_passed(expected)
    assert [r.passed for r in reports] == [0] * 5 + [3] * 9


def test_rollback_before_the_first_snapshot_begins_anew(start):
    _, reports = start(policy("rollback"), loss=poisoned(1))
    with pytest.warns(UserWarning, match=r"at step 2 "):
        reports = list(reports)
    _, expected = start(folder="other", batch_at=lambda step: batch_at(step + 2))
    assert without_passed(reports) == without_passed(expected)


@pytest.mark.parametrize("stop", [9, 10, 12, 15])
def test_rollback_is_bit_identical_after_interruptions(start, stop):
    """Also by a state that was saved behind the snapshot that is gone back to, and by one of the time after."""
    bad = poisoned(10, 20)
    with warnings.catch_warnings(record=True):
        finished, expected = start(policy("rollback"), folder="whole", loss=bad)
        expected = list(expected)
        with pytest.raises(Stopped):
            list(start(policy("rollback"), loss=bad, stop=stop)[1])
        model, resumed = start(policy("rollback"), loss=bad)
        resumed = list(resumed)
    last = {r.step: r for r in expected}
    assert plain(r for r in {r.step: r for r in resumed}.values()) == plain(last[s] for s in sorted(last))
    assert same(model, finished)


def test_a_rollback_makes_the_states_behind_it_void(start, tmp_path):
    """A run that is interrupted again and again behind a rollback gets on, and does not repeat it for ever."""
    bad = poisoned(10)
    with warnings.catch_warnings(record=True):
        with pytest.raises(Stopped):
            list(start(policy("rollback"), loss=bad, stop=10)[1])
        with pytest.raises(Stopped):
            list(start(policy("rollback"), loss=bad, stop=2)[1])  # back to 8, and a step
    assert [folder.name for folder in (tmp_path / "snapshots").glob("step-*9")] == ["step-00000009"]
    assert not (tmp_path / "snapshots/step-00000010").exists()


def test_broken_weights_are_never_saved(start, tmp_path):
    config = replace(CONFIG, report_every=13, valid_every=13, snapshot_every=13)
    _, reports = start(config, loss=poisoned(9), stop=11)
    with pytest.raises(Diverged, match="at step 10 the loss is nan"):
        list(reports)
    assert not list((tmp_path / "snapshots").glob("step-*"))


def test_rollback_at_the_end_of_time_still_validates(start, monkeypatch, in_turn):
    now = [0.0]
    monkeypatch.setattr("plm_core.training.learning_rate.perf_counter", lambda: now[0])

    def slow(step):
        now[0] += 1.0
        return batch_at(step)

    config = replace(policy("rollback"), minutes=0.2)
    with warnings.catch_warnings(record=True):
        reports = list(start(config, batch_at=slow, loss=poisoned(11))[1])
    assert reports[-1].valid_loss is not None


def test_validation_rows_at_a_time_do_not_exceed_a_step(start):
    seen = []

    def watched(model, batch, carry):
        if not torch.is_grad_enabled():
            seen.append(len(batch.inputs))
        return CAUSAL.loss(model, batch, carry)

    _, expected = start(folder="whole", dropout=0.0)
    expected = [r.valid_loss for r in expected if r.valid_loss is not None]
    _, reports = start(replace(CONFIG, accumulation=4), loss=watched, dropout=0.0)
    assert [r.valid_loss for r in reports if r.valid_loss is not None] == pytest.approx(expected, rel=1e-9)
    assert set(seen) == {2, 1}


def test_loss_spike_is_far_above_the_steps_before(start):
    config = policy("skip", sigmas=30.0, window=16)
    _, reports = start(config, loss=poisoned(12, by=500.0))
    with pytest.warns(UserWarning, match=r"^at step 13 the loss is .*, more than 30 standard .* previous 12 steps"):
        reports = list(reports)
    assert sum(r.skipped for r in reports) == 1


def test_loss_spike_that_ends_a_run_is_named(start):
    message = (
        r"more than 30 standard deviations .* previous \d+ steps; expected a learning rate below .*; the last good"
    )
    with pytest.raises(Diverged, match=message):
        list(start(policy("stop", sigmas=30.0, window=16), loss=poisoned(12, by=500.0))[1])


@pytest.mark.parametrize("name", ["skip", "rollback"])
def test_anomalies_beyond_the_limit_end_the_run(start, name):
    config = policy(name, limit=2)
    _, reports = start(config, loss=poisoned(9, 13, 17))
    with (
        pytest.warns(UserWarning, match="put|back|skipped"),
        pytest.raises(Diverged, match=r"after 2 tolerated anomalies; .*last good snapshot is .*step-000000") as e,
    ):
        list(reports)
    assert e.value.batch == 17


def test_non_finite_validation_ends_a_run_that_skips(start):
    _, reports = start(policy("skip"), validate=lambda _: math.nan)
    with pytest.raises(
        Diverged, match=r"at step 6 the validation loss is nan; .*last good snapshot is .*step-00000004"
    ):
        list(reports)


def test_non_finite_validation_is_rolled_back(start):
    values = iter([3.0, math.nan, 3.0, 2.0, 1.0, 1.0])
    _, reports = start(policy("rollback"), validate=lambda _: next(values))
    with pytest.warns(UserWarning, match="at step 12 the validation loss is nan: rolling back"):
        reports = list(reports)
    assert [r.step for r in reports if r.valid_loss is not None] == [6, 12, 18, 24, 26]


def test_out_of_memory_halves_the_rows_at_a_time_and_goes_on_with_the_same_batch(start, tmp_path):
    """Dropout 0, so that only sums are rounded otherwise."""
    whole, expected = start(folder="whole", dropout=0.0)
    expected = list(expected)
    model, reports = start(loss=hungry(2), dropout=0.0)
    with pytest.warns(UserWarning, match=r"out of memory at step 1: from now on \d rows at a time") as caught:
        reports = list(reports)
    messages = [str(warning.message) for warning in caught if "out of memory" in str(warning.message)]
    assert [line.split("from now on ")[1][:6] for line in messages] == ["4 rows", "2 rows"]
    for left, right in zip(reports, expected, strict=True):
        assert left.loss == pytest.approx(right.loss, rel=1e-12)
    for left, right in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_out_of_memory_in_validation_leaves_the_steps_as_they_were(start):
    """Other micro-batches of a step would draw other dropout."""
    undisturbed, expected = start(folder="whole")
    expected = plain(expected)
    model, reports = start(loss=hungry(2, learning=False))
    with pytest.warns(UserWarning, match="out of memory") as caught:
        reports = plain(reports)
    messages = [str(warning.message) for warning in caught if "out of memory" in str(warning.message)]
    assert [line.split(" (")[0] for line in messages] == [
        f"out of memory in validation: from now on {rows} rows at a time" for rows in (4, 2)
    ]
    assert same(model, undisturbed)
    losses, whole = ([report.pop("valid_loss") or 0.0 for report in some] for some in (reports, expected))
    assert reports == expected
    assert losses == pytest.approx(whole, rel=1e-12)


def test_resume_keeps_rows_halved_by_out_of_memory(start):
    """Dropout is drawn by part, so that other parts would be another run."""
    with warnings.catch_warnings(record=True):
        finished, expected = start(loss=hungry(4), folder="whole")
        expected = plain(expected)
        with pytest.raises(Stopped):
            list(start(loss=hungry(4), stop=5)[1])
    model, resumed = start()  # there is room now
    assert plain(resumed) == expected
    assert same(model, finished)


def test_out_of_memory_at_one_row_is_an_error(start):
    _, reports = start(loss=hungry(0))
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(
            UserError, match=r"^batch: out of memory at step 1 with one row at a time \(no room\); expected a smaller"
        ),
    ):
        list(reports)


def test_other_torch_errors_are_not_out_of_memory(start):
    def broken(model, batch, carry):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        list(start(loss=broken)[1])
