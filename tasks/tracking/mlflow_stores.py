"""MLflow's stores: a server, or a SQLite file with a folder next to it. Used wherever one is opened.

The pipeline's publisher and the flow's registry open the same store; this file does what both must do in the same way.
"""

import contextlib
import hashlib
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plm_core.shared import params_file
from plm_core.shared.errors import UserError
from plm_core.shared.files import locked

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""The environment of every process that uses MLflow."""

PUBLISHER = [sys.executable, "-W", "ignore", "-m", "tasks.publishing.publisher"]
"""The command that sends runs to MLflow."""
BY_JOURNAL = "journal:"
"""The prefix of a parent run that is named by the key of its journal: the run may not exist yet."""

SQLITE = "sqlite:///"
NOTE = "mlflow.note.content"
"""The tag of an experiment or run that MLflow shows as its description."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag of an experiment that makes MLflow open the runs instead of its view of GenAI traces."""
LEDGER = (
    "The ledger of the model registry: a run for each decision on a version. Its parameters say what was done, "
    "from which version to which, by whom and why; `decision.json` holds all that the gate compared. A run that is "
    "not finished is a decision that was interrupted. `plm status` shows the current state."
)
"""The note on the experiment of decisions."""

PLACE_TAG = "plm.artifacts"
"""The tag of an experiment that says where the store's artifacts were when it was last opened."""
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("experiment_tags", "value"),
)
"""The columns of MLflow's tables that hold such paths; a test checks that there are no others."""


def address(root: Path = Path()) -> tuple[str, str]:
    """The address of MLflow, which ``MLFLOW_TRACKING_URI`` or the ``params.yaml`` in the repository ``root`` names, and
    the experiment's name. Raises UserError: ``params.yaml`` does not name them."""
    uri, experiment = (params_file.read(f"tracking.{name}", root) for name in ("uri", "experiment"))
    return absolute(os.environ.get("MLFLOW_TRACKING_URI") or uri, root), experiment


def absolute(uri: str, root: Path) -> str:
    """A store's absolute address: a relative SQLite file is relative to the repository ``root``."""
    return f"{SQLITE}{root.absolute() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


def store_exists(uri: str) -> bool:
    """Whether a store exists: a SQLite file is created on first use."""
    return not uri.startswith(SQLITE) or Path(uri.removeprefix(SQLITE)).is_file()


def without_credentials(text: str) -> str:
    """An address, or a text with addresses in it, with users and passwords removed: safe to store or show.

    As always in an address, a ``/`` in a password must be written ``%2F``.
    """
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def named(uri: str, experiment: str) -> str:
    """A name for an experiment of a store, without passwords."""
    return hashlib.sha256(f"{without_credentials(uri)} {experiment}".encode()).hexdigest()[:12]


def experiment(client: Any, uri: str, name: str, note: str = "") -> tuple[str, dict[str, str]]:
    """The id and the tags of an experiment, made with this ``note`` if it is missing; ``client`` is an MlflowClient.

    Raises:
        UserError: somebody has deleted it; the message says how it is restored.
    """
    if (existing := client.get_experiment_by_name(name)) is None:
        place = artifacts_of(uri)
        tags = KIND | ({PLACE_TAG: place} if place else {}) | ({NOTE: note} if note else {})
        return client.create_experiment(name, place, tags), tags
    if existing.lifecycle_stage == "deleted":
        uri = without_credentials(uri)
        raise UserError(
            f"MLflow at {uri}: somebody has deleted the experiment {name}; `MLFLOW_TRACKING_URI={uri} "
            f"mlflow experiments restore --experiment-id {existing.experiment_id}` restores it and its runs"
        )
    return existing.experiment_id, existing.tags


def artifacts_of(uri: str) -> str | None:
    """Where a store's artifacts are: next to the SQLite file; None for a server, which has its own setting."""
    return (Path(uri.removeprefix(SQLITE)).parent / "artifacts").as_uri() if uri.startswith(SQLITE) else None


def follow(uri: str) -> None:
    """Let a SQLite store that was moved or copied use the artifacts next to it: MLflow stores absolute paths."""
    folder = artifacts_of(uri)
    database = Path(uri.removeprefix(SQLITE))
    if folder is None or not database.exists():
        return
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as store, store:
        if not store.execute("select 1 from sqlite_master where name = 'experiment_tags'").fetchone():
            return  # it is being created
        places = store.execute("select value from experiment_tags where key = ?", (PLACE_TAG,)).fetchall()
        for before in {place for (place,) in places} - {folder}:
            for table, column in PLACES:
                store.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) where substr({column} || '/', 1, ?) = ?",
                    (folder, len(before) + 1, len(before) + 1, f"{before}/"),
                )


@contextlib.contextmanager
def exclusive(uri: str, create: Callable[[str, str], object] | None = None) -> Iterator[None]:
    """One process at a time opens a SQLite file: two that create its tables at once fail, despite MLflow's lock.

    A file that has been moved is adapted to its new place. A missing one is made by ``create``, which gets its address
    and the path of its artifacts, under another name: MLflow cannot use a file if a process that was creating its
    tables was killed. Raises UserError: another version of MLflow has made the tables.
    """
    if not uri.startswith(SQLITE):
        yield
        return
    with locked(Path(uri.removeprefix(SQLITE) + ".lock")):
        place = artifacts_of(uri)
        if create and place and not store_exists(uri):
            database = Path(uri.removeprefix(SQLITE))
            new = database.with_name(f"{database.name}.new")
            for left in database.parent.glob(f"{new.name}*"):  # with SQLite's journal
                left.unlink()
            create(f"{SQLITE}{new}", place)
            new.rename(database)
        follow(uri)
        try:
            yield
        except Exception as error:
            if "out-of-date database schema" in str(error):
                what = "another version of MLflow made the tables; `plm backup FOLDER`, then `mlflow db upgrade"
                raise UserError(f"MLflow at {uri}: {what} {uri}` adapts them") from error
            raise
