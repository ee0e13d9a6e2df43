"""A run that is stopped, killed or damaged goes on or begins anew, and ends with the bits of an undisturbed one."""

import random
import resource
import shutil
import time
from dataclasses import replace

import pytest
import torch
from folds import CONFIG, plain, same
from torch.distributed.checkpoint.staging import DefaultStager

from plm_core.shared.files import write_checksums
from plm_core.training import snapshot
from plm_core.training.loop import Stopped
from plm_core.training.ranks import Ranks
from plm_core.training.snapshot import NotSaved, Snapshots
from plm_core.training.state import TrainState


def stopped(start, step, **how):
    """A run that is asked to end, and does after ``step`` more steps."""
    _, reports = start(stop=step, **how)
    with pytest.raises(Stopped):
        list(reports)


def killed(start, reports_seen, **how):
    """What SIGKILL leaves of a run: its periodic snapshots alone."""
    _, reports = start(**how)
    for _ in range(reports_seen):
        next(reports)
    reports.close()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 12, 25])
def test_resume_after_a_stop_at_any_step_is_bit_identical(start, undisturbed, step):
    finished, expected = undisturbed
    stopped(start, step)
    model, resumed = start(seed=99)
    resumed = list(resumed)
    assert plain(resumed) == expected
    assert [r.throughput is None for r in resumed] == [r["step"] <= step for r in expected]
    assert same(model, finished)


def test_resume_with_more_ranks_keeps_rows_at_a_time(make_gpt):
    config = replace(CONFIG, batch=24, accumulation=12)
    one_of_8 = TrainState(make_gpt(), config, Ranks(size=8))
    one_of_8.load_state_dict(TrainState(make_gpt(), config, Ranks()).state_dict())
    assert one_of_8.rows == 3
    assert one_of_8.rows // len(one_of_8.carries) <= 2


def test_resume_after_many_interruptions_is_bit_identical(start, undisturbed):
    finished, expected = undisturbed
    draw = random.Random(3)
    done = 0
    while done < 24:
        done += (more := draw.randint(1, 4))
        if done < 26:
            stopped(start, more)
    model, reports = start()
    assert plain(reports) == expected
    assert same(model, finished)


def test_stop_during_the_last_step_changes_nothing(start, undisturbed):
    model, reports = start(stop=26)
    assert plain(reports) == undisturbed[1]
    assert same(model, undisturbed[0])


def test_resume_after_a_kill_uses_the_last_snapshot(start, undisturbed):
    finished, expected = undisturbed
    killed(start, 5)  # step 10; the last snapshot is of step 8
    model, resumed = start()
    resumed = list(resumed)
    assert [r.step for r in resumed if r.throughput is None] == [2, 4, 6, 8]
    assert plain(resumed) == expected
    assert same(model, finished)


def test_newest_and_newest_periodic_snapshots_are_kept(start, tmp_path):
    def kept():
        return [int(folder.name[5:]) for folder in sorted((tmp_path / "snapshots").iterdir())]

    killed(start, 10)  # step 20, of which a snapshot is due
    assert kept() == [16, 20]
    stopped(start, 1)
    assert kept() == [20, 21]
    for _ in range(2):
        stopped(start, 1)
    assert kept() == [20, 22, 23], "a rollback goes to a periodic one, whatever interrupted since"


@pytest.mark.parametrize("name", ["shard-00001-model-00001-of-00001.safetensors", "progress.json", "SHA256SUMS"])
def test_damaged_snapshot_falls_back_to_the_one_before(start, undisturbed, tmp_path, name):
    finished, expected = undisturbed
    killed(start, 8)
    path = tmp_path / "snapshots/step-00000016" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    model, again = start()
    with pytest.warns(UserWarning, match=r"snapshot not used: .*step-00000016"):
        again = list(again)
    assert [r.step for r in again if r.throughput is None] == [2, 4, 6, 8, 10, 12]
    assert plain(again) == expected
    assert same(model, finished)


def test_snapshot_with_pickle_is_not_opened(start, undisturbed, tmp_path):
    """Torch's own metadata is a pickle, which runs whatever code stands in it."""
    killed(start, 8)
    for folder in (tmp_path / "snapshots").iterdir():
        (folder / ".metadata").write_bytes(b"cos\nmkdir\n(S'" + str(tmp_path / "ran").encode() + b"'\ntR.")
        write_checksums(folder)
    assert plain(start()[1]) == undisturbed[1]
    assert not (tmp_path / "ran").exists()


def test_run_with_only_damaged_snapshots_begins_anew(start, undisturbed, tmp_path):
    killed(start, 8)
    for folder in (tmp_path / "snapshots").iterdir():
        (folder / "progress.json").write_text("{}")
    model, again = start()
    with pytest.warns(UserWarning, match="snapshot not used") as caught:
        again = list(again)
    assert sum("snapshot not used" in str(warning.message) for warning in caught) == 2
    assert all(report.throughput for report in again)
    assert plain(again) == undisturbed[1]
    assert same(model, undisturbed[0])


def test_partial_snapshot_of_a_crash_is_removed(start, undisturbed, tmp_path):
    killed(start, 5)
    half = tmp_path / "snapshots/.step-00000012.13.tmp"
    shutil.copytree(tmp_path / "snapshots/step-00000008", half)
    model, resumed = start()
    assert plain(resumed) == undisturbed[1]
    assert same(model, undisturbed[0])
    assert not half.exists()


def test_failed_snapshot_warns_and_keeps_the_one_before(start, undisturbed, tmp_path):
    """The kernel refuses files of more than a kilobyte, as a full disk refuses all; then there is room again."""
    finished, expected = undisturbed
    model, reports = start()
    seen = [next(reports) for _ in range(5)]
    while not (tmp_path / "snapshots/step-00000008").exists():
        time.sleep(0.01)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.warns(UserWarning, match=r"snapshot not written .*; the last good one is .*step-00000008"):
            seen += [next(reports) for _ in range(5)]
        assert [int(folder.name[5:]) for folder in sorted((tmp_path / "snapshots").glob("step-*"))] == [4, 8]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert plain([*seen, *reports]) == expected
    assert same(model, finished)
    assert (tmp_path / "snapshots/step-00000024").exists()


def test_failed_final_snapshot_is_an_error(start, tmp_path):
    (tmp_path / "snapshots").write_text("no folder")
    _, reports = start(stop=3)
    with pytest.raises(NotSaved, match=r"snapshot not written .*; there is no other"):
        list(reports)


def test_resume_of_a_finished_run_repeats_the_end(start, undisturbed):
    finished, expected = undisturbed
    assert plain(start()[1]) == expected
    model, again = start()
    again = list(again)
    assert [r.step for r in again if r.throughput] == [26]
    assert plain(again) == expected
    assert same(model, finished)


def test_asynchronous_snapshot_is_of_its_own_step(start, tmp_path, monkeypatch):
    """It is written by a thread while the next steps change the weights in place."""
    monkeypatch.setattr(snapshot, "FILE_BYTES", 5000)
    _, reports = start()
    for _ in range(4):
        next(reports)
    reports.close()
    _, again = start(folder="other", stop=8)
    with pytest.raises(Stopped):
        list(again)
    first, second = (Snapshots(tmp_path / name).find() for name in ("snapshots", "other"))
    assert first.progress["step"] == second.progress["step"] == 8
    assert len(list(first.folder.glob("*.safetensors"))) > 9
    shapes = first.shapes("")
    contents = []
    for saved in (first, second):
        tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in shapes.items()}
        saved.fill(tensors)
        contents.append(tensors)
    assert len(shapes) > 50
    assert all(torch.equal(contents[0][name], contents[1][name]) for name in shapes)


def test_snapshot_works_without_pinned_memory(tmp_path, monkeypatch):
    stage = DefaultStager.stage
    tried = []

    def refused(self, tensors):
        tried.append(self)
        if len(tried) == 1:
            raise RuntimeError("CUDA error: cudaHostRegister")
        return stage(self, tensors)

    monkeypatch.setattr(DefaultStager, "stage", refused)
    snapshots = Snapshots(tmp_path)
    weight = torch.arange(9.0)
    for step in (1, 2):
        snapshots.save({"weight": weight.add_(1)}, {}, {"step": step, "rollbacks": []}, 1)
        snapshots.wait()
    assert len(tried) == 3
    assert tried[0] is not tried[1] is tried[2]
    restored = {"weight": torch.empty(9)}
    snapshots.find().fill(restored)
    assert torch.equal(restored["weight"], torch.arange(9.0) + 2)


def test_removing_snapshots_tolerates_missing_ones(tmp_path):
    snapshots = Snapshots(tmp_path / "x")
    snapshots.remove()
    (tmp_path / "x/step-00000001").mkdir(parents=True)
    snapshots.remove()
    assert not (tmp_path / "x").exists()
