"""The pipeline's own run in MLflow, the parent of its stages' runs. Used by ``pipeline.py``.

The flow does not talk to MLflow itself. It writes a journal as every stage does, and starts the publisher of all runs
of the pipeline (``tasks/publishing/publisher.py``). A pipeline that is killed leaves a run marked KILLED.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from flows.registry.mlflow_client import warn
from plm_core.shared.errors import UserError
from plm_core.shared.files import is_locked
from plm_core.shared.paths import JOURNALS
from tasks.tracking import mlflow_stores
from tasks.tracking.run_journal import (
    Journal,
    begin_message,
    end_message,
    end_status,
    first_message,
    messages,
    origin,
    publisher_of,
)

END_S = 120.0
"""How long the flow waits until MLflow has everything; if MLflow is down, the publisher gives up sooner."""

Track = Callable[[Path], AbstractContextManager[str | None]]
"""Opens the pipeline's own tracking run and yields its id, as ``pipeline_run`` does."""


@contextlib.contextmanager
def pipeline_run(root: Path, name: str = "pipeline", reason: str = "") -> Iterator[str | None]:
    """Record the block as a run, for the reason that a person gave; yields ``journal:`` and the key of its journal,
    for ``PLM_PARENT_RUN_ID``.

    The run ends as FINISHED, as FAILED if the block raises an ``Exception``, as KILLED if it is interrupted. After the
    block, MLflow has the runs of all stages, or a line on stderr says what is left to send. Yields None with
    ``PLM_TRACKING=off``, and if there is no room on the disk.

    Raises:
        UserError: MLflow answers, but a person has to fix it, or ``params.yaml`` names none.
    """
    if os.environ.get("PLM_TRACKING") == "off":
        yield None
        return
    root = root.resolve()
    store = mlflow_stores.named(*mlflow_stores.address(root))
    try:
        journal = Journal.new(root / JOURNALS, name)
        tags = {"plm.stage": name} | ({"plm.reason": reason} if reason else {})
        journal.append(begin_message(name, store, tags | origin("plm run", root)))
    except OSError as error:
        warn(f"MLflow: no journal ({error}); the run is not shown")
        yield None
        return
    publisher = _publisher(root, journal.path.stem)
    assert publisher.stdout is not None
    if refused := publisher.stdout.readline().strip():
        publisher.communicate()
        journal.path.unlink()
        journal.close()
        raise UserError(refused)
    status = "KILLED"
    try:
        yield f"{mlflow_stores.BY_JOURNAL}{journal.path.stem}"
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        try:
            journal.append(end_message(status))
        except OSError as error:
            warn(f"MLflow: the end of the run is not kept ({error}); it is shown as KILLED, but was {status}")
        if publisher.poll() is not None:
            publisher = _publisher(root, journal.path.stem)  # it was killed: another one continues
        journal.close()
        try:
            publisher.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            publisher.kill()
            publisher.communicate()
            warn(f"MLflow: makes no progress; {JOURNALS} keeps what has not been sent")


def _publisher(root: Path, key: str) -> "subprocess.Popen[str]":
    # Ctrl-C must only reach the flow: the publisher ends when the run has ended, and records how.
    command = [*mlflow_stores.PUBLISHER, "--follow", key]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, start_new_session=True)


def send_leftovers(root: Path) -> None:
    """Send what could not be sent during an outage of MLflow, as every publisher does."""
    if os.environ.get("PLM_TRACKING") != "off" and any((root / JOURNALS).glob("*.jsonl")):
        subprocess.run(mlflow_stores.PUBLISHER, cwd=root, check=False)


@dataclass(frozen=True)
class State:
    """A journal as it is now."""

    path: Path
    name: str
    """The name of its run, empty if its first line cannot be read."""
    training: bool
    """Whether it is kept after an interruption, so that its training run can resume."""
    living: bool
    """Whether the process of its run is alive."""
    sent: bool
    """Whether MLflow has all of it, and the end of its run."""
    sender: str | None
    """The problem of the process that publishes it, empty if there is none; None if no process does."""
    damaged: tuple[int, ...]
    """The numbers (from 1) of lines that cannot be read."""


def journals(root: Path) -> Iterator[State]:
    """The state of each journal of the checkout."""
    for path in sorted((root / JOURNALS).glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # it has been published in the meantime
            begun = first_message(path)
            publisher = root / publisher_of(begun.get("store") or "")
            lines = enumerate(messages(path), 1)
            yield State(
                path,
                begun.get("name", ""),
                bool(begun.get("training")),
                is_locked(path),
                end_status(path)[1],
                publisher.read_text(encoding="utf-8") if is_locked(publisher) else None,
                tuple(number for number, (message, _) in lines if message["kind"] == "damaged"),
            )
