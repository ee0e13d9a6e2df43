"""The one recorder that sends a checkout's journals to MLflow: found by its lock, started if there is none.

Stages call ``ensure`` (``tasks/tracking/client.py``), the recorder holds the ``Service``. Does not import MLflow.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from plm_core.config import digest
from plm_core.shared.paths import JOURNALS
from plm_core.shared.processes import place
from plm_core.shared.stores import RECORDER, shown
from tasks.settings import params
from tasks.tracking.journal import held

HUNG_S = 150.0
"""A recorder on this machine that has not reported for this long is killed, and another one started. A call to MLflow
takes at most 10 s on a server, and about a minute on a database that others have locked."""

STATE_BYTES = 4096
"""The holder's state, padded with spaces."""

READS = 5
"""How often an unreadable state is read before it counts as unknown."""


class Service:
    """The right to send the journals that are meant for one MLflow: a lock, together with the state of its holder."""

    def __init__(self, store: str) -> None:
        self._path = JOURNALS / f"{store}.recorder"
        self._lock: int | None = None

    def take(self) -> bool:
        """Become the sender, until ``leave`` or the end of this process; return whether that succeeded."""
        with contextlib.suppress(OSError):
            if self._lock is None:
                JOURNALS.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            return True
        return False

    def beat(self, says: str | None) -> None:
        """Report, as the sender, that this process is alive and what is wrong with MLflow, None if nothing is."""
        assert self._lock is not None
        state = json.dumps({"place": place(), "pid": os.getpid(), "beat": time.monotonic(), "says": says}).encode()
        with contextlib.suppress(OSError):  # a full disk: what it says is not known
            # In one call and with a fixed length, because others may read it at any moment.
            os.pwrite(self._lock, state.ljust(STATE_BYTES), 0)

    def leave(self) -> None:
        """Let another recorder send."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> dict[str, Any] | None:
        """The last state of the running holder (``place``, ``pid``, ``beat``, ``says``; empty if unknown); None if
        there is none."""
        for _ in range(READS):
            try:
                with self._path.open("rb") as file:
                    return dict(json.loads(file.read() or b"{}")) if held(file.fileno(), 0) else None
            except FileNotFoundError:
                return None
            except OSError:
                return {}
            except ValueError:  # half of one beat and half of the next
                continue
        return {}


def store() -> str:
    """A name for the MLflow that the environment and ``params.yaml`` select; it contains no password.

    Raises:
        UserError: ``params.yaml`` has no section ``tracking``.
    """
    return digest(shown(repr((params.read("tracking"), os.environ.get("MLFLOW_TRACKING_URI")))))[:12]


def ensure(service: Service) -> None:
    """Start a recorder in the background unless one is running; kill one on this machine that hangs.

    Raises:
        OSError: it cannot be started.
    """
    holder = service.holder()
    if holder and holder.get("place") == place() and time.monotonic() - holder["beat"] > HUNG_S:
        with contextlib.suppress(OSError):
            os.kill(holder["pid"], signal.SIGKILL)
    elif holder is not None:
        return
    with (JOURNALS / "recorder.log").open("wb") as log:  # for its warnings
        subprocess.Popen(
            RECORDER,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Out of reach of a Ctrl-C for the stage's group, and of whoever waits for the stage's output.
            start_new_session=True,
        )


def warn(what: str) -> None:
    """Report a problem with MLflow on stderr; it never ends a stage."""
    print(f"warning: MLflow: {what}", file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """The message of an error, as one line of limited length without passwords."""
    return f"{type(error).__name__}: {' '.join(shown(str(error)).split())[:300]}"
