"""Which runs count as dead: those whose process is gone, whatever the clock says and wherever they ran."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from toys import pids, wait_for

from flows import checkout, flow, prefects
from flows.outcome import UserError

SLEEPER = """
import os, pathlib, sys, time
pathlib.Path("out.txt").write_text("x")
pathlib.Path("pids").write_text(str(os.getpid()))
if pathlib.Path("sleep").exists():
    time.sleep(600)
"""
STAGE = "stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n"
RUN = "import sys; from pathlib import Path; from flows import pipeline; pipeline.run(Path(sys.argv[1]))"
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
CAN_UNSHARE = shutil.which("unshare") and not subprocess.run([*CONTAINER, "true"], capture_output=True).returncode


@pytest.fixture
def checkouts(toy):
    """Three copies of one repository, all of them used before they were copied."""
    root = toy(STAGE, code_py=SLEEPER)
    prefects.checkout_name(root)
    copies = [root.with_name(f"copy{number}") for number in range(3)]
    for copy in copies:
        shutil.copytree(root, copy)
    return copies


def start(root: Path, *inside: str) -> "subprocess.Popen[bytes]":
    (root / "sleep").touch()
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", RUN, str(root)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    pids(root / "pids", 1)
    return process


def states(*roots: Path) -> list[str]:
    """What the server says of the last run of each checkout."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
    return [next(run.state.type.value for run in runs if run.parameters.get("root") == str(root)) for root in roots]


def free(root: Path) -> bool:
    try:
        with checkout.only_one(root):
            return True
    except UserError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not CAN_UNSHARE, reason="namespaces cannot be made here")
def test_a_run_that_lives_is_not_closed_whatever_the_clock_says_and_wherever_it_is(checkouts, on_server, monkeypatch):
    here, inside, third = checkouts
    first = start(here)
    second = start(inside, *CONTAINER)
    try:
        # An hour later, by psutil's reckoning, when the clock has been set.
        boot = psutil.boot_time()
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + 3600)
        assert flow.plm(str(third), return_state=True).is_completed()
        assert states(here, inside, third) == ["RUNNING", "RUNNING", "COMPLETED"]
    finally:
        for process in (first, second):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    (inside / "sleep").unlink()
    wait_for(lambda: free(inside))
    assert flow.plm(str(inside), return_state=True).is_completed()
    assert states(here, inside) == ["CRASHED", "COMPLETED"]
