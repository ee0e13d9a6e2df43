"""MLflow shows a stage and never disturbs it: real stores, a real server that dies, real signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import pytest

PARAMS = "tracking: {uri: 'sqlite:///artifacts/mlflow/mlflow.db', experiment: plm}\n"
DIGEST = "d" * 64

FULL = f"""
with tracked("pretrain-gpt", {{"pretrain": {{"lr": 0.1, "betas": [0.9, 0.95]}}}}, {{"data/tokens": "{"f" * 64}"}}) as t:
    for step in range(50):
        t.log({{"loss": 1.0 / (step + 1), "odd": float("nan")}}, step)
    t.checkpoint(Path("artifacts/models/gpt"), "{DIGEST}", {{"bits_per_byte": 2.5}})
    t.checkpoint_metrics("{DIGEST}", {{"accuracy": 0.5}})
    t.summary({{"bits_per_byte": 2.5, "best_step": 40}})
    t.outputs({{"artifacts/models/gpt": "{"e" * 64}"}})
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository's folder with a clean environment."""
    for name in ("MLFLOW_TRACKING_URI", "PLM_TRACKING", "PLM_PARENT_RUN_ID", "PLM_STAGE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def start(folder, body, **environment):
    """Start a stage whose code is ``body``."""
    head = "import os, sys, time, signal\nfrom pathlib import Path\nfrom tasks.seam.tracking import tracked\n"
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
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def client_of(folder):
    return mlflow.MlflowClient(f"sqlite:///{folder}/artifacts/mlflow/mlflow.db")


def runs_of(client):
    return client.search_runs([client.get_experiment_by_name("plm").experiment_id])


def test_a_run_shows_all_that_the_stage_did(project):
    done = stage(project, FULL, PLM_PARENT_RUN_ID="a" * 32, PLM_STAGE="pretrain@gpt")
    assert (done.returncode, done.stderr) == (0, "")
    client = client_of(project)
    (run,) = runs_of(client)
    assert run.info.run_name == "pretrain-gpt"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"pretrain.lr": "0.1", "pretrain.betas": "[0.9, 0.95]"}
    assert run.data.tags["mlflow.parentRunId"] == "a" * 32
    assert run.data.tags["dvc.stage"] == "pretrain@gpt"
    assert run.data.tags["output.artifacts/models/gpt"] == "e" * 64
    assert run.data.metrics["best_step"] == 40
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(range(50))
    assert len(client.get_metric_history(run.info.run_id, "bits_per_byte")) == 1
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("data/tokens", "f" * 36)
    assert {tag.key: tag.value for tag in dataset.tags}["sha256"] == "f" * 64
    experiment = client.get_experiment_by_name("plm")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.artifact_location == (project / "artifacts/mlflow/artifacts").as_uri()
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert (model.name, model.source_run_id) == ("gpt", run.info.run_id)
    assert model.tags["checkpoint.sha256"] == DIGEST
    assert {metric.key: metric.value for metric in model.metrics} == {"bits_per_byte": 2.5, "accuracy": 0.5}
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]


def test_off_means_that_mlflow_is_neither_imported_nor_run(project):
    body = FULL + "print('mlflow' in sys.modules, len(os.listdir('/proc/self/task')))"
    begin = time.monotonic()
    done = stage(project, body, PLM_TRACKING="off")
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", "False")
    assert time.monotonic() - begin < 5
    assert not (project / "artifacts").exists()


@pytest.mark.parametrize(
    ("ending", "status", "code"),
    [
        ("raise ValueError('x')", "FAILED", 1),
        ("sys.exit(2)", "FAILED", 2),
        ("sys.exit(75)", "KILLED", 75),
        ("raise KeyboardInterrupt", "KILLED", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", "KILLED", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", "KILLED", -signal.SIGKILL),
    ],
)
def test_the_status_is_how_the_stage_ended(project, ending, status, code):
    done = stage(project, f"with tracked('clean', {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 3)\n    {ending}")
    assert done.returncode == code
    client = client_of(project)
    deadline = time.monotonic() + 60  # a stage that is killed does not wait for its recorder
    while not (project / "artifacts").exists() or not _ended(client):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (run,) = runs_of(client)
    assert run.info.status == status
    assert run.data.metrics == {"x": 1.0}


def _ended(client):
    experiment = client.get_experiment_by_name("plm")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    return bool(runs) and runs[0].info.status != "RUNNING"


def test_three_stages_may_open_a_new_database_at_once(project):
    body = "with tracked(sys.argv[0], {}, {}) as t:\n    t.log({'x': 1.0}, 0)"
    for process in [start(project, body) for _ in range(3)]:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    assert [run.info.status for run in runs_of(client_of(project))] == ["FINISHED"] * 3


def test_a_run_whose_recorder_died_is_closed_by_the_next(project):
    first = start(project, "with tracked('one', {}, {}) as t:\n    print(t._recorder.pid, flush=True)\n    time.sleep(300)")
    recorder = int(first.stdout.readline())
    client = client_of(project)
    while not (project / "artifacts").exists() or not _running(client):
        time.sleep(0.5)
    os.kill(recorder, signal.SIGKILL)
    first.kill()
    first.communicate()
    assert stage(project, "with tracked('two', {}, {}):\n    pass").returncode == 0
    assert {run.info.run_name: run.info.status for run in runs_of(client)} == {"one": "KILLED", "two": "FINISHED"}


def _running(client):
    experiment = client.get_experiment_by_name("plm")
    return bool(experiment and client.search_runs([experiment.experiment_id]))


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://127.0.0.1:9", "MlflowException: API request to http://127.0.0.1:9"),
        ("sqlite:////proc/none/mlflow.db", "No such file or directory: '/proc/none'"),
        ("sqlite:///params.yaml", "file is not a database"),
        ("nonsense://x", "nonsense"),
        ("postgresql+psycopg2://127.0.0.1:9/x", "warning: MLflow: "),
    ],
)
def test_an_mlflow_that_cannot_be_used_costs_one_line_and_little_time(project, uri, says):
    begin = time.monotonic()
    done = stage(project, FULL + "print('written')", MLFLOW_TRACKING_URI=uri)
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert says in done.stderr
    assert done.stderr.startswith("warning: MLflow: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert time.monotonic() - begin < 30


def test_a_wrong_section_of_params_costs_one_line(project):
    (project / "params.yaml").write_text("other: {}\n")
    done = stage(project, FULL + "print('written')")
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert done.stderr.startswith("warning: MLflow: BadInput: tracking: no such section in params.yaml")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def server(tmp_path):
    """A real server; yields its address and a function that kills all of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/m.db", "--artifacts-destination", str(folder / "files")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)

    def kill():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while not _answers(address):
            assert time.monotonic() < deadline
            time.sleep(0.3)
        yield address, kill
    finally:
        kill()


def _answers(address):
    try:
        with urllib.request.urlopen(f"{address}/version", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_a_server_that_dies_while_a_stage_logs_does_not_disturb_it(project, server):
    address, kill = server
    body = """
begin = time.monotonic()
with tracked("pretrain", {}, {}) as t:
    for step in range(120):
        t.log({"loss": 1.0}, step)
        time.sleep(0.1)
    Path("output").write_text("the same")
print(time.monotonic() - begin)
"""
    process = start(project, body, MLFLOW_TRACKING_URI=address)
    client = mlflow.MlflowClient(address)
    while not _running(client):
        time.sleep(0.2)
    run = client.search_runs([client.get_experiment_by_name("plm").experiment_id])[0].info.run_id
    while not client.get_metric_history(run, "loss"):
        time.sleep(0.2)
    kill()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0
    assert (project / "output").read_text() == "the same"
    assert float(out) < 12 + 15, "12 s of work"
    assert err.startswith("warning: MLflow: MlflowException: API request to ")
    assert err.count("\n") == 1, err


def test_a_server_that_never_answers_does_not_hold_a_stage_up(project):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begin = time.monotonic()
        done = stage(
            project,
            FULL + "print('written')",
            MLFLOW_TRACKING_URI=f"http://127.0.0.1:{silent.getsockname()[1]}",
            MLFLOW_HTTP_REQUEST_TIMEOUT="2",
        )
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - begin < 30


def test_a_stage_of_some_seconds_has_system_metrics(project):
    assert stage(project, "with tracked('x', {}, {}):\n    time.sleep(11)").returncode == 0
    (run,) = runs_of(client_of(project))
    assert "system/cpu_utilization_percentage" in run.data.metrics


def test_the_stage_does_not_wait_while_mlflow_is_imported(project):
    body = """
begin = time.monotonic()
with tracked("x", {}, {}) as t:
    for step in range(1000):
        t.log({"loss": 1.0}, step)
    print(time.monotonic() - begin)
"""
    done = stage(project, body)
    assert float(done.stdout) < 1
    client = client_of(project)
    assert len(client.get_metric_history(runs_of(client)[0].info.run_id, "loss")) == 1000


def test_git_state_is_on_the_run(project):
    git = ["git", "-c", "user.email=a@example.org", "-c", "user.name=a"]
    (project / "dvc.lock").write_text("a")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=project, check=True)
    (project / "dvc.lock").write_text("b")  # the pipeline writes this itself
    body = "with tracked('x', {}, {}):\n    pass\n"
    assert stage(project, body).returncode == 0
    (project / "params.yaml").write_text(PARAMS + "more: 1\n")
    assert stage(project, body).returncode == 0
    client = client_of(project)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    found = [(run.data.tags["mlflow.source.git.commit"], run.data.tags["git.dirty"]) for run in runs_of(client)]
    assert sorted(found) == [(head.stdout.strip(), "false"), (head.stdout.strip(), "true")]
