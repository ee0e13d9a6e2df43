"""What the tests of the flows share besides fixtures."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(path: Path, count: int, seconds: float = 30) -> list[int]:
    """The process ids in a file, once there are so many."""
    wait_for(lambda: path.exists() and len(path.read_text().split()) >= count, seconds)
    return [int(word) for word in path.read_text().split()]
