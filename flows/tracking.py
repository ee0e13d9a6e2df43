"""The pipeline's own MLflow run, the parent of its stages' runs; ``flows/pipeline.py`` opens it around the graph.

Like a stage, the flow does not talk to MLflow itself: it starts ``python -m tasks.seam.recorder`` and writes to
its pipe, so that neither an outage nor a crash of this process leaves a run that pretends to be running.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

START_S = 60.0
"""How long the flow waits for the run's id; the first opening of a new database takes seconds."""

END_S = 60.0
"""How long the flow waits until the run is closed."""


RECORDER = [sys.executable, "-W", "ignore", "-m", "tasks.seam.recorder"]
JOURNALS = "artifacts/journals"
"""Where runs wait that MLflow has not, or whose training may go on; see ``tasks/seam/journal.py``."""


@contextlib.contextmanager
def pipeline_run(root: Path, name: str = "pipeline") -> Iterator[str | None]:
    """Show the block as a run; yields its id for ``PLM_PARENT_RUN_ID``, or None when MLflow is off.

    While MLflow is away that is ``journal:`` and the key of the run's journal, by which the stages' runs find their
    parent later. The run is FINISHED, FAILED when the block raises an ``Exception``, KILLED when it is interrupted.
    """
    if os.environ.get("PLM_TRACKING") == "off":
        yield None
        return
    recorder = _start(root, name)
    status = "KILLED"
    try:
        yield _run_id(recorder)
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        _end(recorder, status)


def send_leftovers(root: Path) -> None:
    """Send what an outage of MLflow has left; every recorder does so too."""
    if os.environ.get("PLM_TRACKING") != "off" and any((root / JOURNALS).glob("*.jsonl")):
        subprocess.run([*RECORDER, "--leftovers"], cwd=root, check=False)


def _start(root: Path, name: str) -> "subprocess.Popen[bytes]":
    recorder = subprocess.Popen(
        RECORDER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        # A Ctrl-C is for the flow: the recorder ends when the pipe does, and says how.
        start_new_session=True,
    )
    opening = {
        "kind": "open",
        "name": name,
        "params": {},
        "inputs": {},
        "parent": None,
        "tags": {"plm.kind": "pipeline"},
        "start_time": time.time_ns() // 1_000_000,
        "system_metrics": False,
    }
    _write(recorder, opening)
    return recorder


def _write(recorder: "subprocess.Popen[bytes]", message: Mapping[str, object]) -> None:
    assert recorder.stdin is not None
    with contextlib.suppress(OSError):  # it has ended; it said why in its own line
        recorder.stdin.write(json.dumps(message).encode() + b"\n")
        recorder.stdin.flush()


def _run_id(recorder: "subprocess.Popen[bytes]") -> str | None:
    assert recorder.stdout is not None
    if not select.select([recorder.stdout], [], [], START_S)[0]:
        return None
    return recorder.stdout.readline().decode().strip() or None


def _end(recorder: "subprocess.Popen[bytes]", status: str) -> None:
    _write(recorder, {"kind": "end", "status": status, "time": time.time_ns() // 1_000_000})
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    with contextlib.suppress(OSError):
        recorder.stdin.close()
    try:
        recorder.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        recorder.kill()
        recorder.wait()
    recorder.stdout.close()
