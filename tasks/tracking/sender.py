"""From the journal of a run to the run in MLflow. Used by the recorder.

All of it may be done twice: MLflow keeps a point of the same name, value, time and step once, a run is found by the
key of its journal and a checkpoint by its digest. So whatever failed is done again, from what was acknowledged last.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from plm_core.shared import paths
from plm_core.shared.stores import BY_JOURNAL
from tasks.tracking import service
from tasks.tracking.journal import Journal, Sent, path_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric

BATCH = 1000
"""Points in a request: MLflow's largest batch."""

JOURNAL_TAG = "plm.journal"
"""The tag of a run that holds the key of its journal."""

REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE")
"""MLflow's errors that every other try would meet again."""


class NotYetError(Exception):
    """The parent's run is still to be created, by its own recorder."""


class Sender:
    """Sends one journal to one run."""

    def __init__(
        self, journal: Journal, client: "MlflowClient", experiment: str, unkept: list[dict[str, Any]] | None = None
    ) -> None:
        """``unkept`` are the last messages of the run, which the disk did not take."""
        self.journal, self.client, self.experiment = journal, client, experiment
        self.unkept = unkept or []
        self.sent = journal.sent()
        self._points: list[Metric] = []
        self._told = False

    @property
    def run(self) -> str:
        """The run's id. It exists once the first message, ``open``, is sent."""
        assert self.sent.run is not None
        return self.sent.run

    def send(self) -> None:
        """Send what MLflow has not. Raises MlflowException; what was sent until then need not be sent again."""
        from mlflow.exceptions import MlflowException

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
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                self._remember(Sent())  # a new database: there the journal begins anew
            raise

    def close(self) -> None:
        """Give the run the status and the time of its end, and delete the journal unless its training may go on."""
        opening = self.journal.opening()
        status, when = self.journal.ending(self.unkept)
        if self.sent.run:
            self._take({"kind": "status", "status": status or "KILLED", "time": when})
        if opening.get("training") and status != "FINISHED":
            self._remember(Sent(self.run, self.sent.offset, closed=True))
        else:
            self.journal.discard()

    def _take(self, message: Mapping[str, Any]) -> None:
        """Do what a message asks; what MLflow refuses of it must not keep what comes after."""
        from mlflow.exceptions import MlflowException

        kind = message["kind"]
        try:
            if kind == "open":
                self._open(message)
            elif kind == "metrics":
                self._add(message["points"], model=None)
            elif kind == "status":
                self.client.set_terminated(self.run, message["status"], end_time=message["time"])
            elif kind == "resume":
                self.client.update_run(self.run, status="RUNNING")
                self._log_tags(message["tags"])
            elif kind == "tags":
                self._log_tags(message["tags"])
            elif kind == "checkpoint":
                self._add(message["points"], self._linked_model(message["path"], message["digest"]))
            elif kind == "checkpoint_metrics":
                self._add(message["points"], self._find_model(message["digest"]))
        except MlflowException as error:
            if not refuses(error) or self.sent.run is None:
                raise
            self._tell_refused(kind, error)

    def _add(self, points: list[list[Any]], model: str | None) -> None:
        from mlflow.entities import Metric

        self._points.extend(Metric(name, value, when, step, model_id=model) for name, value, when, step in points)

    def _deliver(self, offset: int) -> None:
        for start in range(0, len(self._points), BATCH):
            self._log(self._points[start : start + BATCH])
        self._points = []
        if offset != self.sent.offset:
            self._remember(Sent(self.sent.run, offset))

    def _log(self, points: "list[Metric]") -> None:
        """Send points; one that MLflow refuses must not keep the others."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(self.run, metrics=points, synchronous=True)
        except MlflowException as error:
            if not refuses(error):
                raise
            if len(points) == 1 or self.client.get_run(self.run).info.lifecycle_stage != "active":  # deleted by a user
                self._tell_refused(points[0].key, error)
                return
            half = len(points) // 2
            self._log(points[:half])
            self._log(points[half:])

    def _tell_refused(self, what: str, error: Exception) -> None:
        if not self._told:
            service.warn(f"refuses {what}: {one_line(error)}; it is left out")
        self._told = True

    def _remember(self, sent: Sent) -> None:
        self.sent = sent
        self.journal.acknowledge(sent)

    def _open(self, opening: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        if self.sent.run is None:
            run = find_run(self.client, self.experiment, self.journal.key) or self._create_run(opening)
            self._remember(Sent(run))
        items = [Param(name, str(value)[:6000]) for name, value in flat(opening["params"])]
        for start in range(0, len(items), 100):
            self.client.log_batch(self.run, params=items[start : start + 100], synchronous=True)
        if opening["inputs"]:
            self.client.log_inputs(self.run, datasets(opening["inputs"]))

    def _create_run(self, opening: Mapping[str, Any]) -> str:
        tags = {**opening["tags"], JOURNAL_TAG: self.journal.key, "mlflow.user": psutil.Process().username()}
        if parent := self._parent(opening.get("parent")):
            tags["mlflow.parentRunId"] = parent
        made = self.client.create_run(
            self.experiment, start_time=opening["start_time"], tags=tags, run_name=opening["name"]
        )
        return made.info.run_id

    def _parent(self, name: str | None) -> str | None:
        if name is None or not name.startswith(BY_JOURNAL):
            return name
        key = name.removeprefix(BY_JOURNAL)
        parent = find_run(self.client, self.experiment, key)
        if parent is None and path_of(key).exists():
            raise NotYetError(f"the parent's run is not there yet ({path_of(key)})")
        return parent

    def _log_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        items = [RunTag(name, value) for name, value in tags.items()]
        for start in range(0, len(items), 100):
            self.client.log_batch(self.run, tags=items[start : start + 100], synchronous=True)

    def _find_model(self, digest: str) -> str | None:
        found = self.client.search_logged_models(
            [self.experiment],
            filter_string=f"tags.`checkpoint.sha256` = '{digest}'",
            order_by=[{"field_name": "creation_time", "ascending": False}],
            max_results=1,
        )
        return found[0].model_id if found else None

    def _linked_model(self, path: str, digest: str) -> str:
        """The checkpoint's LoggedModel, made where there is none, as an output of the run."""
        import mlflow
        from mlflow.entities import LoggedModelOutput

        tags = {"checkpoint.sha256": digest, "checkpoint.path": path}
        model = self._find_model(digest)
        if model is None:
            made = mlflow.create_external_model(Path(path).name, self.run, tags, experiment_id=self.experiment)
            model = made.model_id
        self.client.log_outputs(self.run, [LoggedModelOutput(model, step=0)])
        return model


def find_run(client: "MlflowClient", experiment: str, key: str) -> str | None:
    """The id of the run that has the journal with this key."""
    found = client.search_runs([experiment], f"tags.`{JOURNAL_TAG}` = '{key}'", max_results=1)
    return found[0].info.run_id if found else None


def datasets(inputs: Mapping[str, str]) -> "list[DatasetInput]":
    """Files and folders by path, with their sha256, as a run's datasets; the context says which part of the data."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return [
        DatasetInput(
            # MLflow cuts no digest and refuses one of more than 36 characters.
            Dataset(path, digest[:36], "local", json.dumps({"uri": path}), profile=json.dumps({"sha256": digest})),
            tags=[InputTag("mlflow.data.context", _context(Path(path))), InputTag("sha256", digest)],
        )
        for path, digest in inputs.items()
    ]


def _context(path: Path) -> str:
    """``train`` of ``artifacts/corpus/splits/train.parquet``, ``tokens`` of ``artifacts/tokens``."""
    if paths.ARTIFACTS not in path.parents:
        return "input"
    return path.stem if path.parent == paths.CORPUS else path.parts[1]


def refuses(error: Exception) -> bool:
    """Whether MLflow would refuse the same again."""
    return getattr(error, "error_code", None) in REFUSED


def one_line(error: BaseException) -> str:
    """What an error says, in a line that is not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def flat(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested parameters by their dotted names."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
