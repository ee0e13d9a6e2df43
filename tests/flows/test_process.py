"""One stage as a process: what it says, how it fails, how it ends; with real DVC and real signals."""

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

ONE = "stages:\n  one:\n    cmd: {cmd}\n    deps: [code.py]\n    outs: [out.txt]\n"

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
StageProcesses(Path(sys.argv[1]), grace_s=10).run("one", print)
"""


@pytest.fixture(params=["bash", "sh", None])
def shell(request, monkeypatch):
    """The user's shell, in which DVC runs a command; there is none under cron or in a container."""
    monkeypatch.delenv("SHELL", raising=False)
    if request.param:
        monkeypatch.setenv("SHELL", shutil.which(request.param) or "/bin/sh")


def one(toy, code: str, cmd: str = f"{sys.executable} code.py") -> Path:
    return toy(ONE.format(cmd=cmd), code_py=code)


def test_lines_come_as_they_are_written_without_dvcs_own(toy):
    code = "import time, os\nprint('first')\ntime.sleep(1)\nprint(os.environ['WORD'])\n"
    code += "open('out.txt', 'w').write('x')\n"
    root = one(toy, code)
    lines: list[tuple[str, float]] = []
    StageProcesses(root).run("one", lambda line: lines.append((line, time.time())), env={"WORD": "second"})
    assert [line for line, _ in lines] == ["first", "second"]
    assert lines[1][1] - lines[0][1] > 0.5
    assert "one" in (root / "dvc.lock").read_text()


@pytest.mark.parametrize(
    ("code", "status", "transient", "reason"),
    [
        (
            "import sys; print('error: params.yaml: lr: -1; expected > 0'); sys.exit(2)",
            2,
            False,
            "params.yaml: lr",
        ),
        ("import sys; sys.exit(75)", 75, True, "exited with 75"),
        ("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", -9, True, "bye"),
        ("raise ValueError('wrong')", 1, False, "ValueError: wrong"),
        ("pass", None, False, "output 'out.txt' does not exist"),
    ],
)
def test_a_failure_tells_the_commands_own_status_and_reason(toy, shell, code, status, transient, reason):
    with pytest.raises(StageError) as caught:
        StageProcesses(one(toy, code)).run("one", lambda _: None)
    assert (caught.value.status, caught.value.transient) == (status, transient)
    assert reason in caught.value.reason


def test_a_signal_seen_by_a_shell_in_between_is_still_a_signal(toy, shell):
    code = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(StageError, match="killed by SIGKILL") as caught:
        StageProcesses(one(toy, code, cmd=f"{sys.executable} code.py || exit $?")).run("one", lambda _: None)
    assert caught.value.transient


def test_a_path_held_by_another_process_is_a_transient_failure(toy):
    root = one(toy, "import time; time.sleep(3); open('out.txt', 'w')")
    command = [sys.executable, "-m", "dvc", "repro", "-q", "one"]
    other = subprocess.Popen(command, cwd=root)
    try:
        wait_for(lambda: "out.txt" in _text(root / ".dvc/tmp/rwlock"))
        with pytest.raises(StageError, match="is busy") as caught:
            StageProcesses(root).run("one", lambda _: None)
        assert caught.value.transient
        assert caught.value.status is None
    finally:
        assert other.wait(30) == 0


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_interrupting_lets_the_stage_save_and_ends_every_descendant(toy, shell):
    root = one(toy, SLEEPER)
    processes = StageProcesses(root, grace_s=20)
    failures: list[StageError] = []
    thread = threading.Thread(target=_collect, args=(processes, failures))
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
        processes.run("one", lambda _: None)


def _collect(processes: StageProcesses, failures: list[StageError]) -> None:
    try:
        processes.run("one", lambda _: None)
    except StageError as failure:
        failures.append(failure)


def test_a_stage_that_does_not_listen_is_killed_after_its_time(toy):
    code = "import os, signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    code += "open('pids', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    root = one(toy, code)
    processes = StageProcesses(root, grace_s=0.5)
    thread = threading.Thread(target=_collect, args=(processes, []))
    thread.start()
    (pid,) = pids(root / "pids", 1)
    processes.interrupt_all()
    assert not alive(pid)
    thread.join(10)


def test_a_killed_flow_leaves_no_orphan_and_its_stage_saves(toy):
    root = one(toy, SLEEPER)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    flow = subprocess.Popen([sys.executable, "-c", DRIVER, str(root)], env=env)
    family = pids(root / "pids", 3)
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    wait_for(lambda: not any(alive(pid) for pid in family), 20)
    assert (root / "saved").read_text() == "state"


def test_a_killed_supervisor_is_no_loss_of_a_finished_stage(toy):
    root = one(toy, "import os, time\nos.kill(os.getsid(0), 9)\ntime.sleep(1)\nopen('out.txt', 'w')\n")
    with pytest.raises(StageError) as caught:
        StageProcesses(root).run("one", lambda _: None)
    assert caught.value.transient
    StageProcesses(root).run("one", lambda _: None)
