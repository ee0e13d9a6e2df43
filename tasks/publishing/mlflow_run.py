"""A run on its way from its journal to MLflow, and how its experiment looks there. Used by the publisher, which imports
it when there is a run to publish.

``Run.publish`` is idempotent: MLflow keeps a point of the same name, value, time and step once, and a run is found by
the key of its journal. So whatever failed is repeated, in a new process from the beginning.

An experiment has a note that says what to look at, and views with the columns that matter. The default view shows
MLflow's own columns and cannot be configured: the UI keeps it in the browser. What can be set are saved views (MLflow
3.15), in the menu `Views` and by links in the note; they are tags of the experiment.
"""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import mlflow.store.db.utils
import psutil
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from plm_core.config import UserError
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.tracking import mlflow_stores
from tasks.tracking.mlflow_stores import BY_JOURNAL, NOTE, exclusive, without_credentials
from tasks.tracking.run_journal import JOURNAL_TAG, messages, milliseconds
from tasks.tracking.tracker import one_line, warn

BATCH = 1000
"""Points in a request: MLflow's largest batch."""

REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE")
"""MLflow's errors that a retry would meet again."""


class Run:
    """One journal, and how far MLflow has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = ""
        """The run's id, once it exists."""
        self.offset = 0
        """Bytes of the journal that this process has published."""
        self.opening: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        """Its last message, if that says how the run ended."""
        self.due = 0.0
        """When it is published again, unless it has ended before."""
        self.failed = False
        """Whether it could not be published the last time."""
        self._points: list[Metric] = []
        self._warned = False

    @property
    def age_s(self) -> float:
        """Seconds since the run began."""
        return max(0.0, milliseconds() - self.opening.get("start_time", milliseconds())) / 1000

    def publish(self, client: MlflowClient, experiment: str, living: bool, system: Mapping[str, float]) -> None:
        """Send what MLflow does not have yet, and the status of a run that has ended.

        ``system`` is what the machine of a living run does now. Raises what MLflow raises.
        """
        self.client, self.experiment = client, experiment
        self._points = []
        end = self.offset
        damaged = 0
        for message, end in messages(self.path, self.offset):
            self._take(message)
            damaged += message["kind"] == "damaged"
            if len(self._points) >= BATCH:
                self._deliver(end)
        if self.opening.get("tags", {}).get("plm.host") == socket.gethostname():
            now = milliseconds()
            self._points += [Metric(f"system/{name}", value, now, int(self.age_s)) for name, value in system.items()]
        self._deliver(end)
        if not living and self.id:
            ending = self.end or {"status": "KILLED", "time": self.path.stat().st_mtime_ns // 1_000_000}
            self._take(ending | {"kind": "status"})
        if damaged:
            warn(f"{self.path}: {damaged} damaged lines are left out")

    def _take(self, message: Mapping[str, Any]) -> None:
        """Send a message, or collect its points; what MLflow refuses of it must not hold up what follows. A resumed run
        is opened again."""
        try:
            match message["kind"]:
                case "open":
                    self.opening = self.opening or dict(message)
                    self.end = {}
                    self.client.update_run(self._existing(), status="RUNNING")
                    self._log("tags", [RunTag(name, value) for name, value in message["tags"].items()])
                    self._log("params", [Param(name, str(value)[:6000]) for name, value in flatten(message["params"])])
                    if message["inputs"]:
                        self.client.log_inputs(self.id, datasets(message["inputs"]))
                    if message.get("training"):
                        with contextlib.suppress(OSError):  # a full disk: the page of the meters does without
                            page = page_of(self.client, self.experiment, self.id)
                            atomic_text(paths.RUN_LINKS / f"{message['name']}.txt", f"{page}\n")
                case "metrics":
                    self._points += [Metric(name, value, when, step) for name, value, when, step in message["points"]]
                case "tags":
                    self._log("tags", [RunTag(name, value) for name, value in message["tags"].items()])
                case "end":
                    self.end = dict(message)
                case "status":
                    self.client.set_terminated(self.id, message["status"], end_time=message["time"])
        except MlflowException as error:
            if error.error_code not in REFUSED or not self.id:
                raise
            self._warn_refused(message["kind"], error)

    def _deliver(self, offset: int) -> None:
        self._log("metrics", self._points)
        self._points = []
        self.offset = offset

    def _log(self, kind: str, items: Sequence[Any]) -> None:
        """Send metrics, params or tags; one that MLflow refuses must not hold up the others."""
        if not items:
            return
        try:
            self.client.log_batch(self._existing(), **{kind: items}, synchronous=True)
        except MlflowException as error:
            if error.error_code not in REFUSED:
                raise
            if len(items) == 1 or self.client.get_run(self.id).info.lifecycle_stage != "active":  # deleted by a user
                self._warn_refused(items[0].key, error)
                return
            half = len(items) // 2
            self._log(kind, items[:half])
            self._log(kind, items[half:])

    def _warn_refused(self, what: str, error: Exception) -> None:
        if not self._warned:
            warn(f"refuses {what}: {one_line(error)}; it is left out")
        self._warned = True

    def _existing(self) -> str:
        """The run's id, found by the key of the journal, or that of a new run."""
        key = self.path.stem
        self.id = self.id or self._find(key)
        if self.id:
            return self.id
        tags = {JOURNAL_TAG: key, "mlflow.user": psutil.Process().username()}
        parent = self.opening.get("parent") or ""
        if parent.startswith(BY_JOURNAL):
            path = self.path.with_name(f"{parent.removeprefix(BY_JOURNAL)}.jsonl")
            parent = self._find(path.stem)
            if not parent and path.exists():
                raise LookupError(f"the parent's run does not exist yet ({path})")
        if parent:
            tags["mlflow.parentRunId"] = parent
        name = self.opening.get("name", key)  # of a journal with a damaged beginning, as much as possible is shown
        run = self.client.create_run(self.experiment, self.opening.get("start_time"), tags, name)
        self.id = run.info.run_id
        return self.id

    def _find(self, key: str) -> str:
        runs = self.client.search_runs([self.experiment], f"tags.`{JOURNAL_TAG}` = '{key}'", max_results=1)
        return runs[0].info.run_id if runs else ""


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


def flatten(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested parameters by their dotted names."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def connect() -> tuple[MlflowClient, str]:
    """Open the store at ``address``; returns the experiment's id too. Raises UserError: a person has to fix it."""

    def create(uri: str, artifacts: str) -> None:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # which only a new project needs

        SqlAlchemyStore(uri, artifacts)

    uri, name = mlflow_stores.address()
    # A database that does not answer would otherwise be tried for 100 s.
    mlflow.store.db.utils.MAX_RETRY_COUNT = 2
    mlflow.set_tracking_uri(uri)
    with exclusive(uri, create):
        client = MlflowClient()
        # On a server, another checkout may create it first: then this fails, and finds it at the next try.
        experiment, present = mlflow_stores.experiment(client, uri, name)
        views = _views()
        wanted = {f"mlflow.sharedViewState.{name}": view.tag() for name, view in views.items()}
        if NOTE not in present:  # a person may have written another one
            wanted[NOTE] = render("tasks/publishing/templates/experiment.md.j2", experiment=experiment, views=views)
        for key, value in wanted.items():
            if present.get(key) != value:
                client.set_experiment_tag(experiment, key, value)
        return client, experiment


def page_of(client: MlflowClient, experiment: str, run: str) -> str:
    """The address of a run's page: on MLflow's server or, for a file, where ``plm ui mlflow`` serves it."""
    uri = without_credentials(client.tracking_uri)
    server = uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{server}/#/experiments/{experiment}/runs/{run}"


class ExperimentView(NamedTuple):
    """A table of the runs of one stage."""

    title: str
    stage: str
    sort: str
    """The column by which the runs are sorted, the highest first."""
    columns: list[str]
    groups: tuple[str, ...] = ()
    """The tags by which runs are grouped; the columns show the means of a group."""

    def tag(self) -> str:
        """The tag as MLflow's UI stores it."""
        keys = [{"mode": "tag", "groupByData": name} for name in self.groups]
        state = {
            "searchFilter": f"tags.`plm.stage` = '{self.stage}'",
            "orderByKey": self.sort,
            "orderByAsc": False,
            "selectedColumns": self.columns,
            "columnOrder": self.columns,
            "groupBy": {"aggregateFunction": "average", "groupByKeys": keys} if keys else None,
        }
        return json.dumps({"name": self.title, "createdAt": 0, "state": json.dumps(state)})


def _views() -> dict[str, ExperimentView]:
    """The views, by their names in addresses."""

    def columns(kind: str, *names: str) -> list[str]:
        return [f"{kind}.`{name}`" for name in names]

    compared = ["score"]  # the metrics that the gate may compare
    with contextlib.suppress(UserError, TypeError):
        compared += [f"{task}/score" for task in stage_parameters.read("finetune.tasks")]
        compared += stage_parameters.read("promotion.metrics")
    sizes = ("parameters", "positions", "seconds", "joules", "cost")
    paper = columns("tags", "plm.model", "plm.architecture", "plm.objective")
    learned = ("steps", "batch", "optimizer.name", "optimizer.learning_rate")
    recipe = columns("params", *(f"pretrain.training.{name}" for name in learned))
    origin = ["attributes.`Dataset`", *columns("tags", "plm.data"), "attributes.`Version`"]
    judged = [*columns("tags", "gate"), *columns("metrics", *dict.fromkeys([*compared, *sizes]))]
    trained = columns("metrics", "valid_loss", *sizes, "tokens_per_second")
    tuned = [*columns("tags", "plm.seed"), *columns("metrics", "score", "baseline", "examples", "best_step"), *origin]
    best, latest = "metrics.`score`", "attributes.start_time"
    models = ["attributes.`Models`", *paper, *judged, *recipe, *origin]
    return {
        "models": ExperimentView("Models, as the gate saw them", "register", best, models),
        "pretrainings": ExperimentView("Pretraining runs", "pretrain", latest, [*paper, *trained, *recipe, *origin]),
        "fine-tunings": ExperimentView(
            "Fine-tuning runs, by model and task", "finetune", best, tuned, ("plm.model", "plm.task")
        ),
    }
