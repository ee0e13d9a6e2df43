"""MLflow shows a stage and never disturbs it: real stores, real signals."""

import json
import signal
import socket
import subprocess
import sys
import time

import mlflow
import pytest
import yaml
from mlflows import client_of, leftovers, publishers_of, runs_of, sent, stage, start, status_of, wait_until

from tasks.publishing.mlflow_run import datasets, page_of
from tasks.tracking.run_journal import origin
from tasks.tracking.tracker import one_line

FULL = f"""
params = {{"pretrain": {{"lr": 0.1, "betas": [0.9]}}}}
with tracked("pretrain-gpt", params, {{"data/tokens": "{"f" * 64}"}}, "abc") as t:
    begin = time.monotonic()
    for step in range(1000):
        t.log({{"loss": 1.0 / (step + 1), "odd": float("nan")}}, step)
    print("a moment" if time.monotonic() - begin < 1 else "slow")
    while "WAIT_FOR" in os.environ and not Path(os.environ["WAIT_FOR"]).exists():
        time.sleep(0.1)
    t.summary({{"bits_per_byte": 2.5, "best_step": 40}})
    t.outputs({{"artifacts/models/gpt": "{"e" * 64}"}})
"""


def test_mlflow_run_shows_all_of_the_stage(folder):
    process = start(folder, FULL, PLM_PARENT_RUN_ID="a" * 32, PLM_STAGE="pretrain@gpt", WAIT_FOR="go")
    client = client_of(folder)
    wait_until(lambda: runs_of(client) and "system/cpu_utilization_percentage" in runs_of(client)[0].data.metrics)
    (folder / "go").touch()
    out, err = process.communicate()
    # "a moment": it does not wait while the publisher imports MLflow.
    assert (process.returncode, err, out) == (0, "", "a moment\n")
    sent(folder)
    (run,) = runs_of(client)
    assert run.info.run_name == "pretrain-gpt"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"pretrain.lr": "0.1", "pretrain.betas": "[0.9]"}
    assert run.data.tags["mlflow.parentRunId"] == "a" * 32
    assert run.data.tags["dvc.stage"] == "pretrain@gpt"
    assert run.data.tags["output.artifacts/models/gpt"] == "e" * 64
    assert (run.data.tags["plm.stage"], run.data.tags["mlflow.source.name"]) == ("pretrain", "tasks/stages/pretrain.py")
    assert run.data.metrics["best_step"] == 40
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(range(1000))
    assert len(client.get_metric_history(run.info.run_id, "bits_per_byte")) == 1
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("data/tokens", "f" * 36)
    assert {tag.key: tag.value for tag in dataset.tags}["sha256"] == "f" * 64
    experiment = client.get_experiment_by_name("plm")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.artifact_location == (folder / "artifacts/mlflow/artifacts").as_uri()
    page = f"http://127.0.0.1:5000/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    assert (folder / "artifacts/meters/runs/pretrain-gpt.txt").read_text() == f"{page}\n"


def test_consecutive_stages_share_one_publisher(folder):
    body = "with tracked('{}', {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 0)\n"
    assert stage(folder, body.format("first")).stderr == ""
    sent(folder)
    (publisher,) = publishers_of(folder)
    second = start(folder, body.format("second") + "    while not Path('go').exists():\n        time.sleep(0.1)\n")
    wait_until(lambda: status_of(client_of(folder)).get("second") == "RUNNING")
    (folder / "go").touch()
    assert second.communicate()[1] == stage(folder, body.format("third")).stderr == ""
    sent(folder)
    assert [process.pid for process in publishers_of(folder)] == [publisher.pid]
    assert status_of(client_of(folder)) == dict.fromkeys(("first", "second", "third"), "FINISHED")
    wait_until(lambda: not publishers_of(folder))


def test_tracking_off_neither_imports_nor_runs_mlflow(fresh):
    body = FULL + "print('mlflow' in sys.modules)"
    begin = time.monotonic()
    done = stage(fresh, body, PLM_TRACKING="off")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "a moment\nFalse\n")
    assert time.monotonic() - begin < 3
    assert not (fresh / "artifacts").exists()


ENDINGS = {
    "sys.exit(2)": ("FAILED", 2),
    "sys.exit(75)": ("KILLED", 75),
    "os.fork() and os.kill(os.getpid(), signal.SIGKILL)": ("KILLED", -signal.SIGKILL),
}


def test_mlflow_run_status_is_how_the_stage_ended(folder):
    body = "with tracked({0!r}, {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 3)\n    {0}\n    time.sleep(5)"
    stages = {ending: start(folder, body.format(ending)) for ending in ENDINGS}
    for ending, process in stages.items():
        process.communicate()
        assert process.returncode == ENDINGS[ending][1]
    client = client_of(folder)
    wait_until(
        lambda: len(runs_of(client)) == len(ENDINGS) and all(r.info.status != "RUNNING" for r in runs_of(client))
    )
    assert {run.info.run_name: run.info.status for run in runs_of(client)} == {k: v[0] for k, v in ENDINGS.items()}
    assert all(run.data.metrics == {"x": 1.0} for run in runs_of(client))


def test_orphaned_mlflow_run_is_closed_by_the_next_stage(folder):
    code = "with tracked('{}', {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 0)\n    time.sleep(300)"
    dead, alive = (start(folder, code.format(name)) for name in ("dead", "alive"))
    client = client_of(folder)
    wait_until(lambda: sum("x" in run.data.metrics for run in runs_of(client)) == 2)
    for process in publishers_of(folder):
        process.kill()
    dead.kill()
    dead.communicate()
    assert {run.info.status for run in runs_of(client)} == {"RUNNING"}
    assert stage(folder, "with tracked('next', {}, {}):\n    pass").stderr == ""
    wait_until(lambda: status_of(client) == {"dead": "KILLED", "alive": "RUNNING", "next": "FINISHED"})
    alive.kill()
    alive.communicate()
    sent(folder)  # by the publisher of the next stage, which has taken this run over
    assert status_of(client)["alive"] == "KILLED"


@pytest.mark.slow
def test_publisher_sends_runs_to_their_own_server(folder, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    code = "with tracked('{}', {{}}, {{}}) as t:\n    t.log({{'x': 1.0}}, 0)\n    time.sleep(8)"
    both = [start(folder, code.format("here")), start(folder, code.format("there"), MLFLOW_TRACKING_URI=other)]
    for process in both:
        assert process.communicate()[1] == ""
    sent(folder)
    assert status_of(client_of(folder)) == {"here": "FINISHED"}
    assert status_of(mlflow.MlflowClient(other)) == {"there": "FINISHED"}


@pytest.mark.slow
def test_a_point_that_mlflow_refuses_does_not_keep_the_others(folder):
    stage(
        folder,
        "with tracked('x', {}, {}) as t:\n    t.log({'good': 1.0, 'b*d': 2.0, 'too': 3.0}, 0)",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
    )
    wait_until(lambda: not publishers_of(folder))
    stderr = leftovers(folder)
    assert stderr.startswith("warning: MLflow: refuses b*d: MlflowException: Invalid ")
    assert stderr.count("\n") == 1
    (run,) = runs_of(client_of(folder))
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"good": 1.0, "too": 3.0})


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://127.0.0.1:9", "MlflowException: API request to http://127.0.0.1:9"),
        pytest.param(
            "sqlite:////proc/none/mlflow.db", "No such file or directory: '/proc/none'", marks=pytest.mark.slow
        ),
        ("sqlite:///params.yaml", "file is not a database"),
    ],
)
def test_unusable_mlflow_costs_one_line_and_no_time(folder, uri, says):
    process = start(folder, FULL + "print('written')", MLFLOW_TRACKING_URI=uri, WAIT_FOR="go")
    wait_until(lambda: any(path.read_text() for path in folder.glob("artifacts/journals/*.publisher")))
    (folder / "go").touch()
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "a moment\nwritten\n")
    assert says in err
    assert err.startswith("warning: MLflow: ")
    assert err.count("\n") == 1, err


SECRET = "s3cret"
TRAINING = """
with tracked("pretrain-gpt", {}, {}, "abc") as t:
    t.log({"loss": 1.0}, 1)
    while not Path("go").exists():
        time.sleep(0.1)
"""


def kept(folder):
    """The content of all files of a checkout except its database."""
    files = (path for path in (folder / "artifacts").rglob("*") if path.is_file() and path.suffix != ".db")
    return "".join(path.read_text() for path in files)


def test_tracking_password_is_neither_stored_nor_printed(folder):
    uri = f"http://bot:{SECRET}@127.0.0.1:9"
    process = start(folder, TRAINING, MLFLOW_TRACKING_URI=uri)
    wait_until(lambda: "MlflowException: API request to http://127.0.0.1:9" in kept(folder))
    (folder / "go").touch()
    _, err = process.communicate()
    assert "API request to http://127.0.0.1:9" in err
    assert '"store": "' in kept(folder), "the journal is still there"
    assert SECRET not in err + kept(folder)
    page = page_of(mlflow.MlflowClient(uri), "1", "2")
    assert page == "http://127.0.0.1:9/#/experiments/1/runs/2"


def test_truncated_error_still_hides_the_password():
    for length in range(250, 320):
        error = ValueError("x" * length + f" http://bot:{SECRET}@example.org:5000")
        assert SECRET[:3] not in one_line(error)
        assert len(one_line(error)) <= len("ValueError: ") + 300


@pytest.mark.parametrize(
    ("params", "missing"), [("other: {}", "tracking"), ("tracking: {experiment: plm}", "tracking.uri")]
)
def test_missing_tracking_section_is_one_line(folder, params, missing):
    (folder / "params.yaml").write_text(f"{params}\n")
    done = stage(folder, FULL + "print('written')")
    assert (done.returncode, done.stdout) == (0, "a moment\nwritten\n")
    assert done.stderr.startswith(f"warning: MLflow: {missing}: no such section in params.yaml")
    assert done.stderr.count("\n") == 1


def test_git_state_is_on_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tags = {"plm.host": socket.gethostname(), "mlflow.source.name": "plm run", "mlflow.source.type": "LOCAL"}
    assert origin("plm run") == tags | {"git.dirty": "unknown"}
    for name in ("dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("a")
    git = ["git", "-c", "user.email=a@example.org", "-c", "user.name=a"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    tags |= {"mlflow.source.git.commit": head, "git.commit": head}
    (tmp_path / "dvc.lock").write_text("b")  # the pipeline writes this itself
    assert origin("plm run") == tags | {"git.dirty": "false"}
    (tmp_path / "params.yaml").write_text("b")
    assert origin("plm run") == tags | {"git.dirty": "true"}


def test_mlflow_datasets_name_their_part():
    places = ("artifacts/corpus/splits/test.parquet", "artifacts/examples/next", "artifacts/tokens", "my/texts", ".")
    logged = datasets(dict.fromkeys(places, "f" * 64))
    contexts = [{tag.key: tag.value for tag in dataset.tags}["mlflow.data.context"] for dataset in logged]
    assert contexts == ["test", "examples", "tokens", "input", "input"]


@pytest.mark.slow
def test_mlflow_experiment_has_a_note_and_views(folder):
    params = folder / "params.yaml"
    rules = {"score": {"direction": "higher"}, "bits_per_byte": {"direction": "lower"}}
    wanted = yaml.safe_load(params.read_text()) | {"promotion": {"metrics": rules}, "finetune": {"tasks": ["era"]}}
    params.write_text(yaml.safe_dump(wanted))

    def look():
        program = "from tasks.publishing.mlflow_run import connect; connect()"
        subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
        return client_of(folder).get_experiment_by_name("plm")

    experiment = look()
    note, view = experiment.tags["mlflow.note.content"], json.loads(experiment.tags["mlflow.sharedViewState.models"])
    assert f"](#/experiments/{experiment.experiment_id}/runs?viewStateShareKey=models)" in note
    state = json.loads(view["state"])
    assert state["searchFilter"] == "tags.`plm.stage` = 'register'"
    assert {"metrics.`score`", "metrics.`era/score`", "metrics.`bits_per_byte`"} <= set(state["selectedColumns"])
    client_of(folder).set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "ours")
    params.write_text(yaml.safe_dump(wanted | {"finetune": {"tasks": ["next"]}}))
    changed = look().tags
    assert changed["mlflow.note.content"] == "ours"
    assert "next/score" in changed["mlflow.sharedViewState.models"]
