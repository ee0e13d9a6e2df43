"""What DVC leaves if it is killed while writing, and that the next one still runs."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rounds import few
from toys import wait_for

from flows.run import pipeline
from flows.run.graph import Graph, GraphError

STAGES = """
stages:
  first: {cmd: 'echo 1 >> runs; cp code.py first.txt', deps: [code.py], outs: [first.txt]}
  second: {cmd: 'echo 2 >> runs; cp first.txt second.txt', deps: [first.txt], outs: [second.txt]}
  third: {cmd: 'echo 3 >> runs; cp second.txt third.txt', deps: [second.txt], outs: [third.txt]}
"""


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory, empty_repository):
    """A repository whose three stages have run. Not to be written to."""
    root = tmp_path_factory.mktemp("reproduced") / "toy"
    shutil.copytree(empty_repository, root)
    (root / "dvc.yaml").write_text(STAGES)
    (root / "code.py").write_text("pass\n")
    repro(root)
    return root


@pytest.fixture
def done(reproduced, tmp_path):
    """A copy of it."""
    return shutil.copytree(reproduced, tmp_path / "toy", symlinks=True)


def repro(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dvc", "repro", *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def assert_whole(root: Path) -> None:
    """Everything is up to date after one more DVC, and no stage ran a second time."""
    again = repro(root)
    assert again.returncode == 0, again.stderr
    assert (root / "runs").read_text().split() == ["1", "2", "3"]
    assert not any(Graph(root).status().values())


def mend(root: Path) -> list[str]:
    """What is repaired before the graph is read."""
    return list(Graph(root).mended)


def test_dvc_repair_leaves_an_undisturbed_repository_alone(done):
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    assert mend(done) == []
    after = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    assert all(path.is_relative_to(done / ".dvc/tmp") for path in changed)
    assert done / ".dvc/tmp/rwlock" not in changed


def test_dvc_repair_makes_a_truncated_lock_readable(done):
    path = done / "dvc.lock"
    whole = path.read_bytes()
    for size in range(0, len(whole), 29):
        path.write_bytes(whole[:size])
        assert list(Graph(done).status()) == ["first", "second", "third"]
        assert not path.exists() or whole.startswith(path.read_bytes())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_dvc_repair_restores_lock_entries_from_the_run_cache(done, share):
    path = done / "dvc.lock"
    text = path.read_text()
    path.write_text(cut := text[: int(len(text) * share)])
    (note,) = mend(done)
    assert note.startswith(f"{path}: half written")
    assert (done / ".dvc/tmp/dvc.lock.broken").read_text() == cut
    assert_whole(done)
    assert path.read_text() == text


def test_dvc_repair_leaves_manual_lock_errors_alone(done):
    path = done / "dvc.lock"
    conflict = path.read_text().replace("  second:", "<<<<<<< ours\n  second:\n=======\n>>>>>>> theirs\n  second:")
    path.write_text(conflict)
    with pytest.raises(GraphError, match=r"dvc\.lock"):
        mend(done)
    assert path.read_text() == conflict


def test_dvc_repair_keeps_locks_of_live_processes(done, monkeypatch):
    (done / "dvc.yaml").write_text(STAGES.replace("cp code.py first.txt", "touch begun; sleep 600"))
    process = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "first"], cwd=done, start_new_session=True)
    wait_for((done / "begun").exists)
    path = done / ".dvc/tmp/rwlock"
    try:
        boot = psutil.boot_time()
        for hours in (-2, 2):
            monkeypatch.setattr(psutil._pslinux, "boot_time", lambda hours=hours: boot + 3600 * hours)
            os.utime(path, (boot + 3600 * hours,) * 2)
            assert mend(done) == []
        assert str(process.pid) in path.read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert mend(done) == [f"{path}: held by processes that are gone; released"]


def run_first(root, begun, end):
    """Hold DVC's locks on a stage's files until told to end it, as the flow does."""
    os.chdir(root)
    with Graph(root).reproducing("first"):
        begun.set()
        end.wait()
        shutil.copy("code.py", "first.txt")


@contextlib.contextmanager
def spawned(done):
    """The stage ``first`` at work in a process as Prefect starts it; it ends well after the block."""
    (done / "code.py").write_text("1\n")
    spawning = multiprocessing.get_context("spawn")
    begun, end = spawning.Event(), spawning.Event()
    process = spawning.Process(target=run_first, args=(done, begun, end))
    process.start()
    try:
        assert begun.wait()
        yield
        end.set()
        process.join()
    finally:
        process.kill()
    assert process.exitcode == 0
    assert Graph(done).status()["first"] == []


def test_dvc_repair_keeps_locks_of_spawned_processes(done):
    """Like the runs of ``plm deploy``: its arguments are those of the process that spawned it."""
    with spawned(done):
        assert mend(done) == []


def test_stage_with_deleted_dvc_locks_ends_well(done):
    with spawned(done):
        (done / ".dvc/tmp/rwlock").unlink()


@pytest.mark.parametrize(
    "command", ["/bin/dvc repro", few("sleep 7"), few(" ".join(sys.argv)), few("/x/flow_engine.py")]
)
def test_dvc_repair_releases_locks_of_reused_pids(done, command):
    """As after a restart of a container, in which process ids start again."""
    path = done / ".dvc/tmp/rwlock"
    other = subprocess.Popen(["sleep", "60"])
    pid = os.getpid() if command.endswith(sys.argv[-1]) else other.pid
    path.write_text(json.dumps({"write": {str(done / "first.txt"): {"pid": pid, "cmd": command}}}))
    (done / "code.py").write_text("1\n")
    try:
        assert "is busy" in repro(done, "first").stderr
        assert mend(done) == [f"{path}: held by processes that are gone; released"]
        assert repro(done, "first").returncode == 0
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("left", [None, "cmd: cp\n"])
def test_dvc_repair_of_a_partial_run_cache_entry(done, left):
    (done / "dvc.lock").unlink()
    for entry in (done / ".dvc/cache/runs").glob("*/*"):
        shutil.rmtree(entry)
        entry.mkdir()
        if left:
            (entry / "q3Xy.tmp").write_text(left)
    (done / "runs").unlink()
    assert repro(done).returncode != 0
    assert len(mend(done)) == (6 if left else 3)
    assert_whole(done)


def test_dvc_repair_locks_a_shared_run_cache(done, monkeypatch):
    def held(repo):
        other = os.open(done / ".dvc/cache", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        return ["looked at"]

    monkeypatch.setattr("flows.run.graph.repair_run_cache", held)
    assert mend(done) == ["looked at"]


@pytest.mark.slow
def test_pipeline_runs_dvc_repair_first(done, monkeypatch, capfd):
    (done / ".dvc/tmp/rwlock").write_text("")
    (done / "dvc.lock").write_text("schema: '2.0'\nstages:\n  fir")
    result = pipeline.run(done)
    assert result.ok, result
    assert capfd.readouterr().err.count("half written") == 2
    assert_whole(done)
