"""Whatever happens to a training or to MLflow, the run that ends well has the bytes of an undisturbed one."""

import random
import signal
import socket
import time

import pytest
from projects import finish

OUTS = ("artifacts/models/gpt", "artifacts/curves/gpt.csv", "artifacts/metrics/pretrain-gpt.json")
LONGER = {"pretrain__gpt__training__steps": 80, "pretrain__gpt__training__valid_every": 20}


def results(project):
    return {name: data for name, data in project.files().items() if name.startswith(OUTS)}


@pytest.fixture(scope="module")
def undisturbed(built, tmp_path_factory):
    """What 80 steps give, and nobody disturbs."""
    project = built.copied(tmp_path_factory.mktemp("undisturbed") / "project")
    project.change(**LONGER)
    project.run("tasks.pretrain", "gpt")
    return results(project)


@pytest.fixture(scope="module")
def interrupted(built, tmp_path_factory):
    """The same training, ended by SIGTERM somewhere after its first snapshot."""
    project = built.copied(tmp_path_factory.mktemp("interrupted") / "project")
    project.change(**LONGER)
    process = project.start("tasks.pretrain", "gpt")
    project.snapshot(process)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, code=75)
    assert err.startswith("interrupted: state saved at step ")
    return project


def test_a_tracking_server_that_is_not_there_costs_a_warning_and_no_byte(built, small):
    _, err = small.run("tasks.pretrain", "gpt", PLM_TRACKING="on", MLFLOW_TRACKING_URI="http://127.0.0.1:1")
    assert all(line.startswith("warning: MLflow: ") for line in err.splitlines())
    assert 1 <= err.count("\n") <= 2, "when it is noticed, if the stage goes on for long, and at the end"
    assert len(results(built)) == 6
    assert results(small) == results(built)
    assert small.files() == built.files()


def test_a_training_killed_again_and_again_ends_with_the_same_bytes(small, undisturbed):
    small.change(**LONGER)
    draw = random.Random(13)
    killed = 0
    for _ in range(3):
        process = small.start("tasks.pretrain", "gpt")
        small.snapshot(process)
        time.sleep(draw.random() / 2)  # any moment will do
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed > 0
    small.run("tasks.pretrain", "gpt")
    assert results(small) == undisturbed
    assert not list((small.root / "artifacts/snapshots").glob("*"))
    assert not [path for path in (small.root / "artifacts/models").iterdir() if path.name != "gpt"]


def test_a_training_that_was_asked_to_end_goes_on_where_it_was(interrupted, undisturbed, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    _, err = project.run("tasks.pretrain", "gpt")
    assert err == ""
    assert results(project) == undisturbed


def test_a_damaged_snapshot_is_told_and_the_training_begins_anew(interrupted, undisturbed, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    (state,) = (project.root / "artifacts/snapshots").glob("*/last/state.safetensors")
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    _, err = project.run("tasks.pretrain", "gpt")
    assert "snapshot not used" in err
    assert results(project) == undisturbed


def test_a_snapshot_belongs_to_its_parameters_and_is_left_alone_by_others(built, interrupted, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    (left,) = (project.root / "artifacts/snapshots").iterdir()
    project.change(pretrain__gpt__training__steps=26, pretrain__gpt__training__valid_every=6)
    project.run("tasks.pretrain", "gpt")
    assert results(project) == results(built)
    assert list((project.root / "artifacts/snapshots").iterdir()) == [left]


def test_an_edit_while_a_finished_stage_waits_for_mlflow_is_noticed(small):
    """DVC hashes the sources when the process has ended: until then nothing may change unnoticed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()  # and never answers: the stage's work is done long before its recorder gives up
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        metrics = small.root / "artifacts/metrics/tokenizer.json"
        metrics.unlink()
        process = small.start("tasks.tokenizer", PLM_TRACKING="on", MLFLOW_TRACKING_URI=uri)
        while not metrics.exists() and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None
        path = small.root / "plm_core/text/tokenizer.py"
        path.write_text(path.read_text() + "\n# edited\n")
        assert process.poll() is None
    _, err = finish(process, code=2)
    assert "error: plm_core/text/tokenizer.py: changed while the stage ran" in err
