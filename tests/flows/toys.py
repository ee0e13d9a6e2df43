"""What the tests of the flows share besides fixtures."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from flows.schedule import prefect_server


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for what must come; so long that a busy machine is never what a test finds."""
    deadline = time.monotonic() + 1800
    while not condition():
        assert time.monotonic() < deadline, f"not within half an hour: {condition}"
        time.sleep(0.05)


def hear_sigint() -> None:
    """For ``preexec_fn``: tests started in the background of a shell ignore SIGINT, and so would their processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(path: Path, count: int) -> list[int]:
    """The process ids in a file, once it has this many."""
    wait_for(lambda: path.exists() and len(path.read_text().split()) >= count)
    return [int(word) for word in path.read_text().split()]


def plm(root: Path, *words: str, before: Sequence[str] = (), **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the `plm` command in a folder, possibly behind another command."""
    command = [*before, sys.executable, "-m", "flows.cli", *words]
    return subprocess.run(command, cwd=root, env=os.environ | env, capture_output=True, text=True, check=False)


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a")
    return subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True).stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(home: Path, port: int) -> tuple["subprocess.Popen[bytes]", str]:
    """A Prefect server with its scheduler, in a process group of its own, once it answers; and its address."""
    # Not `--port`: the server's user interface would look for its API elsewhere.
    env = {"PREFECT_HOME": str(home), "PREFECT_SERVER_API_PORT": str(port), "PREFECT_SERVER_API_HOST": "127.0.0.1"}
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start"],
            env={**os.environ, **env},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}/api"
    wait_for(lambda: prefect_server.answers(url))
    return process, url
