"""One stage as a process: what it prints, how it fails, how it ends; with real signals."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from toys import alive, pids, wait_for

from flows.processes import forkserver, resources
from flows.processes.process import StageError, StageProcesses
from flows.processes.resources import CancelledError
from plm_core.shared import environment

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
import sys, time
from pathlib import Path
from flows.processes import forkserver
from flows.processes.process import StageProcesses
forkserver.LIBRARIES = ()
processes = StageProcesses(Path(sys.argv[1]), grace_s=10)
with processes.forked():
    while not processes._forks.ready:
        time.sleep(0.01)
    processes.run("one", sys.argv[2:], print)
"""

PROBE = """
import os, signal, sys
print(sys.argv, __name__, sys.modules[__name__].__file__, __spec__.name, sys.path[0], os.getcwd())
print({name: value for name, value in sorted(os.environ.items()) if name not in ("_", "SHLVL")})
print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])
print(sys.stdin.read(), sys.stdout.encoding, sys.stdout.write_through, os.getpgid(0) != os.getpid())
print(sorted(name for name in sys.modules if name.split(".")[0] in ("tasks", "plm_core", "beside")))
print(oct(os.umask(0)), sorted(os.listdir("/proc/self/fd"))[:3])
import multiprocessing
import beside
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=beside.hello)
    child.start()
    child.join()
    sys.exit("enough")
"""

FORKED = ["/bin/sh", "-c", "python -m work"]
Make = Callable[..., StageProcesses]


@pytest.fixture(params=["sh", "forked"])
def command(request, monkeypatch) -> list[str]:
    """How a command is run: by a shell, as DVC does, and without one."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if request.param == "forked":
        return [*FORKED]
    return ["/bin/sh", "-c", f"{sys.executable} work.py"]


@pytest.fixture
def make(monkeypatch) -> Iterator[Make]:
    """Makes what runs stages; if possible it forks them, from a process that has imported one library."""
    monkeypatch.setattr(forkserver, "LIBRARIES", ("email.mime",))
    with contextlib.ExitStack() as stack:

        def make(root: Path, **settings: float) -> StageProcesses:
            processes = StageProcesses(root, **settings)
            stack.enter_context(processes.forked())
            wait_for(lambda: processes._forks.ready)
            return processes

        yield make


def project_with(folder: Path, code: str) -> Path:
    (folder / "work.py").write_text(code)
    return folder


def test_stage_output_is_streamed_as_utf8_with_cpu_seconds(tmp_path, make, command, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code = "import time, os\nprint('\u2581', '\\udce9')\ntime.sleep(1)\nprint(os.environ['WORD'])\n"
    code += "while time.process_time() < 0.5:\n    pass\n"
    root = project_with(tmp_path, code)
    lines: list[tuple[str, float]] = []
    used = make(root).run("one", command, lambda line: lines.append((line, time.time())), env={"WORD": "second"})
    assert [line for line, _ in lines] == ["\u2581 \\udce9", "second"]
    assert lines[1][1] - lines[0][1] > 0.5
    assert 0.4 < used.cpu < 60
    assert 1e6 < used.memory < 1e9


ENDING = """
import atexit, sys, threading, time
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
atexit.register(print, "last words")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print("end of the code")
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit()", 0), ("sys.exit(75)", 75), ("sys.exit('no')", 1)])
def test_a_stage_ends_after_its_threads_and_what_was_registered(tmp_path, make, command, monkeypatch, end, status):
    (tmp_path / "library.py").write_text("import atexit\natexit.register(print, 'library')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(forkserver, "LIBRARIES", ("library",))
    lines: list[str] = []
    processes = make(project_with(tmp_path, f"import library\n{ENDING}{end}\n"))
    if status:
        with pytest.raises(StageError) as caught:
            processes.run("one", command, lines.append)
        assert caught.value.status == status
    else:
        processes.run("one", command, lines.append)
    assert [line for line in lines if line != "no"][:4] == ["end of the code", "thread", "last words", "library"]
    assert ("taken apart" in lines) == (command[-1] != "python -m work" or status == 1), "a forked one just ends"


def test_a_stage_has_the_umask_of_the_flow_whatever_a_library_sets_meanwhile(tmp_path, make, command):
    before = os.umask(0o027)
    try:
        processes = make(project_with(tmp_path, "open('out.txt', 'w')"))
        os.umask(0)
        processes.run("one", command, print)
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
def test_stage_failure_has_the_status_of_the_command(tmp_path, make, command, code, status, transient, reason):
    with pytest.raises(StageError) as caught:
        make(project_with(tmp_path, code)).run("one", command, print)
    assert (caught.value.status, caught.value.transient) == (status, transient)
    assert reason in caught.value.reason


@pytest.mark.parametrize("ending", ["", "print('interrupted: a process was killed by signal 9'); sys.exit(75)"])
def test_stage_killed_for_memory_is_not_retried(tmp_path, make, command, ending, monkeypatch):
    counter = tmp_path / "vmstat"
    counter.write_text("oom_kill 7\n")
    code = f"import os, sys\nopen({str(counter)!r}, 'w').write('pgfault 9\\noom_kill 8\\n')\n"
    code += f"{ending}\nos.kill(os.getpid(), 9)\n"
    processes = make(project_with(tmp_path, code))
    monkeypatch.setattr(environment, "CGROUPS", tmp_path / "none")
    monkeypatch.setattr(resources, "VMSTAT", counter)
    with pytest.raises(StageError) as caught:
        processes.run("finetune@gpt", command, print)
    assert not caught.value.transient
    assert re.match(r"out of memory, at \d+ MB; expected a smaller finetune.training.batch, ", caught.value.reason)


def test_interrupting_lets_the_stage_save_and_ends_every_descendant(tmp_path, make, command):
    root = project_with(tmp_path, SLEEPER)
    processes = make(root, grace_s=20)
    with ThreadPoolExecutor(1) as pool:
        stage = pool.submit(processes.run, "one", command, print)
        family = pids(root / "pids", 3)
        started = time.monotonic()
        processes.interrupt_all()
        assert time.monotonic() - started < 15
    assert (root / "saved").read_text() == "state"
    assert not any(alive(pid) for pid in family)
    with pytest.raises(StageError) as caught:
        stage.result()
    assert caught.value.status in (75, -signal.SIGINT)  # the command's own, or that of a shell waiting for it
    assert caught.value.transient
    assert "state saved" in caught.value.tail
    with pytest.raises(CancelledError):
        processes.run("one", command, print)


def test_stage_that_ignores_signals_is_killed(tmp_path, make, command):
    code = "import os, signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    code += "open('pids', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    root = project_with(tmp_path, code)
    processes = make(root, grace_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(processes.run, "one", command, print)
        (pid,) = pids(root / "pids", 1)
        processes.interrupt_all()
        assert not alive(pid)


def test_a_killed_flow_leaves_no_orphan_and_its_stage_saves(tmp_path, command):
    root = project_with(tmp_path, SLEEPER)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    flow = subprocess.Popen([sys.executable, "-c", DRIVER, str(root), *command], env=env)
    family = pids(root / "pids", 3)
    family += [
        child.pid for child in psutil.Process(flow.pid).children() if "flows.processes.forkserver" in child.cmdline()
    ]
    assert len(family) == 4
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    wait_for(lambda: not any(alive(pid) for pid in family))
    assert (root / "saved").read_text() == "state"


def test_killed_supervisor_is_retried(tmp_path, make, command):
    root = project_with(tmp_path, "import os, time\nos.kill(os.getsid(0), 9)\ntime.sleep(1)\n")
    with pytest.raises(StageError) as caught:
        make(root).run("one", command, print)
    assert caught.value.transient


def test_forked_stage_equals_a_started_one(tmp_path, make):
    (tmp_path / "beside.py").write_text(
        "def hello():\n    import os\n    print('hello from', os.getcwd(), flush=True)\n"
    )
    outputs = {}
    for command in (["/bin/sh", "-c", "python -m work a 1 --b=2"], [sys.executable, "-m", "work", "a", "1", "--b=2"]):
        lines: list[str] = []
        with pytest.raises(StageError, match="exit status 1: enough"):
            make(project_with(tmp_path, PROBE)).run("one", command, lines.append, env={"NEW": "a b"})
        outputs[command[0]] = lines
    forked, started = outputs.values()
    assert forked == started
    assert any(line.startswith("hello from") for line in forked)


def test_a_forked_stage_has_the_libraries_and_reads_the_project_anew(tmp_path, make):
    processes = make(project_with(tmp_path, "import sys\nprint('email.mime' in sys.modules, 1)"))
    lines: list[str] = []
    processes.run("one", FORKED, lines.append)
    project_with(tmp_path, "import sys\nprint('email.mime' in sys.modules, 'and changed')")
    processes.run("one", FORKED, lines.append)
    processes.run("one", FORKED, lines.append, may_fork=False)
    assert lines == ["True 1", "True and changed", "False and changed"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python -m work && echo more", ["False", "more"]),
        ("python -m work '$HOME'", ["False"]),
        ("FOO=1 python -m work", ["False"]),
        ("echo begun; printf done", ["begun", "done"]),  # whose last line is not a whole one
    ],
)
def test_command_with_shell_syntax_gets_a_shell(tmp_path, make, text, expected):
    lines: list[str] = []
    root = project_with(tmp_path, "import sys\nprint('email.mime' in sys.modules)")
    make(root).run("one", ["/bin/sh", "-c", text], lines.append)
    assert lines == expected


def test_another_python_on_the_path_is_used(tmp_path, make):
    other = tmp_path / "bin/python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another one\n")
    other.chmod(0o755)
    lines: list[str] = []
    path = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    make(project_with(tmp_path, "")).run("one", FORKED, lines.append, env={"PATH": path})
    assert lines == ["another one"]


def test_dead_fork_server_is_replaced_and_its_stages_end_well(tmp_path, make):
    processes = make(project_with(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('ended')"))
    lines: list[str] = []

    def kill(line: str) -> None:
        lines.append(line)
        processes._forks._process.kill()

    for _ in range(2):
        processes.run("one", FORKED, kill)
    assert lines == ["begun", "ended"] * 2
