"""Whatever happens to a training run or to MLflow, a run that succeeds has the bytes of an undisturbed one."""

import json
import random
import re
import signal
import time

import pytest
import torch
from mlflows import wait_until
from projects import finish
from safetensors.torch import load_file

OUTS = ("artifacts/models/gpt", "artifacts/curves/gpt.csv", "artifacts/metrics/pretrain-gpt.json")
LONGER = {"pretrain__gpt__training__steps": 80, "pretrain__gpt__training__valid_every": 20}


def results(project):
    return {name: data for name, data in project.files().items() if name.startswith(OUTS)}


@pytest.fixture(scope="module")
def undisturbed(built, tmp_path_factory):
    """The result of 80 undisturbed steps."""
    project = built.copied(tmp_path_factory.mktemp("undisturbed") / "project")
    project.change(**LONGER)
    project.run("tasks.stages.pretrain", "gpt")
    return results(project)


@pytest.fixture(scope="module")
def interrupted(built, tmp_path_factory):
    """The same training, ended by SIGTERM somewhere after its first snapshot."""
    project = built.copied(tmp_path_factory.mktemp("interrupted") / "project")
    project.change(**LONGER)
    process = project.start("tasks.stages.pretrain", "gpt")
    project.snapshot(process)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, code=75)
    assert err.startswith("interrupted: state saved at step ")
    return project


@pytest.mark.slow
def test_a_tracking_server_that_is_not_there_costs_a_warning_and_no_byte(built, small):
    _, err = small.run("tasks.stages.pretrain", "gpt", PLM_TRACKING="on", MLFLOW_TRACKING_URI="http://127.0.0.1:1")
    assert all(line.startswith("warning: MLflow: ") for line in err.splitlines())
    assert err.count("\n") <= 1, "at the end, unless that comes before the publisher has noticed"
    log = small.root / "artifacts/journals/publisher.log"
    wait_until(lambda: log.read_text().startswith("warning: MLflow: MlflowException: API request to "))
    assert len(results(built)) == 6
    assert results(small) == results(built)
    assert small.files() == built.files()


def kill(project, paper, where, draw):
    """Kill a training run by SIGKILL: somewhere in its steps, while it writes a snapshot, or before it has made one.

    False if it has ended by itself before.
    """
    process = project.start("tasks.stages.pretrain", paper)

    def until(pattern):
        while not any((project.root / "artifacts/snapshots").glob(pattern)) and process.poll() is None:
            time.sleep(0.0005)

    if where == "steps":
        until("*/step-*")
        time.sleep(draw.random() / 2)
    elif where == "snapshot":
        until("*/.step-*.tmp")
    else:
        time.sleep(draw.random() * 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("paper", "kills"),
    [
        ("gpt", 5),
        *(pytest.param(paper, 5, marks=pytest.mark.slow) for paper in ("bert", "xlnet")),
        *(pytest.param(paper, 20, marks=pytest.mark.proof) for paper in ("gpt", "bert", "xlnet")),
    ],
)
def test_every_architecture_resumes_after_kills_to_the_same_bytes(built, tmp_path, paper, kills):
    longer = {key.replace("gpt", paper): value for key, value in LONGER.items()}
    whole, project = (built.copied(tmp_path / name) for name in ("whole", "project"))
    for checkout in (whole, project):
        checkout.change(**longer)
    whole.run("tasks.stages.pretrain", paper)
    draw = random.Random(paper)
    moments = ["steps", "snapshot", "start", "snapshot", "steps"] * (kills // 5)
    # How many come before the end depends on the machine.
    assert sum(kill(project, paper, where, draw) for where in moments) > 0
    project.run("tasks.stages.pretrain", paper)
    names = tuple(name.replace("gpt", paper) for name in OUTS)
    expected, actual = (
        {n: d for n, d in checkout.files().items() if n.startswith(names)} for checkout in (whole, project)
    )
    assert len(expected) == 6
    assert actual == expected
    assert not list((project.root / "artifacts/snapshots").glob("*"))


def test_a_training_that_was_asked_to_end_goes_on_where_it_was(interrupted, undisturbed, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    _, err = project.run("tasks.stages.pretrain", "gpt")
    assert err == ""
    assert results(project) == undisturbed


def test_a_snapshot_belongs_to_its_parameters_and_is_left_alone_by_others(built, interrupted, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    (left,) = (project.root / "artifacts/snapshots").iterdir()
    project.change(pretrain__gpt__training__steps=26, pretrain__gpt__training__valid_every=6)
    project.run("tasks.stages.pretrain", "gpt")
    assert results(project) == results(built)
    assert list((project.root / "artifacts/snapshots").iterdir()) == [left]


def test_snapshot_is_not_used_with_other_code(interrupted, undisturbed, tmp_path):
    project = interrupted.copied(tmp_path / "project")
    (left,) = (project.root / "artifacts/snapshots").iterdir()
    model = project.root / "plm_core/models/gpt.py"
    model.write_text(model.read_text() + "\n# edited\n")
    out, _ = project.run("tasks.stages.pretrain", "gpt")
    assert "resumed" not in out
    assert results(project) == undisturbed
    assert list((project.root / "artifacts/snapshots").iterdir()) == [left]


def test_non_finite_loss_ends_the_stage_and_names_the_step(small):
    small.change(pretrain__gpt__training__optimizer__learning_rate=1e30, pretrain__gpt__training__snapshot_every=2)
    _, err = finish(small.start("tasks.stages.pretrain", "gpt"), code=2)
    assert re.search(
        r"error: pretrain\.gpt\.training\.optimizer\.learning_rate: at step \d+ the loss is \S+ .*; the batch held "
        r"\d+ documents: own/\S+, ",
        err,
    )


@pytest.mark.slow
def test_stage_rollback_is_reported(small):
    """Every update breaks the weights: the step after it is rolled back until the limit."""
    small.change(
        pretrain__gpt__training__optimizer__learning_rate=1e30,
        pretrain__gpt__training__report_every=1,
        pretrain__gpt__training__snapshot_every=2,
        pretrain__gpt__training__anomalies={"policy": "rollback", "limit": 2},
    )
    _, err = finish(small.start("tasks.stages.pretrain", "gpt"), code=2)
    assert err.count(": rolling back to the last periodic snapshot (") == 2
    assert "after 2 tolerated anomalies" in err
    assert "Traceback" not in err
    (meters,) = (small.root / "artifacts/meters").glob("pretrain-gpt.json")
    assert json.loads(meters.read_text())["steps"] >= 3


@pytest.mark.slow
def test_stage_with_two_ranks_equals_one(small, tmp_path):
    """Two on this CPU, as one for each GPU elsewhere, with as many parts of a batch: sums have another order."""
    small.change(pretrain__gpt__training__accumulation=2)
    alone = small.copied(tmp_path / "alone")
    alone.run("tasks.stages.pretrain", "gpt", PLM_THREADS="1")
    _, err = small.run("tasks.stages.pretrain", "gpt", PLM_RANKS="2", PLM_THREADS="1", PLM_PARALLEL="fsdp")
    assert not [line for line in err.splitlines() if "rror" in line], err
    first, second = (load_file(p.root / "artifacts/models/gpt/model.safetensors") for p in (alone, small))
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=1e-2, atol=1e-3)
    steps = [(p.root / "artifacts/curves/gpt.csv").read_text().count("\n") for p in (alone, small)]
    assert steps[0] == steps[1]
    assert not list((small.root / "artifacts/snapshots").glob("*"))
    small.run("tasks.commands.export", "exported", "--checkpoint", "artifacts/models/gpt")
    assert (small.root / "exported/model.safetensors").exists()


@pytest.mark.slow
def test_interrupted_ranks_are_resumed_by_one(small, undisturbed):
    small.change(**LONGER)
    process = small.start("tasks.stages.pretrain", "gpt", PLM_RANKS="2", PLM_THREADS="1")
    small.snapshot(process)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, code=75)
    assert "interrupted: state saved at step " in err
    small.run("tasks.stages.pretrain", "gpt")
    assert results(small).keys() == undisturbed.keys()


@pytest.mark.slow
def test_user_error_of_ranks_has_the_same_status(small):
    small.change(pretrain__gpt__objective__name="masked")
    _, err = finish(small.start("tasks.stages.pretrain", "gpt", PLM_RANKS="2"), code=2)
    assert "error: pretrain.gpt.objective.name: masked cannot train architecture gpt" in err
