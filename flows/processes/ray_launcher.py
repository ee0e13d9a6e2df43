"""Runs one command on a node of a Ray cluster:

``python -m flows.processes.ray_launcher --cores N --gpus N --name NAME -- COMMAND...``

``--together=NODES:GROUP`` waits until that many nodes are free, and reserves the others for commands with
``--together=:GROUP``, so a pipeline that needs several nodes never holds one while it waits for more.

``PLM_CLUSTER=ray`` puts this before the commands of stages, which are those of ``supervisor.py``. Their lines
are printed here, a SIGINT here closes the command's standard input there, which ends it, and its exit status becomes
this process's. The input also closes if this process dies, or the node loses the cluster. Exit status 75, which is
retried, means that the node died or no cluster answers.

Ray moves no files: the checkout, and this Python, are at the same path on all nodes. Ray is an extra, and imported only
here: ``pip install 'plm-pipeline[cluster]'``.
"""

import argparse
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.processes import supervisor
from plm_core.shared.errors import INTERRUPTED, USER_ERROR

TOLD_S = 10.0
"""How long a command may wait for a node before that is reported."""
CONNECT_S = 10.0
"""How long a cluster may take to answer."""
BATCH_S = 0.5
"""How long lines are collected on the node before they are sent."""
OWN = ("RAY_", "CUDA_VISIBLE_DEVICES")
"""The prefixes of variables that are the node's own."""
LOST = f"{supervisor.ENDED}{128 + signal.SIGKILL:d} 0 0"
"""Stands in for the last line of a supervisor that was killed."""


class Runner:
    """An actor of Ray on the node: it has the cores and GPUs for as long as it lives."""

    def start(self, command: Sequence[str], folder: str, env: Mapping[str, str], gpus: int) -> str:
        """Start the command in a folder; returns why that was not possible, or an empty string."""
        node = socket.gethostname()
        for path in (folder, command[0]):
            if not os.path.exists(path):  # noqa: PTH110 no module of ours need be on the node
                return f"{node}: {path}: missing; expected the checkout and its .venv at the same path on all nodes"
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "") if gpus else ""}
        self._process = subprocess.Popen(
            # Detached: Ray kills the children of a worker that ends, but the command has to save its state.
            ["setsid", "--fork", *command],
            cwd=folder,
            env={**env, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        return ""

    def lines(self, seconds: float) -> tuple[list[str], bool]:
        """The lines of the command since the last call, collected for ``seconds``; and whether it has ended."""
        lines: list[str] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                return lines, True
            lines.append(line)
        return lines, False

    def end(self) -> None:
        """Have the command save its state and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


def run(ray: Any, cores: int, gpus: int, name: str, together: str, command: Sequence[str]) -> int:
    """Run the command on a node, print its lines, and return its exit status."""
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    nodes, _, group = together.partition(":")
    there = [
        (node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]
    ]
    if not any(has[0] >= cores and has[1] >= gpus for has in there):
        has = ", ".join(f"{cpu:g} cores and {gpu:g} GPUs" for cpu, gpu in there)
        why = f"no node of the Ray cluster has {cores} cores and {gpus} GPUs ({has})"
        return _failed(f"{why}; expected other PLM_CORES or PLM_GPUS", USER_ERROR)
    place: Any = "DEFAULT"  # anywhere
    if group:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        try:
            if nodes:  # Ray frees the group when this process ends
                wants = [{"CPU": cores, "GPU": gpus}] * int(nodes)
                reserved = ray.util.placement_group(wants, strategy="SPREAD", name=group)
            else:
                reserved = ray.util.get_placement_group(group)
        except ValueError:
            return _failed(f"{name}: the first of its nodes is gone", INTERRUPTED)
        place = PlacementGroupSchedulingStrategy(reserved)
    options = {"num_cpus": cores, "num_gpus": gpus, "max_concurrency": 2, "scheduling_strategy": place}
    actor = ray.remote(Runner).options(**options).remote()
    env = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    started = actor.start.remote(command, str(Path.cwd()), env, gpus)
    begun = time.monotonic()
    notified = False
    while not ray.wait([started], timeout=BATCH_S)[0]:
        if ending.is_set():
            return INTERRUPTED
        if not notified and time.monotonic() - begun > TOLD_S:
            notified = True
            wanted = f"{nodes} nodes" if nodes else "a node"
            print(f"{name} waits for {wanted} with {cores} cores and {gpus} GPUs free", flush=True)
    if why := ray.get(started):
        return _failed(why, USER_ERROR)
    ended = LOST
    over = notified_end = False
    while not over:
        if ending.is_set() and not notified_end:
            notified_end = True
            actor.end.remote()
        lines, over = ray.get(actor.lines.remote(BATCH_S))
        for line in lines:
            ended = line if supervisor.ENDED in line else ended
            print(line, flush=True)
    return int(ended.rpartition(supervisor.ENDED)[2].split()[0])


def _failed(why: str, status: int) -> int:
    print(f"error: {why}", flush=True)
    return status


def main() -> int:
    """Connect to the cluster and run the command in the arguments; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="flows.processes.ray_launcher", description="Run a command on a node of a Ray cluster."
    )
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--together", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError:
        return _failed("PLM_CLUSTER: Ray is not installed; expected `pip install 'plm-pipeline[cluster]'`", USER_ERROR)
    try:
        if (where := re.fullmatch(r"(.+):(\d+)", address)) is not None:  # Ray itself tries for minutes
            socket.create_connection((where[1], int(where[2])), CONNECT_S).close()
        ray.init(
            address=address,
            namespace="plm",  # for the names of the groups
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except Exception as error:  # noqa: BLE001 Ray raises too many kinds to list
        reason = " ".join(str(error).split())[:300]
        return _failed(
            f"no Ray cluster answers at {address} ({reason}); expected `ray start --head`, or RAY_ADDRESS", INTERRUPTED
        )
    try:
        return run(ray, given.cores, given.gpus, given.name, given.together, given.command)
    except RayError as error:
        return _failed(f"the node was lost: {' '.join(str(error).split())[:300]}", INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
