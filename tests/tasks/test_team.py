"""A team's servers from packages, and the whole pipeline against them, as who may write and as who may only read.

It needs the extra ``team`` and PostgreSQL's server.
"""

import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import psutil
import pytest
from mlflow.exceptions import MlflowException
from mlflows import use, wait_until
from projects import ROOT, Project, source, write_data

sys.path.append(str(ROOT / "infra/team"))
import prepare
import ready

PROGRAMS = [Path(sys.executable).with_name(name) for name in ("caddy", "supervisord", "weed")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(Path.exists, PROGRAMS)), reason="the extra team is not installed (make .team)"),
    pytest.mark.skipif(
        not (shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))),
        reason="no PostgreSQL server on this machine",
    ),
]


def free_ports(many):
    """The first of this many ports in a row that nobody listens on."""
    while True:
        first = random.randrange(20000, 30000)
        taken = []
        try:
            for port in range(first, first + many):
                taken.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for listener in taken:
                listener.close()


def start(folder):
    return subprocess.Popen(
        [PROGRAMS[1], "--configuration", ROOT / "infra/team/supervisord.conf"],
        env={**os.environ, "TEAM": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(servers):
    """End them as Ctrl-C does; none may stay."""
    family = psutil.Process(servers.pid).children(recursive=True)
    servers.send_signal(signal.SIGINT)
    servers.communicate()
    assert psutil.wait_procs(family)[1] == []


def status(url, authority):
    """A server's answer to a request without a password."""
    try:
        with urllib.request.urlopen(url, context=ssl.create_default_context(cafile=authority)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def team():
    """The folder of a team, whose servers run, and the process that runs them."""
    # PostgreSQL, which is never root, could not enter a folder of pytest's.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        prepare.prepare(folder, "localhost", free_ports(len(prepare.PORTS)), "internal")
        servers = start(folder)
        try:
            prefix = "the team's servers answer: MLflow https://localhost:"
            assert any(line.startswith(prefix) for line in servers.stdout)
            yield folder, servers
        finally:
            end(servers)


@pytest.mark.timeout(1200)
def test_the_whole_pipeline_runs_against_a_team_s_servers(team, tmp_path, documents, monkeypatch):
    """One test, because the servers take half a minute to start and the pipeline a minute to run."""
    folder, servers = team
    writer, reader = (ready.settings(folder, name) for name in ("writer", "reader"))
    project = Project(source(tmp_path / "project"))
    write_data(project.root / "data", documents)
    project.change(sources__own__id_field="key", finetune__seeds=[1])
    project.run("dvc", "init", "--no-scm", "--quiet")
    project.run("dvc", "remote", "add", "--default", "team", "s3://dvc/project")
    project.run("flows.cli", "run", PLM_TRACKING="on", **writer)
    project.run("dvc", "push", **writer)
    assert flow_runs(writer) == ["COMPLETED"]
    for name, value in reader.items():
        monkeypatch.setenv(name, value)
    use(reader["MLFLOW_TRACKING_URI"], monkeypatch)
    reads_what_was_made()
    changes_nothing()
    fetches_data_and_pushes_none(project, reader, tmp_path / "copy")
    nobody_gets_in_without_a_password(reader, writer["PREFECT_API_URL"])
    no_password_is_shown(folder, psutil.Process(servers.pid).children(recursive=True))
    a_server_that_dies_comes_back(folder, psutil.Process(servers.pid).children(recursive=True), reader)


def flow_runs(writer):
    code = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(*(run.state.type.value for run in client.read_flow_runs()))
"""
    environment = {**os.environ, **writer}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def reads_what_was_made():
    client = mlflow.MlflowClient()
    assert client.get_model_version_by_alias("plm", "champion").version == "1"
    experiment = client.get_experiment_by_name("plm").experiment_id
    assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
    datasets = mlflow.utils.rest_utils.http_request(  # which the page of runs asks for, and the client does not
        mlflow.utils.credentials.get_default_host_creds(mlflow.get_tracking_uri()),
        "/ajax-api/2.0/mlflow/experiments/search-datasets",
        "POST",
        json={"experiment_ids": [experiment]},
    )
    assert datasets.status_code == 200
    assert len(mlflow.pyfunc.load_model("models:/plm@champion").predict([{"text": "Ba"}])) == 1


def changes_nothing():
    client = mlflow.MlflowClient()
    version = client.get_model_version_by_alias("plm", "champion")
    for change in (
        lambda: client.create_experiment("mine"),
        lambda: client.create_registered_model("mine"),
        lambda: client.log_metric(version.run_id, "x", 1.0),
        lambda: client.set_registered_model_alias("plm", "challenger", version.version),
        lambda: client.delete_model_version("plm", version.version),
    ):
        with pytest.raises(MlflowException, match="Permission denied"):
            change()


def fetches_data_and_pushes_none(project, reader, target):
    copy = project.copied(target)
    shutil.rmtree(copy.root / ".dvc/cache")
    shutil.rmtree(copy.root / "artifacts/models")
    copy.run("dvc", "pull", "pretrain@gpt", **reader)
    assert copy.files("artifacts/models") == project.files("artifacts/models") != {}
    (copy.root / "artifacts/models/gpt/more").write_text("of the reader's")
    copy.run("dvc", "commit", "--force", "pretrain@gpt")
    assert "failed to push" in copy.run("dvc", "push", "pretrain@gpt", code=1, **reader)[1]


def nobody_gets_in_without_a_password(reader, prefect):
    assert "PREFECT_API_AUTH_STRING" not in reader
    mlflows = f"{reader['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/get?experiment_id=0"
    places = (mlflows, f"{prefect}/version", f"{reader['AWS_ENDPOINT_URL']}/dvc")
    assert [status(place, reader["AWS_CA_BUNDLE"]) for place in places] == [401, 401, 403]
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        status(mlflows, None)


def no_password_is_shown(folder, processes):
    commands = " ".join(" ".join(process.cmdline()) for process in processes)
    assert "postgres" in commands
    words = json.loads((folder / "secrets/passwords.json").read_text()).values()
    assert not [word for word in words if word in commands]
    places = [*folder.iterdir(), *(folder / "postgres").iterdir()]
    assert all(place.is_dir() and place.stat().st_mode & 0o66 == 0 for place in places)
    assert [place.name for place in places if place.stat().st_mode & 0o11] == ["postgres"]  # all inside is closed
    listening = {
        connection.laddr.ip
        for process in processes
        if process.name() != "caddy"
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def a_server_that_dies_comes_back(folder, processes, reader):
    (database,) = (process for process in processes if process.name() == "postgres" != process.parent().name())
    database.kill()
    wait_until(lambda: not database.is_running())

    def champion():
        try:
            return mlflow.MlflowClient().get_model_version_by_alias("plm", "champion").version == "1"
        except MlflowException:
            return False

    wait_until(champion)
    # Settings that are made again have the passwords of before.
    prepare.prepare(folder, "localhost", int(reader["MLFLOW_TRACKING_URI"].rsplit(":")[-1]), "internal")
    assert ready.settings(folder, "reader") == reader
