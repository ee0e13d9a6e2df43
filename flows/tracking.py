"""The pipeline's own run in MLflow, the parent of its stages' runs. Used by ``flows/pipeline.py``.

Like a stage, the flow does not talk to MLflow itself: it starts ``python -m tasks.tracking.recorder``, which keeps the
pipeline's journal, sends those of all stages, and learns through a pipe how the pipeline ended. A pipeline that is
killed leaves a run marked KILLED, because the recorder sees the pipe close.
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
"""How long the flow waits until MLflow has everything; if MLflow is down, the recorder gives up sooner."""

Track = Callable[[Path], AbstractContextManager[str | None]]
"""Opens the pipeline's own tracking run and yields its id, as ``pipeline_run`` does."""


@contextlib.contextmanager
def pipeline_run(root: Path, name: str = "pipeline") -> Iterator[str | None]:
    """Record the block as a run; yields ``journal:`` and the key of its journal, for ``PLM_PARENT_RUN_ID``.

    The run ends as FINISHED, as FAILED if the block raises an ``Exception``, as KILLED if it is interrupted. After the
    block, MLflow has the runs of all stages, or a line on stderr says what is left to send. Yields None with
    ``PLM_TRACKING=off``.

    Raises:
        UserError: MLflow answers, and a person has to mend it.
    """
    if os.environ.get("PLM_TRACKING") == "off":
        yield None
        return
    recorder = _start(root, name)
    assert recorder.stdout is not None
    key = recorder.stdout.readline().strip()
    if key.startswith("error: "):
        recorder.communicate()
        raise UserError(key.removeprefix("error: "))
    status = "KILLED"
    try:
        yield f"{stores.BY_JOURNAL}{key}" if key else None
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if recorder.poll() is not None and key:
            recorder = _start(root, name, key)  # it was killed: another one continues
        try:
            recorder.communicate(status, timeout=END_S)  # ends the pipe
        except subprocess.TimeoutExpired:
            recorder.kill()
            recorder.communicate()
            said = f"MLflow: makes no progress; {JOURNALS} keeps what has not been sent"
            print(f"warning: {said}", file=sys.stderr, flush=True)


def send_leftovers(root: Path) -> None:
    """Send what an outage of MLflow has left behind, as every recorder does."""
    if os.environ.get("PLM_TRACKING") != "off" and any((root / JOURNALS).glob("*.jsonl")):
        subprocess.run([*stores.RECORDER, "--leftovers"], cwd=root, check=False)


def journals(root: Path) -> list[dict[str, Any]]:
    """The state of each journal of the checkout, as ``tasks.journals.state`` gives it.

    Raises:
        UserError: the journals cannot be read.
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
        # Ctrl-C must only reach the flow: the recorder ends when the pipe closes, and records how.
        start_new_session=True,
    )
