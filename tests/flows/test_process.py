"""One stage as a process: what it says, how it fails, how it ends; with real signals."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from toys import alive, pids, wait_for

from flows.process import CancelledError, StageError, StageProcesses

SLEEPER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
try:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {child.pid} {stray.pid}\\n")
    time.sleep(600)
except KeyboardInterrupt:
    open("saved", "w").write("state")
    print("state saved", flush=True)
    sys.exit(75)
"""

DRIVER = """
import sys
from pathlib import Path
from flows.process import StageProcesses
StageProcesses(Path(sys.argv[1]), grace_s=10).run("one", [sys.executable, "code.py"], print)
"""


@pytest.fixture(params=["bash", "sh"])
def command(request) -> list[str]:
    """How DVC has a command run: by the user's shell, or by `sh` where there is none, as under cron."""
    return [shutil.which(request.param) or "/bin/sh", "-c", f"{sys.executable} code.py"]


def one(folder: Path, code: str) -> Path:
    (folder / "code.py").write_text(code)
    return folder


def test_lines_come_as_they_are_written_and_processor_seconds_are_told(tmp_path, command):
    code = "import time, os\nprint('first')\ntime.sleep(1)\nprint(os.environ['WORD'])\nsum(range(10 ** 7))\n"
    root = one(tmp_path, code)
    lines: list[tuple[str, float]] = []
    used = StageProcesses(root).run(
        "one", command, lambda line: lines.append((line, time.time())), env={"WORD": "second"}
    )
    assert [line for line, _ in lines] == ["first", "second"]
    assert lines[1][1] - lines[0][1] > 0.5
    assert 0.05 < used < 60


def test_a_stage_has_the_umask_of_the_flow_whatever_a_library_sets_meanwhile(tmp_path):
    before = os.umask(0o027)
    try:
        processes = StageProcesses(one(tmp_path, "open('out.txt', 'w')"))
        os.umask(0)
        processes.run("one", [sys.executable, "code.py"], print)
        assert (tmp_path / "out.txt").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("code", "status", "transient", "reason"),
    [
        (
            "import sys; print('error: params.yaml: lr: -1; expected > 0'); sys.exit(2)",
            2,
            False,
            "params.yaml: lr",
        ),
        ("import sys; sys.exit(75)", 75, True, "no output"),
        ("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", -9, True, "bye"),
        ("raise ValueError('wrong')", 1, False, "ValueError: wrong"),
    ],
)
def test_a_failure_tells_the_commands_own_status_and_reason(tmp_path, command, code, status, transient, reason):
    with pytest.raises(StageError) as caught:
        StageProcesses(one(tmp_path, code)).run("one", command, lambda _: None)
    assert (caught.value.status, caught.value.transient) == (status, transient)
    assert reason in caught.value.reason


def test_a_signal_seen_by_a_shell_in_between_is_still_a_signal(tmp_path, command):
    root = one(tmp_path, "import os; os.kill(os.getpid(), 9)")
    command[-1] += " || exit $?"
    with pytest.raises(StageError, match="killed by SIGKILL") as caught:
        StageProcesses(root).run("one", command, lambda _: None)
    assert caught.value.transient


def test_interrupting_lets_the_stage_save_and_ends_every_descendant(tmp_path, command):
    root = one(tmp_path, SLEEPER)
    processes = StageProcesses(root, grace_s=20)
    failures: list[StageError] = []
    thread = threading.Thread(target=_collect, args=(processes, command, failures))
    thread.start()
    family = pids(root / "pids", 3)
    started = time.monotonic()
    processes.interrupt_all()
    assert time.monotonic() - started < 15
    thread.join(10)
    assert (root / "saved").read_text() == "state"
    assert not any(alive(pid) for pid in family)
    (failure,) = failures
    assert failure.status in (75, -signal.SIGINT)  # the command's own, or that of a shell waiting for it
    assert failure.transient
    assert "state saved" in failure.tail
    with pytest.raises(CancelledError):
        processes.run("one", command, lambda _: None)


def _collect(processes: StageProcesses, command: list[str], failures: list[StageError]) -> None:
    try:
        processes.run("one", command, lambda _: None)
    except StageError as failure:
        failures.append(failure)


def test_a_stage_that_does_not_listen_is_killed_after_its_time(tmp_path):
    code = "import os, signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    code += "open('pids', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    root = one(tmp_path, code)
    processes = StageProcesses(root, grace_s=0.5)
    thread = threading.Thread(target=_collect, args=(processes, [sys.executable, "code.py"], []))
    thread.start()
    (pid,) = pids(root / "pids", 1)
    processes.interrupt_all()
    assert not alive(pid)
    thread.join(10)


def test_a_killed_flow_leaves_no_orphan_and_its_stage_saves(tmp_path):
    root = one(tmp_path, SLEEPER)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    flow = subprocess.Popen([sys.executable, "-c", DRIVER, str(root)], env=env)
    family = pids(root / "pids", 3)
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    wait_for(lambda: not any(alive(pid) for pid in family), 20)
    assert (root / "saved").read_text() == "state"


def test_a_killed_supervisor_is_worth_another_try(tmp_path):
    root = one(tmp_path, "import os, time\nos.kill(os.getsid(0), 9)\ntime.sleep(1)\n")
    with pytest.raises(StageError) as caught:
        StageProcesses(root).run("one", [sys.executable, "code.py"], lambda _: None)
    assert caught.value.transient
