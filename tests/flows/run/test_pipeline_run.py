"""The pipeline's own run: a parent for its stages, closed truthfully, and never in the way."""

import os
import signal
import sqlite3
import subprocess
import sys

import mlflow
import pytest
from mlflows import publishers_of
from registries import PARAMS, project
from toys import wait_for

from flows.registry import model_registry
from flows.run import pipeline
from flows.run.parent_run import pipeline_run
from plm_core.shared.errors import UserError
from tasks.tracking import mlflow_stores


@pytest.fixture
def root(tmp_path, monkeypatch, empty_store):
    for name in ("MLFLOW_TRACKING_URI", "PLM_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    return project(tmp_path, empty_store)


def runs(root):
    uri = f"sqlite:///{root}/artifacts/mlflow/mlflow.db"
    with mlflow_stores.exclusive(uri):
        client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("plm")
    return {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])} if experiment else {}


def test_pipeline_run_is_open_during_the_block(root, monkeypatch):
    with pipeline_run(root) as parent:
        wait_for(lambda: [run.info.status for run in runs(root).values()] == ["RUNNING"])
        monkeypatch.setenv("PLM_PARENT_RUN_ID", parent)
        subprocess.run([sys.executable, "-c", STAGE], cwd=root, check=True)
    # When the block has ended, MLflow has everything.
    assert not list((root / "artifacts/journals").glob("*.jsonl"))
    by_name = {run.info.run_name: run for run in runs(root).values()}
    assert {name: run.info.status for name, run in by_name.items()} == {"pipeline": "FINISHED", "stage": "FINISHED"}
    assert by_name["stage"].data.tags["mlflow.parentRunId"] == by_name["pipeline"].info.run_id
    assert by_name["pipeline"].data.tags["plm.stage"] == "pipeline"
    with pytest.raises(ValueError, match="x"), pipeline_run(root):
        raise ValueError("x")
    assert sorted(run.info.status for run in runs(root).values()) == ["FAILED", "FINISHED", "FINISHED"]


@pytest.mark.slow
def test_killed_publisher_is_replaced_without_loss(root, monkeypatch):
    with pipeline_run(root) as parent:
        wait_for(lambda: [run.info.status for run in runs(root).values()] == ["RUNNING"])
        (publisher,) = publishers_of(root)
        publisher.kill()
        monkeypatch.setenv("PLM_PARENT_RUN_ID", parent)
        subprocess.run([sys.executable, "-c", STAGE], cwd=root, check=True)
    statuses = {run.info.run_name: run.info.status for run in runs(root).values()}
    assert statuses == {"pipeline": "FINISHED", "stage": "FINISHED"}


def test_killed_flow_leaves_no_running_mlflow_run(root):
    code = "import sys, time, pathlib\nfrom flows.run.parent_run import pipeline_run\n"
    code += "with pipeline_run(pathlib.Path('.')) as run:\n    print(run, flush=True)\n    time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("journal:")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: [run.info.status for run in runs(root).values()] == ["KILLED"])


STAGE = """
from tasks.tracking.tracker import tracked
with tracked("stage", {}, {}) as t:
    t.log({"loss": 0.5}, 1)
"""


def refused(root):
    """What keeps a pipeline from beginning, and the registry from being opened: the same."""
    with pytest.raises(UserError) as first, pipeline_run(root):
        pass
    with pytest.raises(UserError) as second, model_registry.open_registry(root):
        pass
    assert str(first.value) == str(second.value)
    assert not list((root / "artifacts/journals").glob("*.jsonl"))
    return str(first.value)


def test_deleted_experiment_is_reported_first_with_remedy(root):
    uri = f"sqlite:///{root}/artifacts/mlflow/mlflow.db"
    with model_registry.open_registry(root) as opened:
        experiment = opened.experiment()
        opened.client.delete_experiment(experiment)
    message = refused(root)
    assert message.startswith(f"MLflow at {uri}: somebody has deleted the experiment plm; ")
    assert f"`MLFLOW_TRACKING_URI={uri} mlflow experiments restore --experiment-id {experiment}`" in message


def test_mlflow_tables_of_another_version_are_reported_first(root):
    with sqlite3.connect(root / "artifacts/mlflow/mlflow.db") as database:
        database.execute("update alembic_version set version_num = '867495a8f9d4'")
    database.close()
    assert f"`mlflow db upgrade sqlite:///{root}/artifacts/mlflow/mlflow.db`" in refused(root)


@pytest.mark.slow
def test_journals_of_an_outage_are_sent_when_up_to_date(toy, monkeypatch):
    root = toy("stages:\n  s: {cmd: 'cp params.yaml out.txt', outs: [out.txt]}\n", params_yaml=PARAMS)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], cwd=root, check=True)
    dead = os.environ | {"PLM_TRACKING": "on", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", STAGE], cwd=root, check=True, env=dead)
    wait_for(lambda: not publishers_of(root))  # while one lives, the run is its own to send
    monkeypatch.setenv("PLM_TRACKING", "on")
    assert [stage.outcome for stage in pipeline.run(root).stages] == ["up to date"]
    assert [run.info.status for run in runs(root).values()] == ["FINISHED"]


def test_with_mlflow_off_the_block_runs_without_a_parent(root, monkeypatch, capfd):
    monkeypatch.setenv("PLM_TRACKING", "off")
    with pipeline_run(root) as run:
        assert run is None
    assert capfd.readouterr().err == ""
    assert [path.name for path in (root / "artifacts").iterdir()] == ["mlflow"]
