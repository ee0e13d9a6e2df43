"""MLflow shows a stage and never disturbs it: real stores, a real server that dies, real signals."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request

import mlflow
import pytest

from tasks.seam import recorder, store, tracking

PARAMS = "tracking: {uri: 'sqlite:///artifacts/mlflow/mlflow.db', experiment: plm}\n"
DIGEST = "d" * 64

FULL = f"""
with tracked("pretrain-gpt", {{"pretrain": {{"lr": 0.1, "betas": [0.9, 0.95]}}}}, {{"data/tokens": "{"f" * 64}"}}) as t:
    begin = time.monotonic()
    for step in range(1000):
        t.log({{"loss": 1.0 / (step + 1), "odd": float("nan")}}, step)
    print("a moment" if time.monotonic() - begin < 1 else "slow")
    while "WAIT_FOR" in os.environ and not Path(os.environ["WAIT_FOR"]).exists():
        time.sleep(0.1)
    t.checkpoint(Path("artifacts/models/gpt"), "{DIGEST}", {{"bits_per_byte": 2.5}})
    t.checkpoint_metrics("{DIGEST}", {{"accuracy": 0.5}})
    t.summary({{"bits_per_byte": 2.5, "best_step": 40}})
    t.outputs({{"artifacts/models/gpt": "{"e" * 64}"}})
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A store whose tables exist: making them takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "params.yaml").write_text(PARAMS)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    body = "from tasks.seam.store import connect; connect()"
    subprocess.run([sys.executable, "-c", body], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "artifacts/mlflow/mlflow.db"


@pytest.fixture
def project(fresh, database):
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
    experiment = client.get_experiment_by_name("plm")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def test_a_run_shows_all_that_the_stage_did(project):
    process = start(project, FULL, PLM_PARENT_RUN_ID="a" * 32, PLM_STAGE="pretrain@gpt", WAIT_FOR="go")
    client = client_of(project)
    wait_until(lambda: runs_of(client) and "system/cpu_utilization_percentage" in runs_of(client)[0].data.metrics)
    (project / "go").touch()
    out, err = process.communicate(timeout=60)
    # "a moment": it does not wait while the recorder imports MLflow.
    assert (process.returncode, err, out) == (0, "", "a moment\n")
    (run,) = runs_of(client)
    assert run.info.run_name == "pretrain-gpt"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"pretrain.lr": "0.1", "pretrain.betas": "[0.9, 0.95]"}
    assert run.data.tags["mlflow.parentRunId"] == "a" * 32
    assert run.data.tags["dvc.stage"] == "pretrain@gpt"
    assert run.data.tags["output.artifacts/models/gpt"] == "e" * 64
    assert run.data.metrics["best_step"] == 40
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(range(1000))
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


def test_off_means_that_mlflow_is_neither_imported_nor_run(fresh):
    body = FULL + "print('mlflow' in sys.modules)"
    begin = time.monotonic()
    done = stage(fresh, body, PLM_TRACKING="off")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "a moment\nFalse\n")
    assert time.monotonic() - begin < 3
    assert not (fresh / "artifacts").exists()


ENDINGS = {
    "sys.exit(2)": ("FAILED", 2),
    "sys.exit(75)": ("KILLED", 75),
    "os.kill(os.getpid(), signal.SIGKILL)": ("KILLED", -signal.SIGKILL),
}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError(), "FAILED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(1), "FAILED"),
        (SystemExit("text"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_every_ending_has_a_status(error, status):
    assert tracking._status(error) == status


def test_the_status_is_how_the_stage_ended(project):
    body = "with tracked({0!r}, {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 3)\n    {0}"
    stages = {ending: start(project, body.format(ending)) for ending in ENDINGS}
    for ending, process in stages.items():
        process.communicate(timeout=120)
        assert process.returncode == ENDINGS[ending][1]
    client = client_of(project)
    wait_until(
        lambda: len(runs_of(client)) == len(ENDINGS) and all(r.info.status != "RUNNING" for r in runs_of(client))
    )
    assert {run.info.run_name: run.info.status for run in runs_of(client)} == {k: v[0] for k, v in ENDINGS.items()}
    assert all(run.data.metrics == {"x": 1.0} for run in runs_of(client))


def wait_until(condition, seconds=60):
    """A stage that is killed does not wait for its recorder."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_three_stages_may_open_a_new_database_at_once(fresh):
    body = "with tracked('x', {}, {}) as t:\n    t.log({'x': 1.0}, 0)"
    for process in [start(fresh, body) for _ in range(3)]:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    assert [run.info.status for run in runs_of(client_of(fresh))] == ["FINISHED"] * 3


def test_a_run_whose_recorder_died_is_reaped(project):
    first = start(
        project, "with tracked('one', {}, {}) as t:\n    print(t._recorder.pid, flush=True)\n    time.sleep(300)"
    )
    number = int(first.stdout.readline())
    client = client_of(project)
    wait_until(lambda: runs_of(client))
    os.kill(number, signal.SIGKILL)
    first.kill()
    first.communicate()
    (run,) = runs_of(client)
    assert run.info.status == "RUNNING"
    assert store.reap(client, run.info.experiment_id) == [run.info.run_id]
    assert runs_of(client)[0].info.status == "KILLED"


def test_a_run_that_goes_on_is_not_reaped(project):
    process = start(project, "with tracked('one', {}, {}) as t:\n    time.sleep(300)")
    client = client_of(project)
    wait_until(lambda: runs_of(client))
    assert store.reap(client, runs_of(client)[0].info.experiment_id) == []
    process.kill()
    process.communicate()
    wait_until(lambda: runs_of(client)[0].info.status == "KILLED")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://127.0.0.1:9", "MlflowException: API request to http://127.0.0.1:9"),
        pytest.param(
            "sqlite:////proc/none/mlflow.db", "No such file or directory: '/proc/none'", marks=pytest.mark.slow
        ),
        ("sqlite:///params.yaml", "file is not a database"),
        pytest.param("nonsense://x", "nonsense", marks=pytest.mark.slow),
        pytest.param("postgresql+psycopg2://127.0.0.1:9/x", "warning: MLflow: ", marks=pytest.mark.slow),
    ],
)
def test_an_mlflow_that_cannot_be_used_costs_one_line_and_little_time(project, uri, says):
    begin = time.monotonic()
    done = stage(project, FULL + "print('written')", MLFLOW_TRACKING_URI=uri)
    assert (done.returncode, done.stdout) == (0, "a moment\nwritten\n")
    assert says in done.stderr
    assert done.stderr.startswith("warning: MLflow: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert time.monotonic() - begin < 30


def test_a_wrong_section_of_params_costs_one_line(project):
    (project / "params.yaml").write_text("other: {}\n")
    done = stage(project, FULL + "print('written')")
    assert (done.returncode, done.stdout) == (0, "a moment\nwritten\n")
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
        wait_until(lambda: _answers(address), seconds=90)
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
    wait_until(lambda: runs_of(client) and "loss" in runs_of(client)[0].data.metrics)
    kill()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0
    assert (project / "output").read_text() == "the same"
    assert float(out) < 12 + 15, "12 s of work"
    assert err.startswith("warning: MLflow: MlflowException: API request to ")
    assert err.count("\n") == 1, err


@pytest.mark.slow
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
    assert (done.returncode, done.stdout) == (0, "a moment\nwritten\n")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - begin < 30


def test_git_state_is_on_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recorder._commit() == {"git.dirty": "unknown"}
    for name in ("dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("a")
    git = ["git", "-c", "user.email=a@example.org", "-c", "user.name=a"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "dvc.lock").write_text("b")  # the pipeline writes this itself
    assert recorder._commit() == {"mlflow.source.git.commit": head, "git.dirty": "false"}
    (tmp_path / "params.yaml").write_text("b")
    assert recorder._commit() == {"mlflow.source.git.commit": head, "git.dirty": "true"}
