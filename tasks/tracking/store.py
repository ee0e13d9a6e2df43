"""Where MLflow keeps runs: the store and its experiment. Used by the recorder."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from plm_core.shared.stores import KIND, absolute, alone, artifacts_of
from tasks.settings import params
from tasks.tracking.presentation import tags

if TYPE_CHECKING:
    from mlflow import MlflowClient


def connect() -> tuple["MlflowClient", str]:
    """Open the store that ``MLFLOW_TRACKING_URI`` or ``params.yaml`` names; returns the experiment's id too."""
    settings = params.read("tracking")
    import mlflow
    import mlflow.store.db.utils

    # A database that does not answer would otherwise be tried for 100 s.
    mlflow.store.db.utils.MAX_RETRY_COUNT = 2
    uri = absolute(os.environ.get("MLFLOW_TRACKING_URI") or settings["uri"], Path.cwd())
    mlflow.set_tracking_uri(uri)
    with alone(uri):
        client = mlflow.MlflowClient()
        return client, _experiment(client, settings["experiment"], artifacts_of(uri))


def page_of(client: "MlflowClient", experiment: str, run: str) -> str:
    """Where MLflow shows a run: on its server or, of a file, where ``plm ui mlflow`` serves it."""
    uri = client.tracking_uri
    server = uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{server}/#/experiments/{experiment}/runs/{run}"


def _experiment(client: "MlflowClient", name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            client.create_experiment(name, artifact_location=artifacts, tags=KIND)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another stage was faster
                raise
        found = client.get_experiment_by_name(name)
    assert found is not None
    for key, value in tags(found.experiment_id, found.tags).items():
        client.set_experiment_tag(found.experiment_id, key, value)
    return found.experiment_id
