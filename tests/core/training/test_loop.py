"""A run is a fold over steps: how it is cut, interrupted or resumed changes no digit of it."""

import random
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from plm_core.config import BadInput, from_dict
from plm_core.objectives import OBJECTIVES
from plm_core.objectives.loss import IGNORED, Batch
from plm_core.text.views import items_at
from plm_core.training.loop import Diverged, LoopConfig, best_report, train
from plm_core.training.optimizer import OptimizerConfig, learning_rate_at
from plm_core.training.snapshot import Snapshots

CAUSAL = OBJECTIVES["causal"]
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=3)
CONFIG = LoopConfig(seed=7, steps=26, batch=8, optimizer=OPTIMIZER, report_every=2, valid_every=6, snapshot_every=4)
ROWS = np.random.default_rng(5).integers(37, size=(99, 12))


def batch_at(step):
    return CAUSAL.batch(ROWS[items_at(13, step, 8, 90)])


@torch.no_grad()
def validate(model):
    loss = CAUSAL.loss(model, CAUSAL.batch(ROWS[90:]))
    return float(loss.nats / loss.count)


@pytest.fixture
def start(make_gpt, device, tmp_path):
    """Starts a run: a fresh model and the generator of its reports."""

    def start(config=CONFIG, folder="snapshots", validate=validate, batch_at=batch_at, **model):
        model = make_gpt(**({"dropout": 0.3} | model))
        return model, train(model, CAUSAL.loss, batch_at, validate, config, device, Snapshots(tmp_path / folder))

    return start


def plain(reports):
    """Reports without the wall clock."""
    return [asdict(replace(report, seconds=0.0)) for report in reports]


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.fixture
def undisturbed(start):
    model, reports = start(folder="undisturbed")
    return model, plain(reports)


def test_reports_come_at_their_steps(undisturbed):
    _, reports = undisturbed
    assert [r["step"] for r in reports] == list(range(2, 27, 2))
    assert [r["step"] for r in reports if r["valid_loss"] is not None] == [6, 12, 18, 24, 26]
    assert [r["learning_rate"] for r in reports] == [learning_rate_at(r["step"] - 1, 26, OPTIMIZER) for r in reports]


def test_a_last_interval_that_is_shorter_is_reported_too(start):
    _, reports = start(replace(CONFIG, steps=7, report_every=5, valid_every=5, snapshot_every=5))
    assert [(r.step, r.predictions, r.valid_loss is None) for r in reports] == [(5, 5 * 88, False), (7, 2 * 88, False)]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulation_changes_no_loss_and_no_weight(start, parts):
    whole, reports = start(folder="1", dropout=0.0)
    reports = list(reports)
    cut, in_parts = start(replace(CONFIG, accumulation=parts), folder="parts", dropout=0.0)
    for one, other in zip(reports, in_parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-12)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-11)
        assert other.predictions == one.predictions
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_accumulation_weighs_every_prediction_alike_when_parts_have_different_counts(start):
    """Rows whose targets are mostly ignored must not count as much as full ones."""

    def uneven(step):
        batch = batch_at(step)
        targets = batch.targets.clone()
        targets[:4, 1:] = IGNORED
        return Batch(batch.inputs, targets)

    _, whole = start(folder="1", dropout=0.0, batch_at=uneven)
    _, parts = start(replace(CONFIG, accumulation=4), folder="4", dropout=0.0, batch_at=uneven)
    for one, other in zip(whole, parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-12)
        assert one.predictions == other.predictions == 2 * (4 * 1 + 4 * 11)


def test_the_first_loss_is_the_mean_over_the_predictions_of_the_first_step(start, make_gpt):
    _, reports = start(replace(CONFIG, report_every=1, valid_every=6, snapshot_every=4), dropout=0.0)
    first = next(reports)
    with torch.no_grad():
        loss = CAUSAL.loss(make_gpt(), batch_at(0))
    assert first.loss == pytest.approx(float(loss.nats) / (8 * 11), rel=1e-12)
    assert first.predictions == 8 * 11
    reports.close()


def test_closing_at_any_report_and_starting_anew_gives_the_same_bits(start, undisturbed):
    finished, expected = undisturbed
    for stop in (1, 2, 3, 7, 12, 13):
        _, reports = start(folder=f"{stop}")
        for _ in range(stop):
            next(reports)
        reports.close()
        model, resumed = start(folder=f"{stop}", seed=99)
        resumed = list(resumed)
        assert plain(resumed) == expected
        assert [r.seconds == 0.0 for r in resumed] == [i < stop for i in range(13)]
        assert same(model, finished)


def test_many_interruptions_in_one_run_give_the_same_bits(start, undisturbed):
    finished, expected = undisturbed
    draw = random.Random(3)
    seen = []
    while len(seen) < 13:
        model, reports = start()
        seen = []
        for report in reports:
            seen.append(report)
            if report.seconds and len(seen) < 13 and draw.random() < 0.5:
                break
        reports.close()
    assert plain(seen) == expected
    assert same(model, finished)


def test_a_death_between_snapshots_goes_on_from_the_last_one(start, undisturbed, tmp_path):
    """A generator that is neither finished nor closed is what SIGKILL leaves: the periodic snapshot alone."""
    finished, expected = undisturbed
    _, reports = start()
    for _ in range(5):
        next(reports)  # step 10; the last snapshot is of step 8
    left = Snapshots(tmp_path / "snapshots").folder / "last"
    left.rename(tmp_path / "kept")
    reports.close()
    (tmp_path / "snapshots/last").rename(tmp_path / "closed")
    (tmp_path / "kept").rename(left)
    model, resumed = start()
    resumed = list(resumed)
    assert [r.step for r in resumed if r.seconds == 0.0] == [2, 4, 6, 8]
    assert plain(resumed) == expected
    assert same(model, finished)


@pytest.mark.parametrize("name", ["state.safetensors", "best.safetensors", "progress.json", "SHA256SUMS"])
def test_a_damaged_snapshot_is_put_aside_with_a_warning_and_the_run_begins_anew(start, undisturbed, tmp_path, name):
    finished, expected = undisturbed
    _, reports = start()
    for _ in range(5):
        next(reports)
    reports.close()
    path = tmp_path / "snapshots/last" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    model, again = start()
    with pytest.warns(UserWarning, match="snapshot not used: .*"):
        again = list(again)
    assert all(report.seconds > 0 for report in again)
    assert plain(again) == expected
    assert same(model, finished)


def test_a_snapshot_that_a_crash_left_under_its_old_name_is_used(start, undisturbed, tmp_path):
    finished, expected = undisturbed
    _, reports = start()
    for _ in range(5):
        next(reports)
    reports.close()
    (tmp_path / "snapshots/last").rename(tmp_path / "snapshots/.last.13.old")
    model, resumed = start()
    resumed = list(resumed)
    assert [r.step for r in resumed if r.seconds == 0.0] == [2, 4, 6, 8, 10]
    assert plain(resumed) == expected
    assert same(model, finished)


def test_a_finished_run_that_is_started_again_does_no_step(start, undisturbed):
    finished, expected = undisturbed
    _, reports = start()
    for _ in range(13):
        next(reports)
    reports.close()

    def no_batch(step):
        raise AssertionError("a step was done")

    model, again = start(batch_at=no_batch)
    assert plain(again) == expected
    assert same(model, finished)


def test_removed_snapshots_are_gone_and_missing_ones_are_no_error(tmp_path):
    snapshots = Snapshots(tmp_path / "x")
    snapshots.remove()
    (tmp_path / "x/last").mkdir(parents=True)
    snapshots.remove()
    assert not (tmp_path / "x").exists()


def test_how_often_one_validates_or_saves_changes_no_weight_of_the_last_step(start):
    """Validation and snapshots draw no random number and touch no state."""
    seen = []
    for folder, config in [
        ("a", CONFIG),
        ("b", replace(CONFIG, valid_every=2, snapshot_every=2)),
        ("c", replace(CONFIG, report_every=13, valid_every=26, snapshot_every=26)),
    ]:
        model, reports = start(config, folder=folder, validate=lambda m: torch.rand(()).item() * 0 + next(falling))
        falling = iter(range(0, -99, -1))  # the last is the best, so that its weights are the ones that stay
        list(reports)
        seen.append(model)
    assert same(seen[0], seen[1])
    assert same(seen[0], seen[2])


def test_the_weights_of_the_best_validation_are_the_ones_that_stay(start):
    losses = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.0, 10: 7.0}
    config = replace(CONFIG, steps=10, valid_every=2, snapshot_every=2)
    weights = {}

    def recorded(model):
        weights[len(weights) * 2 + 2] = {n: t.clone() for n, t in model.state_dict().items()}
        return losses[len(weights) * 2]

    model, reports = start(config, validate=recorded)
    reports = list(reports)
    assert [r.valid_loss for r in reports] == list(losses.values())
    assert best_report(reports).step == 4  # the first of equals
    assert all(torch.equal(tensor, weights[4][name]) for name, tensor in model.state_dict().items())


def test_validation_sees_the_model_in_evaluation_mode_and_training_goes_on_in_training_mode(start):
    modes = []
    model, reports = start(validate=lambda m: modes.append(m.training) or 1.0)
    for _ in reports:
        pass
    assert modes == [False] * 5


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(start):
    optimizer = OptimizerConfig(learning_rate=1e200, warmup_steps=0)
    _, reports = start(replace(CONFIG, optimizer=optimizer, report_every=1, valid_every=6, snapshot_every=4))
    seen = []
    with pytest.raises(Diverged, match=r"learning_rate: at step (\d+) the loss is .*1e\+200") as caught:
        seen.extend(reports)
    assert f"at step {len(seen) + 1} " in str(caught.value)
    assert isinstance(caught.value, BadInput)


def test_the_step_of_a_divergence_is_named_within_a_report(start):
    def poisoned(step):
        if step == 4:
            model.blocks[0].up.bias.data[0] = float("nan")
        return batch_at(step)

    model, reports = start(replace(CONFIG, report_every=6, valid_every=6, snapshot_every=6), batch_at=poisoned)
    with pytest.raises(Diverged, match=r"at step 5 the loss is nan"):
        list(reports)


def test_a_last_update_that_breaks_the_weights_is_a_divergence_too(start):
    """The loss of a step is measured before its update: only validation sees what the last one did."""
    optimizer = OptimizerConfig(learning_rate=1e308, warmup_steps=0)
    _, reports = start(replace(CONFIG, steps=1, optimizer=optimizer, report_every=1, valid_every=1, snapshot_every=1))
    with pytest.raises(Diverged, match=r"learning_rate"):
        list(reports)


def test_another_seed_draws_other_dropout_and_the_same_seed_the_same(start):
    runs = [list(start(replace(CONFIG, seed=seed), folder=f"{i}")[1])[-1].loss for i, seed in enumerate((7, 7, 8))]
    assert runs[0] == runs[1] != runs[2]


def test_a_gradient_longer_than_the_limit_is_scaled_down_to_it(start, make_gpt):
    """With a huge epsilon Adam's first update is proportional to the gradient, so that its length shows."""
    begun = make_gpt()
    moves = {}
    for limit in (1e-3, 1e9):
        optimizer = OptimizerConfig(1e5, 0, weight_decay=0.0, epsilon=1e6, clip_norm=limit)
        config = replace(CONFIG, steps=1, optimizer=optimizer, report_every=1, valid_every=1, snapshot_every=1)
        model, reports = start(config, folder=f"{limit}", dropout=0.0)
        (report,) = reports
        moves[limit] = torch.cat(
            [(a - b).flatten() for a, b in zip(begun.parameters(), model.parameters(), strict=True)]
        )
    assert report.gradient_norm > 1e-3
    torch.testing.assert_close(moves[1e-3], moves[1e9] * 1e-3 / report.gradient_norm, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"^t\.steps: 0; expected at least 1"),
        ({"accumulation": 3}, r"^t\.accumulation: 3 does not divide batch 8"),
        ({"valid_every": 7}, r"^t\.valid_every: 7 is not a multiple of report_every 2"),
        ({"snapshot_every": 7}, r"^t\.snapshot_every: 7 is not a multiple"),
        ({"optimizer": {"learning_rate": 0.1, "warmup_steps": 26}}, r"^t\.optimizer\.warmup_steps: 26"),
        ({"precision": "float16"}, r"^t\.precision: .* one of float32, bfloat16"),
    ],
)
def test_an_impossible_schedule_is_refused_by_name(change, message):
    with pytest.raises(BadInput, match=message):
        from_dict(LoopConfig, asdict(CONFIG) | change, "t")


def test_no_warning_is_given_by_an_ordinary_run(start):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(start()[1])
