"""MLflow's stores: a server, or a SQLite file with a folder beside it. Used by who opens one.

The pipeline's recorder and the flow's registry open the same store; what they must do alike stands here.
"""

import contextlib
import fcntl
import re
import sys
from collections.abc import Iterator
from pathlib import Path

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow's environment for whoever talks to it."""

RECORDER = [sys.executable, "-W", "ignore", "-m", "tasks.tracking.recorder"]
"""The command that sends runs to MLflow."""
BY_JOURNAL = "journal:"
"""Begins the name of a parent run that is named by the key of its journal: the run may not exist yet."""

SQLITE = "sqlite:///"


def absolute(uri: str, root: Path) -> str:
    """A store's address as it is from everywhere: a relative SQLite file is relative to the repository ``root``."""
    return f"{SQLITE}{root.absolute() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


def shown(text: str) -> str:
    """An address, or a text with addresses in it, without the user and the password of any: what may be kept or said.

    As everywhere in an address, a ``/`` in a password must be written ``%2F``.
    """
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def artifacts_of(uri: str) -> str | None:
    """Where a store's artifacts lie: beside the SQLite file. A server knows its own place (None)."""
    return (Path(uri.removeprefix(SQLITE)).parent / "artifacts").as_uri() if uri.startswith(SQLITE) else None


@contextlib.contextmanager
def alone(uri: str) -> Iterator[None]:
    """One process at a time opens a SQLite file: two that create its tables at once fail, MLflow's lock or not."""
    if not uri.startswith(SQLITE):
        yield
        return
    lock = Path(uri.removeprefix(SQLITE) + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
