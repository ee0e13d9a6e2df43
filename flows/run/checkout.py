"""A checkout held for one pipeline: its lock, its graph, its parameters.

Used by ``pipeline.py`` and, for scheduled runs, by ``flow.py``.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows import flow_configs
from flows.registry import promotion
from flows.run.graph import Graph, GraphError
from flows.run.run_result import Result, StageOutcome
from plm_core.shared.errors import UserError
from plm_core.shared.files import try_lock

LOCK = ".dvc/tmp/plm.lock"
"""Says who holds the checkout, or held it last: a pipeline writes its process id, any other command adds words."""


class HeldError(UserError):
    """Another pipeline runs in the checkout, or a command that excludes pipelines."""


@dataclass(frozen=True)
class Checkout:
    """A checkout held for one pipeline, and what has to be done in it."""

    root: Path
    graph: Graph
    held: int
    """The descriptor of the lock, which stages inherit."""
    force: bool
    stale: tuple[str, ...]
    """The names of the stages that have to run."""


@contextlib.contextmanager
def open_checkout(
    root: Path, force: bool, say: Callable[[str], object], models: Sequence[str] = ()
) -> Iterator[Checkout]:
    """Hold a checkout, read its graph, only for these ``models`` if any are given, say what was repaired, and check the
    parameters if anything has to run.

    Raises:
        HeldError: another pipeline or command holds it.
        UserError: parameters cannot be used, or there is no such model.
        GraphError: ``dvc.yaml`` is broken.
    """
    with lock_checkout(root, pipeline=True) as held:
        try:
            graph = Graph(root)
        except GraphError:
            check_parameters(root)  # its message is better if DVC could not fill in a parameter
            raise
        for repair in graph.mended:
            say(repair)
        if models:
            graph.leave_out_others(models)
        reasons = {stage.name: ["forced"] for stage in graph.stages} if force else graph.status()
        stale = tuple(name for name, why in reasons.items() if why)
        if stale:
            check_parameters(root)
        yield Checkout(root, graph, held, force, stale)


def check_parameters(root: Path) -> None:
    """Check every section of the parameters, so that an error does not surface hours into the run.

    Raises:
        UserError: something is wrong, with a line per problem.
    """
    if not (root / "tasks/commands/check.py").is_file():
        return  # a graph of other commands
    command = [sys.executable, "-m", "tasks.commands.check"]
    checked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise UserError(checked.stderr.strip().removeprefix("error: "))
    flow_configs.read_tracking(root)


@contextlib.contextmanager
def lock_checkout(root: Path, pipeline: bool = False) -> Iterator[int]:
    """Hold the checkout for one pipeline, or for a command that excludes pipelines.

    Yields the lock's descriptor, which stages inherit. The folder itself is locked, because a file in it may be deleted
    in the meantime; the file only says who holds it.

    Raises:
        HeldError: another process holds it, and not only for a moment.
    """
    path = root / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file, contextlib.ExitStack() as stack:
        held = os.open(root, os.O_RDONLY)
        stack.callback(os.close, held)
        try:
            free = try_lock(held)
        except OSError:  # a folder on NFS cannot be locked, but the file can
            held = file.fileno()
            free = try_lock(held)
        if not free:
            file.seek(0)
            pid, _, other = file.read().strip().partition(" ")
            raise HeldError(
                f"another {'plm command' if other else 'pipeline'} (process {pid or 'unknown'}) is running in {root};"
                " wait for it, or use another checkout"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n" if pipeline else f"{os.getpid()} is not a pipeline\n")
        file.flush()
        yield held


def pipeline_began(root: Path) -> float:
    """When the pipeline that holds the checkout began, in seconds since 1970; 0 if no pipeline holds it."""
    path = root / LOCK
    return path.stat().st_mtime if path.read_text().strip().isdecimal() else 0.0


def pipeline_is_running(root: Path) -> bool:
    """Whether a pipeline holds the checkout, on any machine and in any container."""
    try:
        with lock_checkout(root):
            return False
    except HeldError:
        return pipeline_began(root) > 0


def nothing_to_do(checkout: Checkout) -> Result | None:
    """The result of a run if nothing has to be done in the checkout; otherwise None."""
    if checkout.stale or promotion.registration_needed(checkout.root, checkout.graph.stages):
        return None
    return Result(tuple(StageOutcome(stage.name, "up to date") for stage in checkout.graph.stages))
