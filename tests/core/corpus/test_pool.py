"""A pool does every item once and whole, whoever is killed; and what one process cannot do, all hear of."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pool_work import break_down, refuse, square

from plm_core.config import UserError
from plm_core.corpus import pool as pools
from plm_core.corpus.pool import Pool


@pytest.fixture(autouse=True)
def found_by_name(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{project}{os.pathsep}{Path(__file__).parent}")


def begun(log):
    """The items as often as they were begun, and the processes that did so."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [int(line.split()[0]) for line in lines], {int(line.split()[1]) for line in lines}


def wait_for(condition):
    deadline = time.monotonic() + 1800
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def squares(results):
    return [int((folder / "square").read_text()) for folder in results]


@pytest.mark.parametrize("cores", [1, 3])
def test_every_item_is_done_once_and_comes_in_order(tmp_path, cores):
    pool = Pool(tmp_path / "pool", cores)
    results = pool.map("squares", square, [(n, 0.2, tmp_path / "log") for n in range(12)])
    pool.end()
    assert squares(results) == [n**2 for n in range(12)]
    items, processes = begun(tmp_path / "log")
    assert sorted(items) == list(range(12))
    assert len(processes) <= cores
    assert (len(processes) > 1) == (cores > 1)
    left = {path.name for path in (tmp_path / "pool/squares").iterdir()}
    claims = {name for name in left if name.endswith(".claim")}
    assert left - claims == {"job.pickle", *(f"{n:06d}" for n in range(12))}
    assert len(claims) < cores  # another process may be ended between its last result, which is whole, and its claim


def test_help_is_asked_for_when_there_is_more_to_do_than_processes(tmp_path):
    asked = []
    pool = Pool(tmp_path / "pool", 1, ask=lambda: asked.append(1))
    for name, count in (("one", 1), ("three", 3)):
        assert not asked
        pool.map(name, square, [(n, 0, tmp_path / "log") for n in range(count)])
    assert asked == [1]


def test_no_item_is_nothing_to_do(tmp_path):
    assert Pool(tmp_path, 2).map("none", square, []) == []


ASKS = """
import sys
from pathlib import Path
from pool_work import square
from plm_core.corpus.pool import Pool

pool = Pool(Path(sys.argv[1]), int(sys.argv[3]))
pool.map("squares", square, [(n, 0.3, sys.argv[2]) for n in range(8)])
pool.end()
"""


def asked(tmp_path, cores, project):
    """A process that has the squares made."""
    return subprocess.Popen(
        [sys.executable, "-c", ASKS, str(tmp_path / "pool"), str(tmp_path / "log"), str(cores)], cwd=project
    )


def test_who_asks_again_after_a_kill_has_only_done_what_was_not(tmp_path, project):
    log = tmp_path / "log"
    process = asked(tmp_path, 1, project)
    wait_for(lambda: len(begun(log)[0]) >= 4)
    process.kill()
    process.wait()
    items, _ = begun(log)
    results = Pool(tmp_path / "pool", 1).map("squares", square, [(n, 0, log) for n in range(8)])
    assert squares(results) == [n**2 for n in range(8)]
    # One was half done.
    assert begun(log)[0] == items + list(range(items[-1], 8))
    assert not list((tmp_path / "pool").glob("*/*.claim"))


def test_a_process_that_is_killed_costs_what_it_had_in_hand(tmp_path, project):
    log = tmp_path / "log"
    process = asked(tmp_path, 2, project)
    wait_for(lambda: len(begun(log)[1]) == 2)
    (other,) = begun(log)[1] - {process.pid}
    os.kill(other, signal.SIGKILL)
    assert process.wait() == 0
    items, _ = begun(log)
    assert set(items) == set(range(8))
    assert len(items) <= 9
    assert squares(tmp_path / f"pool/squares/{n:06d}" for n in range(8)) == [n**2 for n in range(8)]


def test_processes_end_with_the_one_that_asked(tmp_path, project):
    process = asked(tmp_path, 2, project)
    wait_for(lambda: len(begun(tmp_path / "log")[1]) == 2)
    (other,) = begun(tmp_path / "log")[1] - {process.pid}
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{other}").exists() or "Z" in Path(f"/proc/{other}/stat").read_text().split()[2])


def test_a_process_that_is_started_by_one_that_is_no_more_ends(tmp_path, project):
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = [sys.executable, "-m", "plm_core.corpus.pool", str(tmp_path / "pool"), "1", str(gone.pid)]
    assert subprocess.run(command, cwd=project).returncode == 0


def claimed(tmp_path, monkeypatch, age, who="elsewhere.17.1"):
    """A job of one item that a process, by default of another machine, has claimed so many seconds ago."""
    monkeypatch.setattr(pools, "LOST_S", 5.0)
    claim = tmp_path / "pool/squares/000000.claim"
    claim.parent.mkdir(parents=True)
    claim.write_text(who)
    os.utime(claim, (time.time() - age,) * 2)
    return claim


@pytest.mark.parametrize(
    ("who", "age"),
    [("elsewhere.17.1", 6), (f"{socket.gethostname()}.{os.getpid()}.1", 0)],
    ids=["another machine, long ago", "this one, a process whose number is in use again"],
)
def test_what_nobody_works_on_any_more_is_taken_over(tmp_path, monkeypatch, who, age):
    claimed(tmp_path, monkeypatch, age, who)
    results = Pool(tmp_path / "pool", 1).map("squares", square, [(3, 0, tmp_path / "log")])
    assert squares(results) == [9]


@pytest.mark.parametrize("who", ["elsewhere.17.1", "", pools._me()], ids=["another machine", "not told yet", "alive"])
def test_what_is_being_worked_on_is_left_to_who_does(tmp_path, monkeypatch, who):
    claim = claimed(tmp_path, monkeypatch, age=0, who=who)
    (claim.parent / pools.JOB).write_bytes(pickle.dumps((square, [(3, 0, tmp_path / "log")])))
    job = pools._Job(claim.parent)
    assert job.step() is pools._Did.NOTHING
    assert not (tmp_path / "log").exists()
    # It has done it.
    (claim.parent / "000000").mkdir()
    assert job.step() is pools._Did.ALL


def test_a_claim_stays_young_for_as_long_as_its_process_works(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "KEEP_S", 0.05)
    with pools._claimed(tmp_path / "x.claim") as mine:
        assert mine
        os.utime(tmp_path / "x.claim", (0, 0))
        wait_for(lambda: (tmp_path / "x.claim").stat().st_mtime > 0)
        with pools._claimed(tmp_path / "x.claim") as again:
            assert not again
    assert not (tmp_path / "x.claim").exists()


def test_other_processes_may_come_first_and_serve_one_job_after_the_other(tmp_path, project):
    log = tmp_path / "log"
    other = subprocess.Popen([sys.executable, "-m", "plm_core.corpus.pool", str(tmp_path / "pool"), "1"], cwd=project)
    time.sleep(1)
    pool = Pool(tmp_path / "pool", 1)
    try:
        for name in ("one", "two"):
            assert squares(pool.map(name, square, [(n, 0.3, log) for n in range(6)])) == [n**2 for n in range(6)]
            assert other.pid in begun(log)[1]
            log.unlink()
    finally:
        other.terminate()
        other.wait()


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [("user", UserError, "data.txt:3: not this one"), ("disk", OSError, "No space left on device: ")],
)
def test_what_another_process_cannot_do_is_raised_here(tmp_path, kind, error, message):
    pool = Pool(tmp_path / "pool", 2)
    with pytest.raises(error, match=message):
        pool.map("refused", refuse, [(os.getpid(), kind)] * 6)
    pool.end()
    # Asked again, it is tried again.
    with pytest.raises(error, match=message):
        pool.map("refused", refuse, [(0, kind)] * 6)


def test_a_mistake_in_the_code_is_raised_and_hangs_nobody(tmp_path):
    pool = Pool(tmp_path / "pool", 2)
    with pytest.raises(ValueError, match="a mistake at"):
        pool.map("broken", break_down, [1, 2, 3])
    pool.end()
