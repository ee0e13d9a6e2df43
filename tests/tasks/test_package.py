"""The process that logs and tries models: how a try ends, and that none is left when the requesting process has
died."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import errno, os, signal, sys, time
from tasks import package

def try_version(uri):
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
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(process, *uris):
    process.stdin.write(json.dumps({"try": uris}) + "\n")
    process.stdin.flush()


def hanging(process, folder):
    """The fork of a process that was asked to try a version that never answers."""
    ask(process, "hang")
    while not (folder / "pid").exists():
        assert process.poll() is None
        time.sleep(0.05)
    return psutil.Process(int((folder / "pid").read_text()))


def ends(fork):
    return psutil.wait_procs([fork])[0] == [fork]


@pytest.mark.slow
def test_a_wrong_version_is_told_from_a_full_machine_and_no_try_outlives_whoever_asked(packager, tmp_path):
    process = packager(600)
    ask(process, "fine", "wrong", "lost", "full", "kill")
    fine, wrong, lost, full, killed = json.loads(process.stdout.readline())
    assert fine is None
    assert wrong == {"error": "ValueError: its answer is 7", "passing": False}
    assert (lost["passing"], "model.safetensors" in lost["error"]) == (False, True)
    assert full == {"error": "OSError: [Errno 28] No space left on device", "passing": True}
    assert killed == {"error": "killed by SIGKILL", "passing": True}
    fork = hanging(process, tmp_path)
    process.kill()
    assert ends(fork)


@pytest.mark.slow
def test_a_try_ends_when_its_time_is_over_or_nobody_waits_for_it(packager, tmp_path):
    late = packager(2)
    fork = hanging(late, tmp_path)
    assert json.loads(late.stdout.readline()) == [{"error": "it did not finish in time", "passing": True}]
    assert ends(fork)
    (tmp_path / "pid").unlink()
    alone = packager(600)
    fork = hanging(alone, tmp_path)
    alone.stdin.close()
    assert alone.wait() == 1
    assert ends(fork)
    alone.stdin = None
