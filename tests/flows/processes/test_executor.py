"""Where stages run: here, or through a launcher, which is a command like any other."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from registries import PARAMS
from toys import alive, pids, wait_for

from flows.processes import executor
from flows.processes.process import StageError, StageProcesses
from flows.processes.resources import Grant
from flows.run.graph import Stage
from plm_core.shared.errors import UserError
from plm_core.shared.files import atomic_text


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("PLM_CLUSTER", "PLM_CORES", "PLM_GPUS", "PLM_NODES"):
        monkeypatch.delenv(name, raising=False)


def launcher(stage, **env):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        with executor.detect().acquire(stage) as grant:
            return " ".join(grant.launcher)


def test_launcher_receives_the_resources_of_a_stage():
    srun = "env --cpus-per-task={cores} --gpus={gpus} '--job-name=my {stage}'"
    wanted = {"PLM_CLUSTER": srun, "PLM_CORES": "8"}
    assert launcher(Stage("pack"), **wanted) == "env --cpus-per-task=1 --gpus=0 --job-name=my pack"
    assert launcher(Stage("pretrain@gpt", gpu="all", cores="all"), **wanted).startswith(
        "env --cpus-per-task=8 --gpus=0 "
    )
    wanted["PLM_GPUS"] = "4"
    assert launcher(Stage("finetune", gpu=True), **wanted).startswith("env --cpus-per-task=1 --gpus=1 ")
    assert launcher(Stage("pretrain@gpt", gpu="all"), **wanted).startswith("env --cpus-per-task=4 --gpus=4 ")
    assert launcher(Stage("many", cores=99), **wanted).startswith("env --cpus-per-task=8 ")


def test_ray_is_a_launcher_of_this_python():
    command = launcher(Stage("pretrain@gpt", gpu=True), PLM_CLUSTER="ray", PLM_CORES="3", PLM_GPUS="2")
    assert (
        command
        == f"{sys.executable} -m flows.processes.ray_launcher --cores 1 --gpus 1 --name pretrain@gpt --together= --"
    )


def test_ray_stage_of_several_nodes_has_one_name(monkeypatch):
    for name, value in (("CLUSTER", "ray"), ("CORES", "1"), ("NODES", "3")):
        monkeypatch.setenv(f"PLM_{name}", value)
    cluster = executor.detect()
    with cluster.acquire(Stage("pretrain@gpt", nodes="together")) as grant:
        (first,), (other,) = ([part for part in some if "together" in part] for some in (grant.launcher, grant.helping))
        assert first == f"--together=3{other.removeprefix('--together=')}"
        assert len(other) > len("--together=:")
    with cluster.acquire(Stage("clean", nodes="all")) as grant:
        assert grant.helping == grant.launcher
        assert "--together=" in grant.launcher


def test_a_stage_that_can_use_nodes_gets_whole_ones(monkeypatch):
    for name, value in (("CLUSTER", "env {cores}"), ("CORES", "8"), ("NODES", "3")):
        monkeypatch.setenv(f"PLM_{name}", value)
    cluster = executor.detect()
    with cluster.acquire(Stage("clean", nodes="all")) as grant:
        assert (grant.launcher, grant.helpers) == (("env", "8"), 2)
        assert grant.env == {"PLM_CORES": "8", "PLM_NODES": "3", "PLM_HELP": "artifacts/parts/clean.help"}
        assert grant.wanted == grant.env["PLM_HELP"]
    with cluster.acquire(Stage("tokenizer")) as grant:
        assert (grant.launcher, grant.env, grant.helpers) == (("env", "1"), {}, 0)
    monkeypatch.setenv("PLM_NODES", "many")
    with pytest.raises(UserError, match="PLM_NODES: found 'many'; expected a number of nodes, 1 or more"):
        executor.detect()


EXPECTED = r".*; expected `ray`, or a command such as `srun --cpus"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((given, EXPECTED) for given in ("env {nodes}", "env {", "env '", "env {0}")),
        ("srnu -n1", "'srnu -n1': no program 'srnu' on the PATH"),
    ],
)
def test_invalid_launcher_is_one_line(monkeypatch, given, message):
    monkeypatch.setenv("PLM_CLUSTER", given)
    with pytest.raises(UserError, match=f"PLM_CLUSTER: {message}"):
        executor.detect()


@pytest.mark.slow
def test_a_pipeline_runs_behind_a_launcher(toy, on_server):
    """``env`` of coreutils stands in for a cluster's launcher: a command that runs what follows it."""
    root = toy(
        """
stages:
  one:
    cmd: echo "$WHERE $PLM_STAGE" > one.txt
    outs: [one.txt]
  two:
    cmd: cat one.txt; echo "error is here"; exit 9
    deps: [one.txt]
""",
        params_yaml=PARAMS,
    )
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run"],
        cwd=root,
        env={**os.environ, "PLM_CLUSTER": "env WHERE=elsewhere-{stage}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert (root / "one.txt").read_text() == "elsewhere-one one\n"
    assert "error: two: exit status 9: error is here" in done.stderr


LAUNCHER = """
import os, signal, subprocess, sys

signal.signal(signal.SIGINT, signal.SIG_IGN)
print("placed", flush=True)
there = subprocess.Popen(sys.argv[2:], start_new_session=True)  # with this one's standard input
there.wait() if sys.argv[1] == "waits" else os.kill(os.getpid(), signal.SIGKILL)
sys.exit(0)  # whatever became of it
"""


@pytest.fixture
def launched(tmp_path):
    """Runs a shell's command through a launcher that reports nothing and forwards no signal; returns its output."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    processes = StageProcesses(tmp_path, grace_s=10)
    lines = []

    def run(command, how="waits"):
        launcher = [sys.executable, str(tmp_path / "launcher.py"), how]
        return processes.run("one", ["sh", "-c", command], lines.append, launcher=launcher)

    run.processes, run.lines = processes, lines
    return run


def test_launcher_status_is_that_of_the_stage(launched):
    assert launched("true").memory > 0
    with pytest.raises(StageError, match="one: exit status 9: no more") as failed:
        launched("echo 'error: no more'; exit 9")
    assert not failed.value.transient
    assert launched.lines == ["placed", "placed", "error: no more"]


def test_launcher_that_ends_before_its_stage_is_retried(launched):
    with pytest.raises(
        StageError, match="the command in PLM_CLUSTER ended with status 137 and did not report how the stage"
    ) as lost:
        launched("sleep 600", "dies")
    assert lost.value.transient


def test_a_stage_ends_with_its_state_saved_when_the_launcher_s_input_closes(launched, tmp_path):
    code = "trap 'echo saved > state; exit 75' INT; echo $$ > pid; while true; do sleep 0.1; done"

    with ThreadPoolExecutor(1) as threads:
        threads.submit(launched, code)
        (pid,) = pids(tmp_path / "pid", 1)
        launched.processes.interrupt_all()
    wait_for(lambda: not alive(pid))
    assert (tmp_path / "state").read_text() == "saved\n"


@pytest.fixture
def helping(tmp_path):
    """Runs the block as a stage that may be helped on this many nodes; ``env`` stands in for a cluster."""
    processes = StageProcesses(tmp_path, grace_s=10)
    lines = []

    def run(nodes=1):
        grant = Grant({}, launcher=("env",), helpers=nodes, helping=("env",), wanted="wanted")
        return executor.with_helpers(processes, tmp_path, "clean", grant, {"PLM_STAGE": "clean"}, lines.append)

    def ask(code):
        atomic_text(tmp_path / "wanted", json.dumps(["sh", "-c", code]))

    run.processes, run.lines, run.ask = processes, lines, ask
    return run


def test_stage_gets_helpers_on_request_until_it_ends(helping, tmp_path):
    helping.ask("echo of one that was killed >> helpers")
    with helping(nodes=2):
        time.sleep(1.2)
        assert not (tmp_path / "helpers").exists()
        helping.ask("trap 'echo ended; exit' INT; echo $$ >> helpers; echo $PLM_STAGE; while true; do sleep 0.1; done")
        helpers = pids(tmp_path / "helpers", 2)
        assert all(map(alive, helpers))
        wait_for(lambda: len(helping.lines) == 2)
    assert not any(map(alive, helpers))
    assert helping.lines == ["clean", "clean"]


def test_failed_helper_is_reported_and_replaced(helping, monkeypatch, tmp_path):
    monkeypatch.setattr(executor, "AGAIN_S", 0.1)
    with helping():
        helping.ask("echo no room; test -e second || { touch second; exit 3; }; touch third; exec sleep 600")
        wait_for((tmp_path / "third").exists)
        helping.processes.run("clean", ["echo", "done"], helping.lines.append)
    assert helping.lines[:2] == ["no room", "clean: a helping node ended with status 3: no room"]
    assert helping.lines[2:] == ["no room", "done"]


def test_stages_that_use_several_nodes_take_turns(monkeypatch):
    for name, value in (("CLUSTER", "env"), ("NODES", "2")):
        monkeypatch.setenv(f"PLM_{name}", value)
    cluster = executor.detect()
    running = []

    def run(name):
        with cluster.acquire(Stage(name, nodes="all")):
            running.append(name)
            assert len(running) == 1
            time.sleep(0.1)
            running.remove(name)

    with ThreadPoolExecutor(3) as threads, cluster.acquire(Stage("tokenizer")):
        for future in [threads.submit(run, name) for name in "abc"]:
            future.result()


def test_helpers_end_with_the_pipeline(helping, tmp_path):
    with helping():
        helping.ask("echo $$ > helper; exec sleep 600")
        (helper,) = pids(tmp_path / "helper", 1)
        helping.processes.interrupt_all()
        assert not alive(helper)
