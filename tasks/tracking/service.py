"""Who sends a checkout's journals to MLflow: one recorder, found by its lock, started when there is none.

Stages call ``ensure`` (``tasks/tracking/client.py``), the recorder itself holds the ``Service``. Knows no MLflow.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from plm_core.config import digest
from plm_core.shared import stores
from plm_core.shared.paths import JOURNALS
from tasks.settings import params

RECORDER = [sys.executable, "-W", "ignore", "-m", stores.RECORDER]

HUNG_S = 150.0
"""A recorder that has not said for so long that it is alive is killed, and another one started. A call of MLflow takes
10 s at most on a server, and about a minute on a database that others hold."""

INHERITED = ("PLM_STAGE", "PLM_PARENT_RUN_ID")
"""What is the stage's own in its environment, and not its recorder's."""


class Service:
    """The right to send the journals that are meant for one MLflow: a lock, and beside it what its holder says."""

    def __init__(self, store: str) -> None:
        self._path = JOURNALS / f"{store}.recorder"
        self._lock: int | None = None

    def take(self) -> bool:
        """Become the one who sends, until the end of this process; whether this is so."""
        if self._lock is not None:
            return True
        with contextlib.suppress(OSError):
            JOURNALS.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
                self.beat()
            except BlockingIOError:
                os.close(lock)
        return self._lock is not None

    def beat(self, says: str | None = None) -> None:
        """Say that this process lives, and what is wrong with MLflow, None when nothing is."""
        if self._lock is not None:
            state = json.dumps({"pid": os.getpid(), "beat": _now(), "says": says}).encode()
            with contextlib.suppress(OSError):  # a full disk: it will be taken for hung, and another one goes on
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, state, 0)

    def leave(self) -> None:
        """Let another recorder send."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> dict[str, Any] | None:
        """What the living holder said last (``pid``, ``beat``, ``says``; empty when it is not known); None: nobody."""
        try:
            with self._path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return dict(json.loads(file.read() or b"{}"))
        except (OSError, ValueError):
            return None if not self._path.exists() else {}
        return None


def store() -> str:
    """Names the MLflow that this process's environment and ``params.yaml`` mean, and whoever it is there.

    Raises:
        UserError: ``params.yaml`` has no section ``tracking``.
    """
    settings = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}
    return digest(params.read("tracking"), settings)[:12]


def ensure(service: Service) -> None:
    """Start a recorder in the background unless one is there; end one that hangs.

    Raises:
        OSError: it cannot be started.
    """
    holder = service.holder()
    if holder and _now() - holder["beat"] > HUNG_S:
        with contextlib.suppress(OSError):
            os.kill(holder["pid"], signal.SIGKILL)
        holder = None
    if holder is not None:
        return
    with _log() as log:
        subprocess.Popen(
            RECORDER,
            env={name: value for name, value in os.environ.items() if name not in INHERITED},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Out of reach of a Ctrl-C for the stage's group, and of whoever waits for the stage's output.
            start_new_session=True,
        )


def _log() -> IO[bytes]:
    """Where a recorder in the background says what goes wrong."""
    try:
        return (JOURNALS / "recorder.log").open("wb")
    except OSError:
        return Path(os.devnull).open("wb")


def warn(what: str) -> None:
    """Say on stderr what is wrong with MLflow; it never ends a stage."""
    print(f"warning: MLflow: {what}", file=sys.stderr, flush=True)


def _now() -> float:
    """Seconds since the machine was started: no clock that is set moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
