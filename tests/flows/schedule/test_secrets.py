"""The addresses of messages appear in no output of any kind, whatever a stage prints."""

from pathlib import Path

import pytest
from ears import messages, webhook
from registries import PARAMS
from toys import plm

SECRET = "T0psecretPath"

NOTIFY = """
notify: {urls_from: WHERE_TO, events: [failure, disk]}
"""

LEAKS = """
import os, sys
from plm_core.config import UserError
from tasks.tracking.tracker import tracked
try:
    with tracked("leaks", {"all": dict(os.environ)}, {}):
        print(os.environ, flush=True)
        raise UserError(f"WHERE_TO is {os.environ['WHERE_TO']!r}")
except UserError as error:
    sys.exit(f"error: {error}")
"""


def holding(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_secret_address_is_in_no_output(toy, on_server, hook, prefect_home):
    root = toy(
        "stages:\n  s: {cmd: python code.py, outs: [out.txt]}\n",
        params_yaml=PARAMS + NOTIFY,
        code_py=LEAKS,
    )
    addresses = f"{webhook(hook, SECRET)} {webhook(hook, f'broken/{SECRET}')} nonsense://{SECRET}"
    env = {"WHERE_TO": addresses, "PLM_TRACKING": "on", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    done = [plm(root, *words, **env) for words in (("run",), ("status", "--json"), ("nights",), ("nights", "--test"))]
    assert [run.returncode for run in done] == [1, 0, 1, 2], [run.stderr for run in done]
    assert "the failure message may not have been delivered: WHERE_TO: address 2 did not accept it" in done[0].stderr
    assert ("failure", "The run failed. s: WHERE_TO is ''") in messages(hook)
    assert [SECRET in run.stdout + run.stderr for run in done] == [False] * 4
    assert (root / "artifacts/mlflow/mlflow.db").stat().st_size > 0
    assert (prefect_home / "prefect.db").stat().st_size > 0
    assert [*holding(root), *holding(prefect_home)] == []
