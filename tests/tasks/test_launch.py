"""What the launcher of several processes ends with, when one of them fails and the launcher ends the others."""

import os
import subprocess
import sys

import pytest

from plm_core.config import UserError
from tasks.runtime.stage import BudgetSpent
from tasks.runtime.torchrun_launcher import keep_permanent_failure

WORK = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    time.sleep(60)  # until the launcher's SIGTERM, which nothing handles
{fails}
"""


@pytest.mark.parametrize(
    ("fails", "code", "message"),
    [
        ("sys.exit(2)", 2, ""),
        ("raise ArithmeticError", 1, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 75, "interrupted: a process was killed by signal 9"),
    ],
)
def test_launch_status_is_that_of_the_failed_process(tmp_path, project, fails, code, message):
    (tmp_path / "work.py").write_text(WORK.format(fails=fails))
    run = subprocess.run(
        [sys.executable, "-c", "from tasks.runtime.torchrun_launcher import launch; launch('work', [], 2)"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{project}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == code, run.stderr
    assert message in run.stderr


@pytest.mark.parametrize("kind", [UserError, BudgetSpent])
def test_permanent_failure_is_not_retried(tmp_path, monkeypatch, kind):
    worked = []

    def attempt(number, rank, error):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"attempt_{number}/{rank}/error.json"))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with keep_permanent_failure():
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
    with keep_permanent_failure():
        worked.append("alone")
    assert worked[-1] == "alone"


@pytest.mark.parametrize(
    ("env", "code", "out", "err"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0, "\u2581 []\n", ""),
        ({"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "gpt"}, 0, "\u2581 []\n", ""),
        (
            {"RANK": "3", "WORLD_SIZE": "8"},
            2,
            "",
            "error: RANK: 3, WORLD_SIZE: 8; torchrun has not started this process",
        ),
        ({"RANK": "0", "WORLD_SIZE": "8"}, 2, "", "error: RANK: 0, WORLD_SIZE: 8; torchrun has not started"),
        ({"MLFLOW_RUN_ID": "77"}, 0, "\u2581 []\n", "warning: ignoring MLFLOW_RUN_ID from the shell"),
        ({"PYTHONIOENCODING": "ascii"}, 0, "\\u2581 []\n", ""),
    ],
)
def test_stage_by_hand_ignores_foreign_environment(project, env, code, out, err):
    names = "[name for name in os.environ if name.startswith('MLFLOW_RUN')]"
    work = f"import os\nfrom tasks.runtime.stage import main\nmain(lambda: print('\\u2581', {names}))"
    command, env = [sys.executable, "-c", work], os.environ | {"PYTHONIOENCODING": "utf-8"} | env
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(err)
    assert done.stderr.count("\n") == bool(err)
