"""What the launcher of several processes ends with, when one of them fails and the launcher ends the others."""

import os
import subprocess
import sys

import pytest

from plm_core.config import UserError
from tasks.runtime.launch import tried_once
from tasks.runtime.stage import BudgetSpent

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
    )
    assert run.returncode == code, run.stderr
    assert said in run.stderr


@pytest.mark.parametrize("kind", [UserError, BudgetSpent])
def test_a_process_that_has_failed_for_good_fails_again_without_working(tmp_path, monkeypatch, kind):
    worked = []

    def attempt(number, rank, error):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"attempt_{number}/{rank}/error.json"))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with tried_once():
            worked.append((number, rank))
            if error is not None:
                raise error

    with pytest.raises(OSError, match="once"):
        attempt(0, 0, OSError("once"))
    with pytest.raises(kind, match=r"^no\nuse$"):
        attempt(1, 0, kind("no\nuse"))
    with pytest.raises(UserError, match=r"^no\nuse$") as again:
        attempt(2, 0, None)
    assert type(again.value) is kind
    attempt(2, 1, None)  # of another process nothing is known
    assert worked == [(0, 0), (1, 0), (2, 1)]
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    with tried_once():
        worked.append("alone")
    assert worked[-1] == "alone"
