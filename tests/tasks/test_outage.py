"""MLflow may die, and a training run too: afterwards MLflow has every point once, and the end of every run.

Real trainings, a real `mlflow server`, real signals.
"""

import re
import signal
import socket
import time

import pytest
from mlflows import (
    client_of,
    journals,
    leftovers,
    points_of,
    publishers_of,
    runs_of,
    sent,
    stage,
    start,
    status_of,
    wait_until,
)

from tasks.tracking.run_journal import messages

DEAD = "http://127.0.0.1:9"
LONG = {
    "pretrain__gpt__training__steps": 600,
    "pretrain__gpt__training__valid_every": 100,
    "pretrain__gpt__training__snapshot_every": 20,
}


def curve(project):
    """The points that the training itself has written down."""
    lines = (project.root / "artifacts/curves/gpt.csv").read_text().splitlines()[1:]
    return [(int(step), float(loss)) for step, loss, *_ in (line.split(",") for line in lines)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "uri", "status"),
    [(signal.SIGKILL, None, "KILLED"), (signal.SIGTERM, DEAD, None)],
)
def test_resumed_training_continues_its_mlflow_run(small, number, uri, status):
    small.change(**LONG, pretrain__gpt__size=2, pretrain__gpt__model__heads=...)
    env = {"PLM_TRACKING": "on"} | ({"MLFLOW_TRACKING_URI": uri} if uri else {})
    client = client_of(small.root)
    first = small.start("tasks.stages.pretrain", "gpt", **env)
    small.snapshot(first)
    time.sleep(0.3)  # some steps after the snapshot too
    first.send_signal(number)
    first.communicate()
    assert first.returncode in (-signal.SIGKILL, 75)
    (journal,) = journals(small.root)
    assert sum('"loss"' in line for line in journal.read_text().splitlines()) < len(range(0, 600, 2))
    if status:
        wait_until(lambda: status_of(client) == {"pretrain-gpt": status})
    small.run("tasks.stages.pretrain", "gpt", **env)
    if uri:
        assert journals(small.root) == [journal]
        wait_until(lambda: not publishers_of(small.root))
        leftovers(small.root)
    sent(small.root)
    (run,) = runs_of(client)
    assert points_of(client, run) == curve(small)
    assert run.info.status == "FINISHED"
    params = {name: run.data.params[f"pretrain.{name}"] for name in ("training.steps", "size", "model.heads")}
    assert params == {"training.steps": "600", "size": "2", "model.heads": "1"}
    assert len(run.inputs.dataset_inputs) == 2


def test_mlflow_run_of_an_outage_is_created_later(folder):
    body = """
with tracked("down", {"lr": 0.1}, {"data": "f" * 64}) as t:
    t.log({"loss": 0.5}, 1)
    t.outputs({"out": "e" * 64})
    time.sleep(0.2)
    raise ValueError("its own fault")
"""
    before = time.time_ns() // 1_000_000
    done = stage(folder, body, MLFLOW_TRACKING_URI=DEAD, PLM_PARENT_RUN_ID="a" * 32)
    after = time.time_ns() // 1_000_000
    assert len(journals(folder)) == 1
    wait_until(lambda: not publishers_of(folder))
    assert "the next stage or `plm run` sends it" in (folder / "artifacts/journals/publisher.log").read_text()
    assert re.fullmatch(r"Traceback .*\n(  .*\n)+ValueError: its own fault\n", done.stderr)
    assert stage(folder, "with tracked('next', {}, {}):\n    pass").stderr == ""
    sent(folder)
    client = client_of(folder)
    assert status_of(client) == {"down": "FAILED", "next": "FINISHED"}
    (run,) = [run for run in runs_of(client) if run.info.run_name == "down"]
    assert before <= run.info.start_time <= run.info.end_time - 200 <= after - 200
    assert (run.data.params, points_of(client, run)) == ({"lr": "0.1"}, [(1, 0.5)])
    assert (run.data.tags["output.out"], run.data.tags["mlflow.parentRunId"]) == ("e" * 64, "a" * 32)
    assert run.data.tags["plm.host"] == socket.gethostname()
    assert journals(folder) == []


@pytest.mark.slow
def test_a_journal_that_is_sent_twice_is_one_run_without_a_double_point(folder):
    body = "with tracked('twice', {'a': 1}, {'data': 'f' * 64}) as t:\n"
    body += "    for step in range(1500):\n        t.log({'loss': step / 7}, step)\n"
    stage(folder, body, MLFLOW_TRACKING_URI=DEAD)
    (journal,) = journals(folder)
    content = journal.read_bytes()
    for whole in (content[: len(content) // 2], content):
        wait_until(lambda: not publishers_of(folder))
        journal.write_bytes(whole)  # as after a crash that came before what was acknowledged was written down
        leftovers(folder)
    client = client_of(folder)
    (run,) = runs_of(client)
    assert points_of(client, run) == [(step, step / 7) for step in range(1500)]
    assert run.info.status == "FINISHED"
    assert len(run.inputs.dataset_inputs) == 1


def test_a_journal_that_mlflow_refuses_does_not_keep_the_others(folder):
    """Its run was deleted by a user."""
    body = "with tracked('{}', {{}}, {{}}) as t:\n    t.log({{'loss': 0.5}}, 0)\n    t.outputs({{'out': 'e'}})\n"
    gone = start(folder, body.format("deleted") + "    time.sleep(300)")
    client = client_of(folder)
    wait_until(lambda: runs_of(client) and "loss" in runs_of(client)[0].data.metrics)
    (run,) = runs_of(client)
    client.delete_run(run.info.run_id)
    gone.kill()
    gone.communicate()
    assert stage(folder, body.format("next")).stderr.count("\n") <= 1
    sent(folder)
    assert status_of(client) == {"next": "FINISHED"}


def test_hanging_mlflow_server_delays_and_loses_nothing(folder):
    """More than any pipe holds."""
    body = """
with tracked("silent", {}, {}) as t:
    for step in range(30_000):
        t.log({"loss": 0.5, "metric_with_a_longer_name": 1.0}, step)
"""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = stage(folder, body, MLFLOW_TRACKING_URI=uri, MLFLOW_HTTP_REQUEST_TIMEOUT="2")
    assert done.returncode == 0
    assert done.stderr.count("\n") <= 2
    (journal,) = journals(folder)
    entries = [message for message, _ in messages(journal)]
    steps = [message["points"][0][3] for message in entries if message["kind"] == "metrics"]
    assert (steps, entries[-1]["kind"]) == (list(range(30_000)), "end")


ROOM_AGAIN = """
from tasks.tracking.mlflow_stores import PUBLISHER
PUBLISHER[:0] = ["bash", "-c", 'ulimit -S -f unlimited && exec "$@"', "bash"]  # MLflow has another disk
with tracked("full", {}, {}) as t:
    t.log({"loss": 0.5}, 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    for step in range(1, 100):
        t.log({"loss": 0.5}, step)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
print("written")
"""


@pytest.mark.slow
def test_journal_on_full_disk_warns_once_and_loses_nothing(folder):
    done = stage(folder, ROOM_AGAIN)
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert done.stderr.startswith("warning: MLflow: no journal ([Errno 28] No space left")
    assert done.stderr.count("\n") == 1, done.stderr
    sent(folder)
    client = client_of(folder)
    (run,) = runs_of(client)
    assert points_of(client, run) == [(step, 0.5) for step in range(100)]
    assert run.info.status == "FINISHED"
