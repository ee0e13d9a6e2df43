"""Where MLflow keeps runs: the store and its experiment. Used by the recorder."""

import os
from pathlib import Path

import mlflow
import mlflow.store.db.utils
from mlflow import MlflowClient

from plm_core.shared.stores import absolute, alone, artifacts_of, experiment_tags, require_active, shown
from tasks.settings import params
from tasks.tracking.presentation import tags


def connect() -> tuple[MlflowClient, str]:
    """Open the store that ``MLFLOW_TRACKING_URI`` or ``params.yaml`` names; returns the experiment's id too.

    Raises UserError: a person has to mend it first."""
    settings = params.read("tracking")
    # A database that does not answer would otherwise be tried for 100 s.
    mlflow.store.db.utils.MAX_RETRY_COUNT = 2
    uri = absolute(os.environ.get("MLFLOW_TRACKING_URI") or settings["uri"], Path.cwd())
    mlflow.set_tracking_uri(uri)
    with alone(uri, _create):
        client = MlflowClient()
        found = client.get_experiment_by_name(settings["experiment"])
        require_active(found, uri)
        # On a server another checkout may be faster: this fails then, and finds it the next time.
        experiment = (
            found.experiment_id
            if found
            else client.create_experiment(settings["experiment"], artifacts_of(uri), experiment_tags(uri))
        )
        for key, value in tags(experiment, found.tags if found else {}).items():
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
