"""A checkout that is held for one pipeline: its lock, its graph, its parameters, and whether its models are registered.

Used by ``flows/pipeline.py`` and, for scheduled runs, by ``flows/flow.py``.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.graph import Graph
from flows.outcome import Outcome, Result, UserError
from flows.stages import GraphError, Stage

LOCK = ".dvc/tmp/plm.lock"
"""Held by the pipeline that runs in the checkout, which writes its process into it when it begins."""

REGISTERED = ".dvc/tmp/plm-registered"
"""The digest of the ``dvc.lock`` that is registered."""


class HeldError(UserError):
    """Another pipeline runs in the checkout."""


@dataclass(frozen=True)
class Checkout:
    """A checkout that is held for one pipeline, and what is to be done in it."""

    root: Path
    graph: Graph
    held: int
    """The descriptor of the lock, for stages to hold on to."""
    force: bool
    due: int
    """How many stages have to run."""


@contextlib.contextmanager
def checked_out(root: Path, force: bool, say: Callable[[str], object]) -> Iterator[Checkout]:
    """Hold a checkout, read its graph and say what was mended, and if anything has to run check its parameters.

    Raises:
        HeldError: another pipeline holds it.
        UserError: parameters cannot be used.
        GraphError: ``dvc.yaml`` is broken.
    """
    with only_one(root) as held:
        try:
            graph = Graph(root)
        except GraphError:
            check_parameters(root)  # it knows better what DVC could not fill in
            raise
        for said in graph.mended:
            say(said)
        due = len(graph.stages) if force else sum(map(bool, graph.status().values()))
        if due:
            check_parameters(root)
        yield Checkout(root, graph, held, force, due)


def check_parameters(root: Path) -> None:
    """Have all sections of the parameters read and compared, before the first of the stages that would find out late.

    Raises:
        UserError: something is wrong, a line for each problem.
    """
    if not (root / "tasks/check.py").is_file():
        return  # a graph of other commands
    command = [sys.executable, "-m", "tasks.check"]
    checked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise UserError(checked.stderr.strip().removeprefix("error: "))


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[int]:
    """Hold the checkout for one pipeline; yields the lock's descriptor, for stages to hold on to.

    Raises:
        HeldError: another one holds it.
    """
    path = root / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            raise HeldError(
                f"another pipeline (process {pid}) runs in {root}; wait for it, or use another checkout"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock.fileno()


def idle(checkout: Checkout) -> Result | None:
    """The result of a run in a checkout in which nothing is to be done; None where something is."""
    if checkout.due or registration_due(checkout.root, checkout.graph.stages):
        return None
    return Result(tuple(Outcome(stage.name, "up to date") for stage in checkout.graph.stages))


def registration_due(root: Path, stages: Sequence[Stage]) -> bool:
    """Whether what the stages made has not been registered yet, such as after an outage."""
    marked = root / REGISTERED
    known = marked.read_text() if marked.exists() else ""
    return any(stage.register for stage in stages) and known != _lock_digest(root)


def mark_registered(root: Path) -> None:
    """Remember that what ``dvc.lock`` says now is registered."""
    (root / REGISTERED).write_text(_lock_digest(root))


def _lock_digest(root: Path) -> str:
    path = root / "dvc.lock"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"
