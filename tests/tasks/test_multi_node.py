"""``docs/how-to/multi-node.md`` on one machine: two agents of torchrun for two machines, with a gloo process each."""

import signal
import socket
import sys
import threading
import time

import psutil
import pytest
import torch
from projects import finish
from safetensors.torch import load_file

from flows.processes import executor
from flows.processes.executor import Cluster
from flows.processes.process import StageError, StageProcesses
from flows.run.graph import Stage
from plm_core.shared.errors import USER_ERROR
from tasks.runtime.torchrun_launcher import nodes_wanted

pytestmark = pytest.mark.slow

LONGER = {
    "pretrain__gpt__training__steps": 80,
    "pretrain__gpt__training__valid_every": 20,
    # Its masks are drawn for each process; without them, results differ by the rounding of sums alone.
    "pretrain__gpt__model__dropout": 0.0,
}


@pytest.fixture(scope="module")
def undisturbed(built, tmp_path_factory):
    """What one process makes of 80 steps."""
    project = built.copied(tmp_path_factory.mktemp("alone") / "project")
    project.change(**LONGER)
    project.run("tasks.stages.pretrain", "gpt")
    return project


@pytest.fixture
def node(small):
    """Starts torchrun as one of the machines would; ends all of them."""
    small.change(**LONGER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = []

    def start(nodes, *options, **env):
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=pretrain-gpt")
        program = ("-m", "tasks.stages.pretrain", "gpt")
        # As the recipe has it: torch's agents would give restarted processes a store with addresses of those before.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = (f"--nnodes={nodes}", "--nproc-per-node=1", *meeting, *options, *program)
        agents.append(small.start("torch.distributed.run", *command, **env))
        while not answers(port):  # the first one is where they meet
            assert agents[0].poll() is None, agents[0].communicate()
            time.sleep(0.05)
        return agents[-1]

    yield start
    for agent in agents:
        if agent.poll() is None:
            kill(agent)


def answers(port):
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill(agent):
    """End an agent and its processes at once, as a power failure does."""
    for process in [*psutil.Process(agent.pid).children(recursive=True), agent]:
        process.send_signal(signal.SIGKILL)


def assert_same(project, undisturbed):
    """Weights within the rounding of float32 sums taken in another order, the same steps, nothing left."""
    first, second = (load_file(p.root / "artifacts/models/gpt/model.safetensors") for p in (undisturbed, project))
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=1e-2, atol=1e-3)
    curves = [(p.root / "artifacts/curves/gpt.csv").read_text() for p in (undisturbed, project)]
    steps = [[line.split(",")[0] for line in curve.splitlines()] for curve in curves]
    assert steps[0] == steps[1]
    assert project.metrics("pretrain-gpt").keys() == undisturbed.metrics("pretrain-gpt").keys()
    assert not list((project.root / "artifacts/snapshots").glob("*"))


def test_two_machines_train_what_one_process_trains(small, node, undisturbed):
    agents = [node(2, PLM_PARALLEL="fsdp") for _ in range(2)]
    outputs = [finish(agent)[0] for agent in agents]
    assert sum("80/80" in out for out in outputs) == 1, outputs
    assert_same(small, undisturbed)


def test_a_machine_that_dies_is_left_behind(small, node, undisturbed):
    agents = [node("1:2", "--max-restarts=3") for _ in range(2)]
    small.snapshot(agents[0])
    kill(agents[1])
    out, _ = finish(agents[0])
    assert "resumed" in out
    assert_same(small, undisturbed)


@pytest.fixture
def pipeline(small, monkeypatch):
    """Trains as ``plm run`` does with two nodes of a cluster, which ``env`` stands in for; returns what was printed."""
    small.change(**LONGER)
    monkeypatch.setattr(executor, "AGAIN_S", 0.5)
    stage = Stage("pretrain@gpt", nodes="together")
    lines = []

    def run(*launcher):
        processes = StageProcesses(small.root)
        with Cluster(launcher or ("env",), cores=1, gpus=0, nodes=2).acquire(stage) as grant:
            env = small._environment({"PLM_RANKS": "1", **grant.env})
            with executor.with_helpers(processes, small.root, stage.name, grant, env, lines.append):
                command = [sys.executable, "-m", "tasks.stages.pretrain", "gpt"]
                processes.run(stage.name, command, lines.append, env=env, launcher=grant.launcher)
        return lines

    run.lines = lines
    return run


def torchruns(project):
    """The agents of nodes that help."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[1:3] == ["-m", "torch.distributed.run"]
        and process.cwd() == str(project.root)
    ]


def test_the_pipeline_places_and_joins_the_nodes_itself(small, pipeline, undisturbed):
    lines = pipeline()
    assert "training on 2 nodes; starts when all of them have joined" in lines
    assert sum("80/80" in line for line in lines) == 1
    assert_same(small, undisturbed)
    assert torchruns(small) == []
    assert not list((small.root / "artifacts/parts").glob("*.help"))


def test_the_pipeline_replaces_a_node_that_dies(small, pipeline, undisturbed):
    killed = []

    def kill_one():
        while not any((small.root / "artifacts/snapshots").glob("*/step-*/SHA256SUMS")):
            time.sleep(0.05)
        (agent,) = torchruns(small)
        killed.append(agent)
        kill(agent)

    thread = threading.Thread(target=kill_one)
    thread.start()
    lines = pipeline()
    thread.join()
    assert killed
    assert any("a helping node ended with status" in line for line in lines)
    assert any("resumed; the last report was after step" in line for line in lines)
    assert_same(small, undisturbed)


@pytest.mark.parametrize("restarts", [3, 0], ids=["on all nodes", "after another node has closed the meeting"])
def test_permanent_node_failure_ends_without_restart(small, pipeline, restarts):
    small.change(pretrain__gpt__training__optimizer__learning_rate=1e30)
    with pytest.raises(StageError) as failed:
        pipeline("bash", "-c", f'exec "${{{{@/--max-restarts=3/--max-restarts={restarts}}}}}"', "bash")
    assert failed.value.status == USER_ERROR
    assert any(line.startswith("error: pretrain.gpt.training.optimizer") for line in failed.value.tail)


def test_nodes_that_do_not_divide_the_batch_are_left_out(monkeypatch, capsys):
    monkeypatch.setenv("PLM_HELP", "help")
    monkeypatch.setenv("PLM_NODES", "3")
    assert nodes_wanted(8, 2) == 2
    assert capsys.readouterr().out == "2 of 3 nodes: a batch of 8 rows does not divide evenly among more\n"
    monkeypatch.delenv("PLM_HELP")
    assert nodes_wanted(8, 2) == 1
