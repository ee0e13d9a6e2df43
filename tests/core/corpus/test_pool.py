"""A pool does every item once and whole, whoever is killed; and what one process cannot do, all hear of."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pool_work import break_down, refuse, square, square_together

from plm_core.config import UserError
from plm_core.corpus import part_pool as pools
from plm_core.corpus.part_pool import Pool


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
def test_pool_runs_each_item_once_in_order(tmp_path, cores):
    pool = Pool(tmp_path / "pool", cores)
    results = pool.map("squares", square_together, [(n, min(cores, 2), tmp_path / "log") for n in range(12)])
    pool.end()
    assert squares(results) == [n**2 for n in range(12)]
    items, processes = begun(tmp_path / "log")
    assert sorted(items) == list(range(12))
    assert len(processes) <= cores
    assert len(processes) >= min(cores, 2)
    left = {path.name for path in (tmp_path / "pool/squares").iterdir()}
    assert left == {pools.JOB, pools.LOCKS, *(f"{n:06d}" for n in range(12))}


def test_pool_asks_for_helpers_when_items_exceed_processes(tmp_path):
    requests = []
    pool = Pool(tmp_path / "pool", 1, ask=lambda: requests.append(1))
    for name, count in (("one", 1), ("three", 3)):
        assert not requests
        pool.map(name, square, [(n, 0, tmp_path / "log") for n in range(count)])
    assert requests == [1]


def test_pool_of_no_items_does_nothing(tmp_path):
    assert Pool(tmp_path, 2).map("none", square, []) == []


ASKS = """
import sys
from pathlib import Path
from pool_work import square
from plm_core.corpus.part_pool import Pool

pool = Pool(Path(sys.argv[1]), int(sys.argv[3]))
pool.map("squares", square, [(n, 0.3, sys.argv[2]) for n in range(1000)])
pool.end()
"""


def start_squares(tmp_path, cores, project):
    """A process that has the squares made."""
    return subprocess.Popen(
        [sys.executable, "-c", ASKS, str(tmp_path / "pool"), str(tmp_path / "log"), str(cores)], cwd=project
    )


def test_pool_workers_end_with_their_parent(tmp_path, project):
    process = start_squares(tmp_path, 2, project)
    wait_for(lambda: len(begun(tmp_path / "log")[1]) == 2)
    (other,) = begun(tmp_path / "log")[1] - {process.pid}
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{other}").exists() or "Z" in Path(f"/proc/{other}/stat").read_text().split()[2])


HOLDS = """
import fcntl, sys, time
from pathlib import Path
file = Path(sys.argv[1]).open("a")
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("locked", flush=True)
time.sleep(3600)
"""


def test_pool_repeats_items_of_a_silent_machine(tmp_path, monkeypatch):
    (tmp_path / "pool/squares").mkdir(parents=True)
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "pool/squares" / pools.LOCKS), "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as silent:
        assert silent.stdout.readline() == b"locked\n"
        monkeypatch.setattr(pools, "PATIENCE_S", 0.5)
        results = Pool(tmp_path / "pool", 1).map("squares", square, [(n, 0, tmp_path / "log") for n in range(3)])
        silent.kill()
    assert squares(results) == [0, 1, 4]
    assert begun(tmp_path / "log")[0] == [0, 2, 1]


def test_pool_helpers_may_start_first_and_serve_many_jobs(tmp_path, project):
    log = tmp_path / "log"
    other = subprocess.Popen(
        [sys.executable, "-m", "plm_core.corpus.part_pool", str(tmp_path / "pool"), "1"], cwd=project
    )
    pool = Pool(tmp_path / "pool", 1)
    try:
        for name in ("one", "two"):
            results = pool.map(name, square_together, [(n, 2, log) for n in range(6)])
            assert squares(results) == [n**2 for n in range(6)]
            assert other.pid in begun(log)[1]
            log.unlink()
    finally:
        other.terminate()
        other.wait()


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [("user", UserError, "data.txt:3: not this one"), ("disk", OSError, "No space left on device: ")],
)
def test_pool_raises_errors_of_workers(tmp_path, kind, error, message):
    pool = Pool(tmp_path / "pool", 2)
    with pytest.raises(error, match=message):
        pool.map("refused", refuse, [(os.getpid(), kind)] * 6)
    pool.end()
    # Asked again, it is tried again.
    with pytest.raises(error, match=message):
        pool.map("refused", refuse, [(0, kind)] * 6)


def test_pool_raises_programming_errors_without_hanging(tmp_path):
    pool = Pool(tmp_path / "pool", 2)
    with pytest.raises(ValueError, match="a mistake at"):
        pool.map("broken", break_down, [1, 2, 3])
    pool.end()
