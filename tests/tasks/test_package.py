"""The process that logs and tries models: how a try ends."""

import json
import os
import subprocess
import sys

import psutil
import pytest

PROGRAM = """
import errno, os, signal, sys, time
from tasks.commands import package

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
        with open(sys.argv[4], "w") as file:
            file.write(str(os.getpid()))
        time.sleep(999)

package.try_version, package.TRIAL_S = try_version, float(sys.argv[3])
package.main(*sys.argv[1:3])
"""


def answer(folder, seconds, *versions):
    """The answer to a request to try these versions, each for so long."""
    (folder / "request").write_text(json.dumps({"model": "plm", "log": [], "try": versions}))
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM, *(str(folder / name) for name in ("request", "answer"))]
    subprocess.run([*command, str(seconds), str(folder / "pid")], env=environment, check=True)
    return json.loads((folder / "answer").read_text())


@pytest.mark.slow
def test_version_trial_tells_wrong_from_full_machine(tmp_path):
    problems = answer(tmp_path, 600, "fine", "wrong", "lost", "full", "kill")["problems"]
    assert problems["fine"] is None
    assert problems["wrong"] == {"error": "ValueError: its answer is 7", "passing": False}
    assert (problems["lost"]["passing"], "model.safetensors" in problems["lost"]["error"]) == (False, True)
    assert problems["full"] == {"error": "OSError: [Errno 28] No space left on device", "passing": True}
    assert problems["kill"] == {"error": "killed by SIGKILL", "passing": True}


@pytest.mark.slow
def test_version_trial_times_out(tmp_path):
    late = {"error": "it did not finish in time", "passing": True}
    assert answer(tmp_path, 2, "hang") == {"error": None, "problems": {"hang": late}}
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
