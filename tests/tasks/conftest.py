"""The graph run once in a small copy of the project, copies of the result, stores of MLflow."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
from projects import Project, source, write_data

PARAMS = "tracking: {uri: 'sqlite:///artifacts/mlflow/mlflow.db', experiment: plm}\n"


@pytest.fixture(scope="session")
def built(tmp_path_factory, documents):
    """The whole graph, run once for all processes that run tests. Not to be written to."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        project = Project(folder / "project")
        if not (project.root / "repro.log").exists():
            source(project.root)
            write_data(project.root / "data", documents)
            project.change(sources__own__id_field="key")
            project.run("dvc", "init", "--no-scm", "--quiet")
            (project.root / ".dvc/config").write_text(
                "[core]\n    analytics = false\n    check_update = false\n    no_scm = true\n"
            )
            (project.root / "repro.log").write_text(project.reproduce())
    return project


@pytest.fixture
def small(built, tmp_path):
    """A copy of the built project, to be changed at will."""
    return built.copied(tmp_path / "project")


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """A store whose tables exist: making them takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "params.yaml").write_text(PARAMS)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    body = "from tasks.publishing.mlflow_run import connect; connect()"
    subprocess.run([sys.executable, "-c", body], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "artifacts/mlflow/mlflow.db"


@pytest.fixture
def folder(fresh, database):
    """A repository's folder with an empty store."""
    (fresh / "artifacts/mlflow").mkdir(parents=True)
    shutil.copy(database, fresh / "artifacts/mlflow/mlflow.db")
    with sqlite3.connect(fresh / "artifacts/mlflow/mlflow.db") as copy:
        copy.execute("delete from experiment_tags")
        copy.execute("delete from experiments where name = 'plm'")
    return fresh


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A repository's folder without a store, and a clean environment."""
    for name in ("MLFLOW_TRACKING_URI", "PLM_TRACKING", "PLM_PARENT_RUN_ID", "PLM_STAGE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path
