"""MLflow's stores: a server, or a SQLite file with a folder beside it. Used by who opens one.

The pipeline's recorder and the flow's registry open the same store; what they must do alike stands here.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow's environment for whoever talks to it."""

RECORDER = "tasks.tracking.recorder"
"""The module that sends runs to MLflow."""
BY_JOURNAL = "journal:"
"""Begins the name of a parent run that is named by the key of its journal: the run may not exist yet."""

SQLITE = "sqlite:///"
NOTE = "mlflow.note.content"
"""The tag of an experiment or run that MLflow shows as its description."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag of an experiment without which MLflow opens its view of GenAI traces instead of the runs."""
LEDGER = {
    NOTE: "The ledger of the model registry: a run for each decision on a version. Its parameters say what was done, "
    "from which version to which, by whom and why; `decision.json` holds all that the gate compared. A run that is "
    "not finished is a decision that was interrupted. `plm status` says where things stand."
}
"""The note on the experiment of decisions."""


def absolute(uri: str, root: Path) -> str:
    """A store's address as it is from everywhere: a relative SQLite file is relative to the repository ``root``."""
    return f"{SQLITE}{root.absolute() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


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
