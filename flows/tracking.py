"""The pipeline's own run in MLflow, the parent of its stages' runs. Used by ``flows/pipeline.py``.

Like a stage, the flow does not talk to MLflow itself: it starts ``python -m tasks.tracking.recorder``, which keeps the
pipeline's journal, sends those of all stages, and hears on a pipe how the pipeline ended. A pipeline that is killed
leaves a run marked KILLED, for the recorder sees the pipe end.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flows.outcome import UserError
from plm_core.shared import stores
from plm_core.shared.paths import JOURNALS

END_S = 120.0
"""How long the flow waits until MLflow has everything; while MLflow is away the recorder does not take that long."""

Track = Callable[[Path], AbstractContextManager[str | None]]
"""Opens the pipeline's own tracking run and yields its id, as ``pipeline_run`` does."""


@contextlib.contextmanager
def pipeline_run(root: Path, name: str = "pipeline") -> Iterator[str | None]:
    """Show the block as a run; yields ``journal:`` and the key of its journal, for ``PLM_PARENT_RUN_ID``.

    The run is FINISHED, FAILED when the block raises an ``Exception``, KILLED when it is interrupted. When the block
    has ended, MLflow has the runs of all stages, or a line on stderr says what waits. Yields None with
    ``PLM_TRACKING=off``.
    """
    if os.environ.get("PLM_TRACKING") == "off":
        yield None
        return
    recorder = _start(root, name)
    assert recorder.stdout is not None
    key = recorder.stdout.readline().strip()
    status = "KILLED"
    try:
        yield f"{stores.BY_JOURNAL}{key}" if key else None
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if recorder.poll() is not None and key:
            recorder = _start(root, name, key)  # it was killed: another one goes on
        try:
            recorder.communicate(status, timeout=END_S)  # ends the pipe
        except subprocess.TimeoutExpired:
            recorder.kill()
            recorder.communicate()
            print(f"warning: MLflow: does not get on; {JOURNALS} keeps what it has not", file=sys.stderr, flush=True)


def send_leftovers(root: Path) -> None:
    """Send what an outage of MLflow has left; every recorder does so too."""
    if os.environ.get("PLM_TRACKING") != "off" and any((root / JOURNALS).glob("*.jsonl")):
        subprocess.run([*stores.RECORDER, "--leftovers"], cwd=root, check=False)


def journals(root: Path) -> list[dict[str, Any]]:
    """How each journal of the checkout stands, with the fields of ``tasks.journals.State``.

    Raises:
        UserError: they cannot be looked at.
    """
    if not any((root / JOURNALS).glob("*.jsonl")):
        return []
    command = [sys.executable, "-m", "tasks.journals"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{root / JOURNALS}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    return json.loads(done.stdout)


def _start(root: Path, name: str, *key: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*stores.RECORDER, "--pipeline", name, *key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        # A Ctrl-C is for the flow: the recorder ends when the pipe does, and says how.
        start_new_session=True,
    )
