"""The process that logs and tries models: how a try ends, and that none is left when the requesting process has
died."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import errno, os, signal, sys, time
from tasks import package

def try_version(uri):
    uri = uri.removeprefix("models:/plm/")
    if uri == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if uri == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if uri == "lost":
        raise FileNotFoundError(errno.ENOENT, "No such file", "model.safetensors")
    if uri == "wrong":
        print("some noise")
        raise ValueError("its answer is 7")
    if uri == "hang":
        with open("pid.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.new", sys.argv[1])
        time.sleep(999)

package.try_version, package.TRIAL_S = try_version, float(sys.argv[2])
package.main()
"""


@pytest.fixture
def packager(tmp_path):
    """Starts the process with a time limit for each try."""
    started = []

    def start(seconds):
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "TMPDIR": str(tmp_path)}
        environment.pop("PYTHONUNBUFFERED", None)  # what is printed may then come late
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "pid"), str(seconds)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ask(process, *versions):
    process.stdin.write(json.dumps({"model": "plm", "log": [], "try": versions}) + "\n")
    process.stdin.flush()


@pytest.mark.slow
def test_a_wrong_version_is_told_from_a_full_machine(packager):
    process = packager(600)
    ask(process, "fine", "wrong", "lost", "full", "kill")
    problems = json.loads(process.stdout.readline())["problems"]
    assert problems["fine"] is None
    assert problems["wrong"] == {"error": "ValueError: its answer is 7", "passing": False}
    assert (problems["lost"]["passing"], "model.safetensors" in problems["lost"]["error"]) == (False, True)
    assert problems["full"] == {"error": "OSError: [Errno 28] No space left on device", "passing": True}
    assert problems["kill"] == {"error": "killed by SIGKILL", "passing": True}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 600])
def test_a_try_ends_when_its_time_is_over_or_nobody_waits_for_it(packager, tmp_path, seconds):
    process = packager(seconds)
    ask(process, "hang")
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.05)
    fork = psutil.Process(int((tmp_path / "pid").read_text()))
    if seconds == 2:
        late = {"error": "it did not finish in time", "passing": True}
        assert json.loads(process.stdout.readline()) == {"error": None, "problems": {"hang": late}}
    else:
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
        process.stdin = None
    assert psutil.wait_procs([fork])[0] == [fork]
