"""Proofs that a person can run, `make prove`: many faults, each row of the table at the end is one claim.

The slow tests do the same with few faults.
"""

import random
import re
import shlex
import shutil
import subprocess
import sys
import time

import mlflow
import psutil
import pytest
from dvc.repo import Repo
from mlflows import client_of, journals, leftovers, runs_of, wait_until
from rounds import few, many

KILLS_A_RUN = 20
PIPELINE = ("flows.cli", "run")
ON = {"PLM_TRACKING": "on", "PLM_CORES": "2", "PLM_THREADS": "1"}
"""Training runs with one thread: the bytes must not depend on how many stages run at once."""


def result(project, client=None):
    """What a pipeline leaves: every output's bytes, the points of finished runs, the champion and its decisions."""
    client = client or client_of(project.root)
    files = {
        name: data
        for name, data in project.files().items()
        if not {"report", "timing"} & set(name.split("/")) and "ledger" not in name
    }
    points = {}
    for run in runs_of(client):
        if run.info.status == "FINISHED" and run.data.tags["plm.stage"] not in ("register", "pipeline"):
            measured = {
                (name, point.step, point.value)
                for name in run.data.metrics
                if not name.startswith("system/")
                for point in client.get_metric_history(run.info.run_id, name)
            }
            points.setdefault(run.info.run_name, []).append(measured)
    champion = client.get_model_version_by_alias("plm", "champion").tags["checkpoint.sha256"]
    ledger = client.get_experiment_by_name("plm-decisions").experiment_id
    decisions = [
        (run.data.params["action"], run.data.params["version"])
        for run in client.search_runs([ledger], order_by=["attributes.start_time"])
        if run.info.status == "FINISHED"
    ]
    assert "RUNNING" not in {run.info.status for run in runs_of(client)}
    return files, points, champion, decisions


def family(project):
    """Every process whose folder is this project's."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(project.root)):
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


def words(process):
    """What a process is, in its command's words."""
    try:
        return " ".join(word for word in process.cmdline()[1:] if not word.startswith(("-", "/")))[:40]
    except psutil.Error:
        return "has ended"


def pipeline(project, **environment):
    log = (project.root / "log").open("a")
    return subprocess.Popen(
        [sys.executable, "-m", *PIPELINE],
        cwd=project.root,
        env=project._environment(ON | environment),
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def settled(project):
    """Wait until no process of the project is left; returns how many had to be killed."""
    deadline = time.monotonic() + 900
    while (left := family(project)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in left:
        print("left behind:", process.pid, process.cmdline())
        process.kill()
    return len(left)


def killed_again_and_again(project, kills, draw):
    """Run the pipeline until it succeeds, while this many of its processes are killed; returns which, and which were
    left."""
    who, left, process = [], 0, None
    while True:
        if process is None or process.poll() is not None:
            if process is not None:
                left += settled(project)
                if process.returncode == 0 and len(who) >= kills:
                    return who, left
            process = pipeline(project)
        if len(who) >= kills:
            process.wait()
            continue
        time.sleep(draw.uniform(0.3, 6.0))
        alive = family(project)
        if alive:
            # Each kind of process as often as the others, however many there are of it.
            kinds = {}
            for member in alive:
                kinds.setdefault(words(member), []).append(member)
            kind = draw.choice(sorted(kinds))
            draw.choice(kinds[kind]).kill()
            who.append(kind)


@pytest.fixture(scope="module")
def ready(built, tmp_path_factory):
    """The small project with nothing made yet, and one fine-tuning."""
    project = built.copied(tmp_path_factory.mktemp("ready") / "project")
    project.change(finetune__tasks=["next"], finetune__seeds=[1])
    subprocess.run(["rm", "-rf", "artifacts", ".dvc/cache", "dvc.lock"], cwd=project.root, check=True)
    return project


@pytest.fixture(scope="module")
def whole(ready, tmp_path_factory):
    """What an undisturbed run leaves."""
    project = ready.copied(tmp_path_factory.mktemp("whole") / "project")
    process = pipeline(project)
    assert process.wait() == 0, (project.root / "log").read_text()
    assert settled(project) == 0
    leftovers(project.root)
    assert journals(project.root) == []
    state = result(project)
    assert twice(state) == []
    return state


def differences(whole, state):
    """What is not as in an undisturbed run; of a stage that ran twice, each run has to be alike."""
    files, points, champion, decisions = whole
    wrong = [name for name in files.keys() | state[0].keys() if files.get(name) != state[0].get(name)]
    for name in points.keys() | state[1].keys():
        (expected,) = points.get(name, [set()])
        for measured in state[1].get(name, [set()]):
            changed = settled_points(expected) ^ settled_points(measured)
            wrong += [f"{name}: {changed}"] if changed else []
    wrong += [f"champion {state[2]}"] if champion != state[2] else []
    return wrong + ([f"decisions {state[3]}"] if decisions != state[3] else [])


def settled_points(points):
    """The points that are the same in every run: times, costs and speeds are not."""
    moving = ("seconds", "per_second", "flops", "mfu", "memory", "joule", "watt", "cost", "dollars", "euros")
    return {point for point in points if not any(word in point[0] for word in moving)}


def twice(state):
    """The stages with two finished runs."""
    return [name for name, runs in state[1].items() if len(runs) > 1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [few(2), many(100)])
def test_processes_killed_at_random_change_no_byte_no_point_and_no_champion(ready, whole, tmp_path, table, kills):
    done, left, again, wrong = 0, 0, [], []
    for number in range(-(-kills // KILLS_A_RUN)):
        project = ready.copied(tmp_path / f"{number}")
        who, behind = killed_again_and_again(project, min(KILLS_A_RUN, kills - done), random.Random(number))
        leftovers(project.root)
        done += len(who)
        left += behind
        state = result(project)
        wrong += differences(whole, state)
        # A pipeline that dies after a stage has ended and before DVC has recorded it runs that stage again.
        again += twice(state)
        print(f"run {number}: killed {sorted(who)}")
    outcome = (
        f"{len(wrong)} differences in bytes, points, champion, ledger; {left} processes left; "
        f"{len(again)} stages ran twice, each with the same points"
    )
    table("a process killed, over all stages and registration", done, outcome)
    assert (wrong, left) == ([], 0)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seconds", [few(3), many(600)])
def test_an_outage_of_the_tracker_loses_no_point_and_doubles_none(ready, whole, tmp_path, server, table, seconds):
    project = ready.copied(tmp_path / "project")
    process = pipeline(project, MLFLOW_TRACKING_URI=server.address)
    client = mlflow.MlflowClient(server.address)
    wait_until(lambda: len(runs_of(client)) > 6)
    server.kill()
    ended = time.monotonic() + seconds
    assert process.wait() == 1, "registration cannot have happened"
    time.sleep(max(0, ended - time.monotonic()))
    assert journals(project.root)
    server.start()
    assert pipeline(project, MLFLOW_TRACKING_URI=server.address).wait() == 0
    assert settled(project) == 0
    leftovers(project.root, MLFLOW_TRACKING_URI=server.address)
    assert journals(project.root) == []
    state = result(project, client)
    wrong = differences(whole, state) + twice(state)
    table("seconds without MLflow in the middle of a run", seconds, f"{len(wrong)} points lost, doubled or changed")
    assert wrong == []


LIMITED = """
import os, resource, runpy, sys
os.dup2(1, 2)  # a pipe, which has no limit
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (2, resource.RLIM_INFINITY))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_a_full_disk_under_each_stage_is_one_line_and_leaves_what_was_there(small, monkeypatch, table):
    monkeypatch.chdir(small.root)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(small.root / ".dvc-site"))
    shutil.rmtree(small.root / "artifacts/compiled", ignore_errors=True)
    shutil.rmtree(small.root / "artifacts/ancestors")  # it would not be written again
    (small.root / "tasks/stages/limited.py").write_text(LIMITED)
    before = small.files()
    full = []
    for stage in Repo(str(small.root)).index.stages:
        _, _, *command = shlex.split(stage.cmd)
        stdout, _ = small.run("tasks.stages.limited", *command, code=1)
        lines = [line for line in stdout.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == 1, (stage.addressing, stdout)
        assert re.match(r"error: .*File too large.*artifacts/", lines[0]), (stage.addressing, lines)
        assert small.files() == before, stage.addressing
        full.append(stage.addressing)
    table("a full disk under a stage", len(full), "each one line with the file, exit status 1, last results whole")
