"""Stages on the nodes of a real Ray cluster: as here, whatever dies. It needs the extra ``cluster``."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import psutil
import pytest
from registries import PARAMS
from toys import alive, pids, wait_for

from flows.processes import supervisor
from plm_core.shared.errors import INTERRUPTED

pytestmark = [
    pytest.mark.slow,
    # Looked for and not imported, which takes seconds, where only others are run.
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed (make cluster)"),
]

SAVES = """
import os, pathlib, signal, sys, time

def save(number, frame):
    pathlib.Path("saved").write_text(signal.Signals(number).name)
    sys.exit(75)

signal.signal(signal.SIGINT, save)
pathlib.Path("pid").write_text(str(os.getpid()))
print("begun", flush=True)
time.sleep(900)
"""


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a core each; the tests' own node, to which their commands connect, has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1)
        made.wait_for_nodes()
        patch.setenv("RAY_ADDRESS", made.address)
        try:
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def begin():
    """Starts a process, whose output can be read. It ends with the test, or the next one would find its node taken."""
    started = []

    def run(folder, command, **env):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def start(begin):
    """Starts a command through the launcher."""

    def run(folder, *command, cores=1, gpus=0, together="", **env):
        launcher = ["flows.processes.ray_launcher", "--cores", str(cores), "--gpus", str(gpus), "--name", "x"]
        launcher += [f"--together={together}", "--"]
        supervised = [sys.executable, "-P", supervisor.__file__, "60", *command]
        return begin(folder, [sys.executable, "-m", *launcher, *supervised], **env)

    return run


@pytest.fixture
def pipeline(begin):
    """Starts a checkout's pipeline on the cluster."""

    def run(root):
        command = [sys.executable, "-m", "flows.cli", "run"]
        return begin(root, command, PLM_CLUSTER="ray", PLM_CORES="1")

    return run


def busy(cluster):
    """The nodes that run a command. Another process may run these tests with a cluster of its own."""
    raylets = {raylet.process.pid: node for node in cluster.worker_nodes for raylet in node.all_processes["raylet"]}
    processes = (process.info for process in psutil.process_iter(["ppid", "cmdline"]))
    runners = (info for info in processes if "ray::Runner" in " ".join(info["cmdline"] or ()))
    return [raylets[runner["ppid"]] for runner in runners if runner["ppid"] in raylets]


def test_ray_runs_a_command_as_locally(cluster, tmp_path, start):
    program = (
        "import os, sys; print(os.getcwd()); print(os.environ['MINE']); print(os.environ['CUDA_VISIBLE_DEVICES']);"
    )
    process = start(tmp_path, sys.executable, "-c", f"{program} print('café', end=''); sys.exit(7)", MINE="x y")
    lines = process.communicate()[0].splitlines()
    lines = [line for line in lines if not line.startswith("x waits for a node")]  # of one that is slow
    assert process.returncode == 7
    last, mark, _ = lines[3].partition(supervisor.ENDED)  # whose line it does not end
    assert [*lines[:3], last, mark] == [str(tmp_path), "x y", "", "café", supervisor.ENDED]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_saves_its_state_when_its_launcher_is_interrupted_or_killed(cluster, tmp_path, how, start):
    (tmp_path / "stage.py").write_text(SAVES)
    process = start(tmp_path, sys.executable, "stage.py")
    (pid,) = pids(tmp_path / "pid", 1)
    process.send_signal(how)
    process.communicate()
    assert process.returncode == (INTERRUPTED if how == signal.SIGINT else -signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    assert (tmp_path / "saved").read_text() == "SIGINT"


@pytest.mark.parametrize("together", ["", "2:few"])
def test_ray_resources_no_node_has_are_one_line(cluster, tmp_path, start, together):
    process = start(tmp_path, "true", cores=3, together=together)
    assert "error: no node of the Ray cluster has 3 cores and 0 GPUs (" in process.communicate()[0]
    assert process.returncode == 2


def test_ray_waits_for_busy_nodes_and_names_missing_checkout(cluster, tmp_path, start):
    folder = tmp_path / "gone"
    folder.mkdir()
    first = [start(tmp_path, "sh", "-c", "echo begun; until test -e go; do sleep 0.1; done") for _ in range(2)]
    for process in first:
        assert "begun\n" in process.stdout  # which may first say that it waits, too
    others = [start(place, "echo", "done") for place in (tmp_path, folder)]
    waits = "x waits for a node with 1 cores and 0 GPUs free\n"
    assert [process.stdout.readline() for process in others] == [waits, waits]
    folder.rmdir()
    (tmp_path / "go").touch()
    assert others[0].communicate()[0].startswith("done\n")
    expected = f"{folder}: missing; expected the checkout and its .venv at the same path on all nodes"
    assert expected in others[1].communicate()[0]
    assert [process.wait() for process in (*first, *others)] == [0, 0, 0, 2]


def test_ray_nodes_are_allocated_together_or_not_at_all(cluster, tmp_path, start):
    """Of two nodes the first group has both, though it uses one until another command of it comes."""
    first = start(tmp_path, "sh", "-c", "echo begun; sleep 900", together="2:first")
    assert "begun\n" in first.stdout
    second, single = start(tmp_path, "echo", "done", together="2:second"), start(tmp_path, "echo", "done")
    assert second.stdout.readline() == "x waits for 2 nodes with 1 cores and 0 GPUs free\n"
    assert single.stdout.readline() == "x waits for a node with 1 cores and 0 GPUs free\n"
    helper = start(tmp_path, "echo", "helped", together=":first")
    assert "helped\n" in helper.communicate()[0]
    first.kill()
    for process in (second, single):
        assert process.communicate()[0].startswith("done\n")
    late = start(tmp_path, "true", together=":first")
    assert "error: x: the first of its nodes is gone" in late.communicate()[0]
    assert late.returncode == INTERRUPTED


def test_ray_retries_a_dead_node_on_another(cluster, toy, pipeline):
    """The stage's first try takes its node with it."""
    root = toy(
        """
stages:
  one:
    cmd: python stage.py
    deps: [stage.py]
    outs: [out.txt]
  two:
    cmd: cat out.txt > two.txt
    deps: [out.txt]
    outs: [two.txt]
""",
        stage_py="""
import os, pathlib, time
if not pathlib.Path("pid").exists():
    pathlib.Path("pid").write_text(str(os.getpid()))
    time.sleep(900)
pathlib.Path("out.txt").write_text("made")
""",
        params_yaml=PARAMS,
    )
    process = pipeline(root)
    (pid,) = pids(root / "pid", 1)
    wait_for(lambda: len(busy(cluster)) == 1)  # what ran in the test before may not have left yet
    cluster.remove_node(busy(cluster)[0], allow_graceful=False)
    output = process.communicate()[0]
    cluster.add_node(num_cpus=1)
    assert (root / "two.txt").read_text() == "made", output
    assert "the node was lost" in output
    wait_for(lambda: not alive(pid))


def test_ray_without_a_cluster_is_one_line_and_retried(tmp_path, start):
    process = start(tmp_path, "true", RAY_ADDRESS="127.0.0.1:1")
    output = process.communicate()[0]
    assert process.returncode == INTERRUPTED, output
    assert [line for line in output.splitlines() if line.startswith("error: ")] == output.splitlines()[-1:]
    assert output.splitlines()[-1].startswith("error: no Ray cluster answers at 127.0.0.1:1 (")
