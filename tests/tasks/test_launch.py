"""What the launcher of several processes ends with, when one of them fails and the launcher ends the others."""

import os
import subprocess
import sys

import pytest

WORK = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    time.sleep(60)  # until the launcher's SIGTERM, which nothing handles
{fails}
"""


@pytest.mark.parametrize(
    ("fails", "code", "said"),
    [
        ("sys.exit(2)", 2, ""),
        pytest.param("sys.exit(75)", 75, "", marks=pytest.mark.slow),
        ("raise ArithmeticError", 1, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 75, "interrupted: a process was killed by signal 9"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGTERM)",
            75,
            "interrupted: a process was killed by signal 15",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_status_is_that_of_the_process_that_failed(tmp_path, project, fails, code, said):
    (tmp_path / "work.py").write_text(WORK.format(fails=fails))
    run = subprocess.run(
        [sys.executable, "-c", "from tasks.runtime.launch import launch; launch('work', [], 2)"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{project}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == code, run.stderr
    assert said in run.stderr
