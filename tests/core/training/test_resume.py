"""A run that is closed, killed or damaged goes on or begins anew, and ends with the bits of an undisturbed one."""

import random

import pytest
from folds import plain, same

from plm_core.training.snapshot import Snapshots


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
