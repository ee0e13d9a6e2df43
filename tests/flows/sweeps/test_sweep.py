"""``plm sweep`` on a toy whose training can be killed: what it finds, leaves, and resumes."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import optuna
import psutil
import pytest
import yaml
from toys import alive, git, wait_for

from flows.processes import resources
from flows.processes.resources import Machine
from flows.run.graph import Stage
from flows.sweeps import sweep as sweeps

GRAPH = """
stages:
  data:
    cmd: cat raw.txt > data.txt
    deps: [raw.txt]
    outs: [data.txt]
  train:
    cmd: python train.py
    params: [a]
    deps: [data.txt, train.py]
    outs: [model.txt]
    metrics:
      - artifacts/metrics/train.json: {cache: false}
    meta: {retries: 0}
  other: # needs what a trial needs, and is no part of one
    cmd: exit 7
    deps: [data.txt]
"""
TRAIN = """
import json, os, pathlib, time, yaml

a = yaml.safe_load(open("params.yaml"))["a"]
if a["k"] == "broken":
    raise SystemExit("error: k is broken")
loss = (a["x"] - 3) ** 2 + (a["k"] == "b")
steps = pathlib.Path("steps.txt")  # what survives a kill
for step in range(1 + steps.read_text().count("\\n") if steps.exists() else 1, 9):
    time.sleep(a["pause"])
    with steps.open("a") as file:
        file.write(f"{step}\\n")
    with open(os.environ["PLM_REPORTS"], "a") as file:
        file.write(json.dumps({"stage": "train", "step": step, "metrics": {"loss": loss + 8 - step}}) + "\\n")
    print(step, flush=True)
    while pathlib.Path(os.environ.get("HOLD", "none")).exists():
        time.sleep(0.05)
pathlib.Path("model.txt").write_text(f"{loss} {steps.read_text().split()}")
pathlib.Path("artifacts/metrics").mkdir(parents=True, exist_ok=True)
pathlib.Path("artifacts/metrics/train.json").write_text(json.dumps({"loss": loss}))
"""
PARAMS = """tracking: {uri: 'sqlite:///artifacts/mlflow/mlflow.db', experiment: plm}
promotion: {registered_model: plm}
a:
  x: 1.5 # what we have
  k: b
  pause: 0.05
sweep:
  metric: train/loss
  direction: lower
  space:
    a.x: {low: 0.0, high: 6.0}
    a.k: [a, b]
  trials: 2
"""


def change(root, **values):
    path = root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    for name, value in values.items():
        params[name] |= value
    path.write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture
def root(toy):
    root = toy(GRAPH, params_yaml=PARAMS, train_py=TRAIN, raw_txt="raw")
    (root / ".gitignore").write_text(
        "/artifacts/*\n!/artifacts/metrics/\n/data.txt\n/model.txt\n/raw.txt\n/steps.txt\n"
    )
    git(root, "add", "--all")
    git(root, "commit", "-qm", "one")
    return root


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """A file that holds training runs at their first step while it exists, so that a test need not be faster."""
    path = tmp_path / "hold"
    path.touch()
    monkeypatch.setenv("HOLD", str(path))
    return path


def ignore_ctrl_c():
    """What a shell has its commands do that run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def start(root, *arguments, first=None):
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "sweep", *arguments],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=first,
    )


def sweep(root, *arguments, code=0):
    process = start(root, *arguments)
    output = process.communicate()[0]
    assert process.returncode == code, output
    return output


def trials_of(root, name="sweep"):
    return json.loads((root / f"artifacts/sweeps/{name}/trials.json").read_text())["trials"]


def at_work(root):
    """The commands whose folder is the toy's or a trial's, whoever their parents are by now."""
    commands = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if process.cwd().startswith(str(root)) and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(process.cmdline())
    return commands


def steps(root, number):
    """The steps of a trial's training run, in order, according to its output."""
    model = git(root, "rev-parse", "--verify", "--quiet", ref_of(root, number)).strip()
    lock = yaml.safe_load(git(root, "show", f"{model}:dvc.lock"))
    (out,) = (entry for entry in lock["stages"]["train"]["outs"] if entry["path"] == "model.txt")
    return (root / f".dvc/cache/files/md5/{out['md5'][:2]}/{out['md5'][2:]}").read_text()


def ref_of(root, number):
    head = git(root, "rev-parse", "HEAD").strip()
    return f"refs/exps/{head[:2]}/{head[2:]}/sweep-{number}"


ALL = str([str(step) for step in range(1, 9)])


@pytest.mark.slow
def test_sweep_runs_trials_in_parallel_and_leaves_results(root):
    before = git(root, "status", "--porcelain"), (root / "params.yaml").read_text()
    output = sweep(root, "--jobs", "2")
    trials = trials_of(root)
    assert [trial["state"] for trial in trials] == ["complete"] * 2
    assert trials[0]["params"] == {"a.x": 1.5, "a.k": "b"}  # what params.yaml has is the first
    assert trials[0]["value"] == 3.25
    for trial in trials:
        x, k = trial["params"].values()
        assert trial["value"] == pytest.approx((x - 3) ** 2 + (k == "b"))
        assert steps(root, trial["number"]).endswith(ALL)
    best = min(trials, key=lambda trial: trial["value"])
    assert f"best           trial {best['number']}: " in output
    assert (git(root, "status", "--porcelain"), (root / "params.yaml").read_text()) == before
    assert [path.name for path in (root / "artifacts/sweeps/sweep/trials").glob("*/")] == []
    page = (root / "artifacts/sweeps/sweep/sweep.html").read_text()
    assert page.count("<svg") == 3
    assert f"trial {best['number']}" in page
    git(root, "apply", "artifacts/sweeps/sweep/winner.diff")
    assert yaml.safe_load((root / "params.yaml").read_text())["a"] == {
        "x": best["params"]["a.x"],
        "k": best["params"]["a.k"],
        "pause": 0.05,
    }
    assert "# what we have" in (root / "params.yaml").read_text()
    # It continues with more trials, but not with another space.
    change(root, sweep={"trials": 3})
    assert "changed since the sweep sweep began, and ignored by its trials: params.yaml" in sweep(root)
    assert len(trials_of(root)) == 3


@pytest.mark.parametrize(
    ("jobs", "most", "cores", "gpus"),
    [(4, None, 2, 1), (2, None, 4, 2), (1, None, 8, 4), (1, 3, 8, 3), (9, None, 1, 1)],
)
def test_trials_side_by_side_divide_the_gpus_and_the_cores(monkeypatch, jobs, most, cores, gpus):
    train = Stage("train", gpu="all")
    there = tuple(f"GPU-{os.getpid()}-{number}" for number in range(4))
    for name, value in sweeps._share(Machine(8, there, most), jobs).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(resources, "visible_gpus", lambda: there)
    assert Machine.detect().cores == cores
    # Each claims devices that no other one has.
    trials = [Machine.detect() for _ in range(min(jobs, 4))]
    with contextlib.ExitStack() as held:
        grants = [held.enter_context(trial.acquire(train)) for trial in trials]
    taken = [gpu for grant in grants for gpu in grant.env["CUDA_VISIBLE_DEVICES"].split(",")]
    assert len(set(taken)) == len(taken) == gpus * len(trials)


@pytest.mark.slow
def test_killed_sweep_resumes(root, hold):
    change(root, sweep={"trials": 2})
    process = start(root, "--jobs", "2")
    trials = root / "artifacts/sweeps/sweep/trials"
    wait_for(lambda: all((trials / f"{n}/steps.txt").exists() for n in (0, 1)))
    family = psutil.Process(process.pid).children(recursive=True)
    slow = [child for child in family if child.cmdline()[-1:] == ["train.py"]]
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{trials.parent / 'study.db'}")
    wait_for(lambda: study.user_attrs.get("seconds"))
    for child in slow:
        child.suspend()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # Trials that take long to save keep their worktrees.
    assert "this sweep is already running; wait for it" in sweep(root, "--jobs", "2", code=2)
    for child in slow:
        child.resume()
    wait_for(lambda: not any(alive(child.pid) for child in family))
    done = [len((trials / f"{n}/steps.txt").read_text().split()) for n in (0, 1)]
    assert done == [1, 1]
    hold.unlink()
    spent = study.user_attrs["seconds"]
    sweep(root, "--jobs", "2")
    assert study.user_attrs["seconds"] > spent  # of both calls
    assert [trial["state"] for trial in trials_of(root)] == ["complete"] * 2
    assert all(steps(root, number).endswith(ALL) for number in (0, 1))


@pytest.mark.slow
def test_killed_trial_resumes_but_fails_when_repeated(root):
    change(root, a={"pause": 0.7}, sweep={"trials": 1})
    process = start(root, "--jobs", "1")
    state = root / "artifacts/sweeps/sweep/trials/0/steps.txt"
    for least in (1, 3):
        wait_for(lambda least=least: state.exists() and len(state.read_text().split()) >= least)
        (training,) = (
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.cmdline()[-1:] == ["train.py"]
        )
        training.kill()
        wait_for(lambda training=training: not alive(training.pid))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert output.count("trial 0: resumed, because its process ended") == 2
    assert steps(root, 0).endswith(ALL)


@pytest.mark.slow
def test_sweep_at_its_time_limit_keeps_trial_state(root):
    change(root, a={"pause": 1.0}, sweep={"trials": 1, "minutes": 0.15})
    output = sweep(root, code=1)
    assert "1 trials keep their state; raise sweep.minutes or sweep.cost to resume them" in output
    assert trials_of(root) == []
    assert "1 trials keep their state" in sweep(root, code=1)
    change(root, sweep={"minutes": 3})
    sweep(root)
    assert steps(root, 0).endswith(ALL)


@pytest.mark.slow
def test_interrupted_sweep_ends_trials_gently(root, hold):
    change(root, sweep={"trials": 2})
    process = start(root, first=ignore_ctrl_c)
    wait_for(lambda: (root / "artifacts/sweeps/sweep/trials/0/steps.txt").exists())
    assert "this sweep is already running; wait for it, or use another --name" in sweep(root, code=2)
    assert [sys.executable, "-m", "flows.cli", "sweep"] in at_work(root)
    os.kill(process.pid, signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 75, output
    assert output.rstrip().endswith("interrupted: trials keep their state, and the next `plm sweep` resumes them")
    assert at_work(root) == []


@pytest.mark.slow
def test_invalid_sweep_is_one_line(root):
    change(root, sweep={"metric": "train/score", "trials": 4})
    output = sweep(root, "--jobs", "1", code=2)
    assert output.count("failed: sweep.metric: artifacts/metrics/train.json has no number 'score'; it has loss") == 3
    assert "error: sweep: the first 3 trials have failed" in output
    change(root, sweep={"metric": "other/loss"})
    assert "no stage writes artifacts/metrics/other.json; there are train" in sweep(root, code=2)
    assert "--name: 'a/b'; expected letters, digits, - and _" in sweep(root, "--name", "a/b", code=2)
    change(root, a={"k": "broken"}, sweep={"metric": "train/loss", "space": {"a.k": ["broken", "b"]}, "trials": 1})
    output = sweep(root, "--name", "two", code=1)
    assert [trial["state"] for trial in trials_of(root, "two")] == ["failed"]
    assert "trial 0: failed: train: exit status 1: k is broken" in output
    assert "failed         1 trials, the last: train: exit status 1: k is broken" in output
    assert "has searched another space, or by another metric" in sweep(root, code=2)
