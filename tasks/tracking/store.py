"""Where MLflow keeps runs, and how their experiment looks in its UI. Used by the publisher.

An experiment has a note that says what to look at, and views with the columns that matter. The default view shows
MLflow's own columns and cannot be configured: the UI keeps it in the browser. What can be set are saved views (MLflow
3.15), in the menu `Views` and by links in the note; they are tags of the experiment.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import NamedTuple

import mlflow
import mlflow.store.db.utils
from mlflow import MlflowClient

from plm_core.config import UserError
from plm_core.shared.stores import NOTE, alone, artifacts_of, experiment_tags, require_active, shown
from plm_core.templates import render
from tasks.settings import params
from tasks.tracking.client import address


def connect() -> tuple[MlflowClient, str]:
    """Open the store at ``address``; returns the experiment's id too. Raises UserError: a person has to mend it."""
    uri, name = address()
    # A database that does not answer would otherwise be tried for 100 s.
    mlflow.store.db.utils.MAX_RETRY_COUNT = 2
    mlflow.set_tracking_uri(uri)
    with alone(uri, _create):
        client = MlflowClient()
        found = client.get_experiment_by_name(name)
        require_active(found, uri)
        # On a server another checkout may be faster: this fails then, and finds it the next time.
        experiment = (
            found.experiment_id if found else client.create_experiment(name, artifacts_of(uri), experiment_tags(uri))
        )
        for key, value in _tags(experiment, found.tags if found else {}).items():
            client.set_experiment_tag(experiment, key, value)
        return client, experiment


def _create(uri: str, artifacts: str) -> None:
    """Create a SQLite store. Only a new project needs this import."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(uri, artifacts)


def page_of(client: MlflowClient, experiment: str, run: str) -> str:
    """The address of a run's page: on MLflow's server or, for a file, where ``plm ui mlflow`` serves it."""
    uri = shown(client.tracking_uri)
    server = uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{server}/#/experiments/{experiment}/runs/{run}"


class View(NamedTuple):
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


def _tags(experiment: str, present: Mapping[str, str]) -> dict[str, str]:
    """The tags that an experiment with this id lacks. An existing note stays: a person may have written it."""
    views = _views()
    wanted = {f"mlflow.sharedViewState.{name}": view.tag() for name, view in views.items()}
    if NOTE not in present:
        wanted[NOTE] = render("tasks/tracking/templates/experiment.md.j2", experiment=experiment, views=views)
    return {name: value for name, value in wanted.items() if present.get(name) != value}


def _views() -> dict[str, View]:
    """The views, by their names in addresses."""

    def columns(kind: str, *names: str) -> list[str]:
        return [f"{kind}.`{name}`" for name in names]

    compared = ["score"]  # the metrics that the gate may compare
    with contextlib.suppress(UserError, TypeError):
        compared += [f"{task}/score" for task in params.read("finetune.tasks")]
        compared += params.read("promotion.metrics")
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
        "models": View("Models, as the gate saw them", "register", best, models),
        "pretrainings": View("Pretraining runs", "pretrain", latest, [*paper, *trained, *recipe, *origin]),
        "fine-tunings": View("Fine-tuning runs, by model and task", "finetune", best, tuned, ("plm.model", "plm.task")),
    }
