"""Toy DVC repositories whose stages are small programs, and one real Prefect server for the session."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from ears import Hook, serving
from toys import free_port, start_server

from flows.schedule import prefect_server

QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PLM_TRACKING": "off",
    "PLM_CORES": "4",
}

Toy = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def prefect_home(tmp_path_factory) -> Iterator[Path]:
    """A Prefect home of the tests' own; set before anything imports Prefect."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIET, "PREFECT_HOME": str(home)}.items():
            patch.setenv(name, value)
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("PLM_NOTIFY_URLS", raising=False)
        yield home


@pytest.fixture(scope="session")
def prefect_url(prefect_home) -> Iterator[str]:
    """A standing server with its scheduler, in a process group of its own."""
    process, url = start_server(prefect_home, free_port())
    try:
        yield url
    finally:
        prefect_server.send_what_is_left()
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def on_server(prefect_url, monkeypatch) -> Iterator[str]:
    """This process's flows report to the standing server, however early something imported Prefect."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_url, PREFECT_HOME: os.environ["PREFECT_HOME"]}):
        yield prefect_url


@pytest.fixture(scope="session")
def empty_repository(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("empty")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=root, check=True)
    (root / ".dvc/config").write_text("[core]\n    analytics = false\n    autostage = false\n")
    return root


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """A database of MLflow with all tables and no experiment of ours: making them takes seconds."""
    import mlflow

    from flows.registry.mlflow_client import environment

    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    uri = f"sqlite:///{database}"
    with environment():
        mlflow.MlflowClient(uri, uri).create_registered_model("plm")
    return database


@pytest.fixture
def toy(tmp_path, empty_repository) -> Toy:
    """Makes a repository from the text of ``dvc.yaml`` and of other files."""

    def make(dvc_yaml: str, **files: str) -> Path:
        root = tmp_path / "toy"
        shutil.copytree(empty_repository, root)
        (root / "dvc.yaml").write_text(dvc_yaml)
        for name, text in files.items():
            (root / name.replace("_", ".")).write_text(text)
        return root

    return make


@pytest.fixture
def hook() -> Iterator[ThreadingHTTPServer]:
    """A web server that keeps what is posted to it."""
    yield from serving(ThreadingHTTPServer(("127.0.0.1", 0), Hook))
