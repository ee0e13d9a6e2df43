"""Stages of a few lines that are tracked by MLflow, a real MLflow server to kill, and what MLflow has at the end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import mlflow
import psutil

from tasks.tracking.mlflow_stores import PUBLISHER


def start(folder, body, **environment):
    """Start a stage whose code is ``body``."""
    head = (
        "import os, resource, signal, sys, time\nfrom pathlib import Path\nfrom tasks.tracking.tracker import tracked\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + body],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stage(folder, body, **environment):
    process = start(folder, body, **environment)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def use(uri, patch):
    """Make this MLflow's own store, also where an earlier test in this process has named another."""
    patch.setenv("MLFLOW_TRACKING_URI", uri)
    patch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", uri)
    patch.setattr("mlflow.tracking._model_registry.utils._registry_uri", uri)


def client_of(folder):
    return mlflow.MlflowClient(f"sqlite:///{folder}/artifacts/mlflow/mlflow.db")


def runs_of(client):
    experiment = client.get_experiment_by_name("plm")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def status_of(client):
    """The status of each run by its name."""
    return {run.info.run_name: run.info.status for run in runs_of(client)}


def points_of(client, run, name="loss"):
    """The points of a metric as (step, value), in the order of steps."""
    return sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, name))


def journals(folder):
    return sorted((folder / "artifacts/journals").glob("*.jsonl"))


def sent(folder):
    """Wait until MLflow has everything: stages do not."""
    wait_until(lambda: journals(folder) == [])


def leftovers(folder, **environment):
    """Have what waits sent; returns what is said about it."""
    command, environment = PUBLISHER, os.environ | environment
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def publishers_of(folder):
    """The processes that publish this folder's journals."""
    publishers = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if "tasks.publishing.publisher" in (process.info["cmdline"] or ()) and process.cwd() == str(folder):
                publishers.append(process)
    return publishers


def wait_until(condition):
    """A stage that is killed does not wait for its publisher."""
    deadline = time.monotonic() + 1800
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


class Server:
    """A real MLflow server on a database of its own; it can be killed, and started again at the same address."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.address, self.process = folder, f"http://127.0.0.1:{self.port}", None

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/m.db"]
        command += ["--artifacts-destination", str(self.folder / "files")]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self.process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers)

    def kill(self):
        """Kill all of it: the parent alone would leave its worker serving."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _answers(self):
        try:
            with urllib.request.urlopen(f"{self.address}/version", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
