"""A run is a fold over steps: how it is cut, how often it reports or validates changes no digit of it."""

import warnings
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from folds import CAUSAL, CONFIG, OPTIMIZER, batch_at, same, validate

from plm_core.config import UserError, from_dict
from plm_core.objectives.objective import IGNORED, Batch
from plm_core.training.callbacks.anomaly_monitor import Diverged
from plm_core.training.callbacks.loss_metrics import Validation, best_report
from plm_core.training.device import Device
from plm_core.training.learning_rate import learning_rate_at, progress_at
from plm_core.training.loop import Stopped, train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig


def test_reports_are_made_at_report_every(undisturbed):
    _, reports = undisturbed
    assert [r["step"] for r in reports] == list(range(2, 27, 2))
    assert [r["step"] for r in reports if r["valid_loss"] is not None] == [6, 12, 18, 24, 26]
    steps = [r["step"] - 1 for r in reports]
    rates = [learning_rate_at(step, progress_at(step, 26, OPTIMIZER), OPTIMIZER) for step in steps]
    assert [r["learning_rate"] for r in reports] == rates


def test_a_last_interval_that_is_shorter_is_reported_too(start):
    _, reports = start(replace(CONFIG, steps=7, report_every=5, valid_every=5, snapshot_every=5))
    assert [(r.step, r.predictions, r.valid_loss is None) for r in reports] == [(5, 5 * 88, False), (7, 2 * 88, False)]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_gradient_accumulation_changes_no_loss_and_no_weight(start, parts):
    whole, reports = start(folder="1", dropout=0.0)
    reports = list(reports)
    cut, in_parts = start(replace(CONFIG, accumulation=parts), folder="parts", dropout=0.0)
    for left, right in zip(reports, in_parts, strict=True):
        assert right.loss == pytest.approx(left.loss, rel=1e-12)
        assert right.gradient_norm == pytest.approx(left.gradient_norm, rel=1e-11)
        assert right.predictions == left.predictions
    for left, right in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_gradient_accumulation_weighs_predictions_equally(start):
    """Rows whose targets are mostly ignored must not count as much as full ones."""

    def uneven(step):
        batch = batch_at(step)
        targets = batch.targets.clone()
        targets[:4, 1:] = IGNORED
        return Batch(batch.inputs, targets)

    _, whole = start(folder="1", dropout=0.0, batch_at=uneven)
    _, parts = start(replace(CONFIG, accumulation=4), folder="4", dropout=0.0, batch_at=uneven)
    for left, right in zip(whole, parts, strict=True):
        assert right.loss == pytest.approx(left.loss, rel=1e-12)
        assert left.predictions == right.predictions == 2 * (4 * 1 + 4 * 11)


def test_validation_and_snapshots_do_not_change_weights(start):
    """Even a validation that draws random numbers leaves the next step's dropout as it was."""

    def drawing(losses, _model):
        torch.rand(13)
        return float(next(losses))

    seen = []
    for folder, config in [
        ("a", CONFIG),
        ("b", replace(CONFIG, valid_every=2, snapshot_every=2)),
        ("c", replace(CONFIG, report_every=13, valid_every=26, snapshot_every=26)),
    ]:
        falling = iter(range(0, -99, -1))  # the last is the best, so that its weights are the ones that stay
        model, reports = start(config, folder=folder, validate=partial(drawing, falling))
        list(reports)
        seen.append(model)
    assert same(seen[0], seen[1])
    assert same(seen[0], seen[2])


def test_best_validation_weights_are_kept(start):
    losses = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.0, 10: 7.0}
    config = replace(CONFIG, steps=10, valid_every=2, snapshot_every=2)
    weights = {}

    def recorded(_):
        weights[len(weights) * 2 + 2] = {n: t.clone() for n, t in model.state_dict().items()}
        return losses[len(weights) * 2]

    model, reports = start(config, validate=recorded)
    reports = list(reports)
    assert len(weights) == 5
    assert [r.valid_loss for r in reports] == list(losses.values())
    assert best_report(reports).step == 4  # the first of equals
    assert all(torch.equal(tensor, weights[4][name]) for name, tensor in model.state_dict().items())


def test_best_score_chooses_the_weights_across_resume(start):
    seen = {2: Validation(5.0, 0.1), 4: Validation(9.0, 0.7), 6: Validation(4.0, 0.3), 8: Validation(8.0, 0.7)}
    config = replace(CONFIG, steps=8, valid_every=2, snapshot_every=2)
    weights = {}

    def recorded(_):
        step = len(weights) * 2 + 2
        weights[step] = {n: t.clone() for n, t in model.state_dict().items()}
        return seen[step]

    model, reports = start(config, validate=recorded, stop=6)
    with pytest.raises(Stopped):
        list(reports)
    model, reports = start(config, validate=recorded)
    reports = list(reports)
    assert [(r.valid_loss, r.valid_score) for r in reports] == list(seen.values())
    assert best_report(reports).step == 4
    assert all(torch.equal(tensor, weights[4][name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_validation_uses_eval_mode_and_training_precision(make_gpt, tmp_path, precision):
    read = set()

    def loss(model, rows, carry):
        read.add((model.training, torch.is_autocast_enabled("cpu")))
        assert model.training == torch.is_grad_enabled()
        return CAUSAL.loss(model, rows, carry)

    config = replace(CONFIG, steps=4, valid_every=2, precision=precision)
    device = Device(torch.device("cpu"), 1, bfloat16=True)
    list(train(make_gpt().float(), loss, batch_at, validate, config, device, Snapshots(tmp_path)))
    precisions = {autocast for training, autocast in read if not training}
    assert precisions == {precision == "bfloat16"}


def test_speed_excludes_validation_snapshots_and_first_steps(start, monkeypatch, in_turn):
    """On a clock that batches, validation and snapshots move forward, and nothing else."""
    now = [0.0]
    monkeypatch.setattr("plm_core.training.device.perf_counter", lambda: now[0])
    monkeypatch.setattr("plm_core.training.callbacks.speed_monitor.measured_flops", lambda *_: 1e9)

    def slow(step):
        now[0] += 1000.0 if step == 0 else 0.25  # the first step compiles
        return batch_at(step)

    def validate(_):
        now[0] += 70.0
        return 1.0

    def save(self, *_):
        now[0] += 300.0

    monkeypatch.setattr("plm_core.training.snapshot.Snapshots.save", save)
    config = replace(CONFIG, steps=7, report_every=2, valid_every=4, snapshot_every=2, accumulation=2)
    _, reports = start(config, batch_at=slow, validate=validate)
    reports = list(reports)
    assert [r.positions for r in reports] == [2 * 8 * 11] * 3 + [8 * 11]
    assert [r.throughput.seconds for r in reports] == [1000.25, 0.5, 0.5, 0.25]
    assert [r.first for r in reports] == [True, False, False, False]
    assert [r.throughput.tokens_per_second for r in reports[1:]] == [8 * 11 / 0.25] * 3
    assert all(r.throughput.split["data"] == r.throughput.seconds for r in reports)


def test_restored_report_has_no_meters(start):
    with pytest.raises(Stopped):
        list(start(stop=6)[1])
    resumed = list(start()[1])
    assert [r.throughput is None for r in resumed] == [True] * 3 + [False] * 10
    assert [r.first for r in resumed] == [False] * 3 + [True] + [False] * 9


def test_non_finite_loss_ends_the_run_and_names_the_step(start):
    optimizer = OptimizerConfig(learning_rate=1e200, warmup_steps=0)
    _, reports = start(replace(CONFIG, optimizer=optimizer, report_every=1, valid_every=6, snapshot_every=4))
    seen = []
    with pytest.raises(Diverged, match=r"learning_rate: at step (\d+) the loss is .*1e\+200") as caught:
        seen.extend(reports)
    assert f"at step {len(seen) + 1} " in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_divergence_names_the_step_within_a_report(start, in_turn):
    def poisoned(step):
        if step == 4:
            model.blocks[0].up.bias.data[0] = float("nan")
        return batch_at(step)

    model, reports = start(replace(CONFIG, report_every=6, valid_every=6, snapshot_every=6), batch_at=poisoned)
    with pytest.raises(Diverged, match=r"at step 5 the loss is nan"):
        list(reports)


def test_divergence_is_detected_after_the_last_update(start):
    """The loss of a step is measured before its update: only validation sees what the last one did."""
    optimizer = OptimizerConfig(learning_rate=1e308, warmup_steps=0)
    _, reports = start(replace(CONFIG, steps=1, optimizer=optimizer, report_every=1, valid_every=1, snapshot_every=1))
    with pytest.raises(Diverged, match=r"learning_rate"):
        list(reports)


def test_dropout_depends_on_the_seed(start):
    runs = [list(start(replace(CONFIG, seed=seed), folder=f"{i}")[1])[-1].loss for i, seed in enumerate((7, 7, 8))]
    assert runs[0] == runs[1] != runs[2]


def test_dropout_differs_by_step(start):
    """The same batch, weights that hardly move: only the masks can change the loss."""
    still = replace(OPTIMIZER, learning_rate=1e-30)
    config = replace(CONFIG, optimizer=still, report_every=1, valid_every=26, snapshot_every=26)
    _, reports = start(config, batch_at=lambda step: batch_at(0))
    losses = [report.loss for report in reports]
    assert len(set(losses)) == len(losses) == 26


def test_clip_norm_scales_long_gradients_down(start, make_gpt):
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
        ({"accumulation": 3}, r"^t\.accumulation: 3 does not divide batch 8"),
        ({"valid_every": 7}, r"^t\.valid_every: 7 is not a multiple of report_every 2"),
        ({"snapshot_every": 7}, r"^t\.snapshot_every: 7 is not a multiple"),
        ({"optimizer": {"learning_rate": 0.1, "warmup_steps": 26}}, r"^t\.optimizer\.warmup_steps: 26"),
    ],
)
def test_invalid_schedule_is_refused_by_name(change, message):
    with pytest.raises(UserError, match=message):
        from_dict(LoopConfig, asdict(CONFIG) | change, "t")


def test_no_warning_is_given_by_an_ordinary_run(start):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(start()[1])
