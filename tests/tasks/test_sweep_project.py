"""A sweep of a real pretraining: what its stages are when a trial runs them, and what MLflow shows of them."""

import json
import subprocess

import mlflow
import pytest

IGNORED = "/artifacts/*\n!/artifacts/metrics/\n/.hf\n/.dvc-site\n__pycache__\n/repro.log\n"


def git(root, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *arguments], cwd=root, check=True)


@pytest.mark.slow
def test_sweep_trials_run_changed_stages_below_the_sweep_run(small):
    (small.root / ".dvc/config").write_text("[core]\n    analytics = false\n")
    (small.root / ".gitignore").write_text(IGNORED)
    rate = "pretrain.gpt.training.optimizer.learning_rate"
    small.change(sweep__space={rate: {"low": 1e-3, "high": 0.1, "log": True}}, sweep__trials=2)
    git(small.root, "init", "-q")
    git(small.root, "add", "--all")
    git(small.root, "commit", "-qm", "one")
    uri = f"sqlite:///{small.root}/artifacts/mlflow/mlflow.db"
    before = small.metrics("pretrain-gpt")
    stdout, _ = small.run("flows.cli", "sweep", "--jobs", "2", PLM_TRACKING="on", MLFLOW_TRACKING_URI=uri)
    assert small.metrics("pretrain-gpt") == before
    trials = json.loads((small.root / "artifacts/sweeps/sweep/trials.json").read_text())["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 2, stdout
    # The first is what params.yaml has: nothing had to run, and the result is the same to the digit.
    assert trials[0]["value"] == before["valid_loss"] != trials[1]["value"]
    ran = (small.root / "artifacts/sweeps/sweep/trials/1.log").read_text()
    said_by = {line.split(":")[0] for line in ran.splitlines() if ": runs: " not in line}
    assert said_by == {"pretrain@gpt"}, ran
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("plm").experiment_id])
    (parent,) = (run for run in runs if run.info.run_name == "sweep sweep")
    (run,) = (run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id)
    assert (run.info.run_name, run.data.tags["plm.trial"]) == ("pretrain-gpt sweep-1", "sweep-1")
    assert float(run.data.params["pretrain.training.optimizer.learning_rate"]) == trials[1]["params"][rate]
    assert run.data.metrics["valid_loss"] == pytest.approx(trials[1]["value"])
    assert {run.info.status, parent.info.status} == {"FINISHED"}
    reports = [json.loads(line) for line in (small.root / "artifacts/sweeps/sweep/trials/1.reports").open()]
    points = [report["metrics"]["valid_loss"] for report in reports if "valid_loss" in report["metrics"]]
    assert points == [point.value for point in client.get_metric_history(run.info.run_id, "valid_loss")][: len(points)]
    assert min(points) == trials[1]["value"]
