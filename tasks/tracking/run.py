"""A run on its way from its journal to MLflow. Used by the recorder, which imports it when there is one to send.

All of it may be done twice: MLflow keeps a point of the same name, value, time and step once, a run is found by the
key of its journal and a checkpoint by its digest. So whatever failed is repeated, from what was acknowledged last.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
import psutil
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from plm_core.files import atomic_text
from plm_core.shared import paths
from plm_core.shared.stores import BY_JOURNAL
from tasks.tracking.journal import SENDER, Journal, Sent, path_of
from tasks.tracking.service import one_line, warn
from tasks.tracking.store import page_of

FLUSH_S = 5.0
"""The journal of a living run is sent this often."""

BATCH = 1000
"""Points in a request: MLflow's largest batch."""

JOURNAL_TAG = "plm.journal"
"""The tag of a run that holds the key of its journal."""

REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE")
"""MLflow's errors that a retry would meet again."""


class Run:
    """One journal, and what MLflow has of it."""

    def __init__(self, journal: Journal, unkept: Sequence[dict[str, Any]] = ()) -> None:
        """``unkept`` are the last messages of the run, which did not fit on the disk."""
        self.journal = journal
        self.unkept = unkept
        self.sent = journal.sent()
        self.due = 0.0
        """When it is sent again, unless it has ended before."""
        self.trouble: str | None = None
        """Why it could not be sent the last time."""
        self._points: list[Metric] = []
        self._told = False

    def send(self, living: bool, client: MlflowClient, experiment: str) -> None:
        """Send what MLflow does not have yet, and the end of a run that has ended.

        Raises what MLflow raises; what it acknowledged until then need not be sent again.
        """
        if not self.journal.lock(SENDER):
            return
        if not self.unkept and not self.journal.on_disk:  # another recorder has sent it all in the meantime
            self.journal.unlock(SENDER)
            return
        self.client = client
        self.experiment = experiment
        self._points = []
        offset = self.sent.offset
        try:
            for message, offset in self.journal.messages(self.sent.offset):
                self._take(message)
                if len(self._points) >= BATCH:
                    self._deliver(offset)
            for message in self.unkept:
                self._take(message)
            self._deliver(offset)
            if not living:
                self._close()
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                self._remember(Sent())  # a new database: the journal is sent from its start
            raise
        finally:
            self.journal.unlock(SENDER)
        self.due = time.monotonic() + FLUSH_S
        self.trouble = None

    def _close(self) -> None:
        """Give the run the status and the time of its end, and delete the journal unless its training run may
        resume."""
        if damaged := self.journal.damaged():
            warn(f"{self.journal.path}: {damaged} damaged lines are left out")
        status, when = self.journal.ending(self.unkept)
        if self.sent.run:
            self._take({"kind": "status", "status": status or "KILLED", "time": when})
        if self.journal.opening().get("training") and status != "FINISHED":
            self._remember(Sent(self.sent.run, self.sent.offset, closed=True))
        else:
            self.journal.discard()

    def _take(self, message: Mapping[str, Any]) -> None:
        """Process a message; what MLflow refuses of it must not hold up what follows."""
        kind = message["kind"]
        try:
            if kind == "open":
                self._open(message)
            elif kind == "metrics":
                self._add(message["points"], model=None)
            elif kind == "tags":
                self._log("tags", [RunTag(name, value) for name, value in message["tags"].items()])
            elif kind == "checkpoint":
                self._add(message["points"], self._linked_model(message["path"], message["digest"]))
            elif kind == "checkpoint_metrics":
                self._add(message["points"], self._find_model(message["digest"]))
            elif kind == "status":
                self.client.set_terminated(self.run, message["status"], end_time=message["time"])
        except MlflowException as error:
            if error.error_code not in REFUSED or self.sent.run is None:
                raise
            self._tell_refused(kind, error)

    def _add(self, points: list[list[Any]], model: str | None) -> None:
        self._points.extend(Metric(name, value, when, step, model_id=model) for name, value, when, step in points)

    def _deliver(self, offset: int) -> None:
        self._log("metrics", self._points)
        self._points = []
        if offset != self.sent.offset:
            self._remember(Sent(self.sent.run, offset))

    def _log(self, kind: str, items: Sequence[Any]) -> None:
        """Send metrics, params or tags; one that MLflow refuses must not hold up the others."""
        if not items:
            return
        try:
            self.client.log_batch(self.run, **{kind: items}, synchronous=True)
        except MlflowException as error:
            if error.error_code not in REFUSED:
                raise
            if len(items) == 1 or self.client.get_run(self.run).info.lifecycle_stage != "active":  # deleted by a user
                self._tell_refused(items[0].key, error)
                return
            half = len(items) // 2
            self._log(kind, items[:half])
            self._log(kind, items[half:])

    def _tell_refused(self, what: str, error: Exception) -> None:
        if not self._told:
            warn(f"refuses {what}: {one_line(error)}; it is left out")
        self._told = True

    def _remember(self, sent: Sent) -> None:
        self.sent = sent
        self.journal.acknowledge(sent)

    @property
    def run(self) -> str:
        """The run's id, found by the key of the journal, or that of a new run."""
        if self.sent.run is None:
            self._remember(Sent(self._find_run(self.journal.key) or self._create_run()))
        assert self.sent.run is not None
        return self.sent.run

    def _find_run(self, key: str) -> str | None:
        found = self.client.search_runs([self.experiment], f"tags.`{JOURNAL_TAG}` = '{key}'", max_results=1)
        return found[0].info.run_id if found else None

    def _create_run(self) -> str:
        opening = self.journal.opening()
        tags = {JOURNAL_TAG: self.journal.key, "mlflow.user": psutil.Process().username()}
        parent = opening.get("parent")
        if parent and parent.startswith(BY_JOURNAL):
            key = parent.removeprefix(BY_JOURNAL)
            parent = self._find_run(key)
            if parent is None and path_of(key).exists():
                raise LookupError(f"the parent's run does not exist yet ({path_of(key)})")
        if parent:
            tags["mlflow.parentRunId"] = parent
        name = opening.get("name", self.journal.key)  # a journal with a damaged beginning is shown as far as possible
        return self.client.create_run(self.experiment, opening.get("start_time"), tags, name).info.run_id

    def _open(self, opening: Mapping[str, Any]) -> None:
        """Open the run; a resumed one is opened again."""
        self.client.update_run(self.run, status="RUNNING")
        self._log("tags", [RunTag(name, value) for name, value in opening["tags"].items()])
        self._log("params", [Param(name, str(value)[:6000]) for name, value in flat(opening["params"])])
        if opening["inputs"]:
            self.client.log_inputs(self.run, datasets(opening["inputs"]))
        if opening.get("training"):
            with contextlib.suppress(OSError):  # a full disk: the page of the meters does without
                page = page_of(self.client, self.experiment, self.run)
                atomic_text(paths.RUN_LINKS / f"{opening['name']}.txt", f"{page}\n")

    def _find_model(self, digest: str) -> str | None:
        found = self.client.search_logged_models(
            [self.experiment],
            filter_string=f"tags.`checkpoint.sha256` = '{digest}'",
            order_by=[{"field_name": "creation_time", "ascending": False}],
            max_results=1,
        )
        return found[0].model_id if found else None

    def _linked_model(self, path: str, digest: str) -> str:
        """The checkpoint's LoggedModel, made if there is none, as an output of the run."""
        model = self._find_model(digest)
        if model is None:
            tags = {"checkpoint.sha256": digest, "checkpoint.path": path}
            made = mlflow.create_external_model(Path(path).name, self.run, tags, experiment_id=self.experiment)
            model = made.model_id
        self.client.log_outputs(self.run, [LoggedModelOutput(model, step=0)])
        return model


def datasets(inputs: Mapping[str, str]) -> list[DatasetInput]:
    """Files and folders by path, with their sha256, as a run's datasets; the context says which part of the data:
    ``train`` of ``artifacts/corpus/splits/train.parquet``, ``tokens`` of ``artifacts/tokens``."""

    def context(path: Path) -> str:
        if paths.ARTIFACTS not in path.parents:
            return "input"
        return path.stem if path.parent == paths.CORPUS else path.parts[1]

    return [
        DatasetInput(
            # MLflow does not shorten a digest and refuses one of more than 36 characters.
            Dataset(path, digest[:36], "local", json.dumps({"uri": path}), profile=json.dumps({"sha256": digest})),
            tags=[InputTag("mlflow.data.context", context(Path(path))), InputTag("sha256", digest)],
        )
        for path, digest in inputs.items()
    ]


def flat(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested parameters by their dotted names."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
