"""``plm run``: the whole graph of stages once, under Prefect. Answers at once when there is nothing to do.

Prefect takes 2 s to import and its server 6 s to start, so this module imports it only when work waits. The
flow itself is in ``flows/flow.py``.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from flows import display, server
from flows.graph import Graph
from flows.machine import Machine, MachineError
from flows.outcome import FailedError, Outcome, Result
from flows.stages import GraphError, Stage

Track = Callable[[Path], AbstractContextManager[str | None]]
"""Opens the pipeline's own tracking run and yields its id; see ``flows.tracking.pipeline_run``."""

Register = Callable[[Path, Sequence[Stage], str | None], object]
"""Registers what the stages made; see ``flows.promotion.register``."""


class PipelineError(Exception):
    """The pipeline cannot start; the message says why and what to do."""


class HeldError(PipelineError):
    """Another pipeline runs in the checkout."""


def run(root: Path, *, force: bool = False, track: Track | None = None, register: Register | None = None) -> Result:
    """Bring every stage up to date, independent ones side by side, then register what they made.

    With a Prefect server configured, each call is a flow run there. Without one, "all is up to date" is said
    at once; else the run has a server of its own, on the user's usual local database.

    Args:
        root: The checkout.
        force: Run every stage, up to date or not.
        track: Stands in for ``flows.tracking.pipeline_run``.
        register: Stands in for ``flows.promotion.register``.

    Raises:
        PipelineError: another pipeline runs in this checkout, parameters cannot be used, the configured server does
            not answer, or ``PLM_CORES`` or ``PLM_GPUS`` is no number.
        GraphError: ``dvc.yaml`` is broken.
    """
    root = root.resolve()
    prepare_environment()
    try:
        Machine.detect()
    except MachineError as error:
        raise PipelineError(str(error)) from error
    with checked_out(root, force, lambda said: print(f"warning: {said}", file=sys.stderr, flush=True)) as checkout:
        if configured := server.configured_url():
            _require(configured)
            return _run_flow(checkout, track, register)
        if not checkout.due and not registration_due(root, checkout.graph.stages):
            from flows.tracking import send_leftovers

            send_leftovers(root)
            return Result(tuple(Outcome(stage.name, "up to date") for stage in checkout.graph.stages))
        # The tracking run is opened here, not by the flow: it takes seconds too, in which the server starts.
        tracked = (track or default_track())(root) if checkout.due else contextlib.nullcontext()
        results: list[Result] = []
        with (
            contextlib.suppress(FailedError),
            server.LocalServer(root / ".dvc/tmp/plm-server.log") as local,
            tracked as parent_run_id,
            local.environment(),
        ):
            results.append(_run_flow(checkout, lambda _: contextlib.nullcontext(parent_run_id), register))
            if not results[0].ok:
                raise FailedError(results[0].error)  # through the tracking run
        return results[0]


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
        PipelineError: parameters cannot be used.
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


def prepare_environment() -> None:
    """Settings of the tools that must be there before they are imported; what the user has set stays."""
    for name, value in {
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Threads that wait for each other sleep instead of spinning: as fast alone, twice as fast beside other work.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": "%(asctime)s | %(task_run_name)s | %(message)s",
        "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": "%(asctime)s | %(message)s",
    }.items():
        os.environ.setdefault(name, value)


def check_parameters(root: Path) -> None:
    """Have all sections of the parameters read and compared, before the first of the stages that would find out late.

    Raises:
        PipelineError: something is wrong, a line for each problem.
    """
    if not (root / "tasks/check.py").is_file():
        return  # a graph of other commands
    command = [sys.executable, "-m", "tasks.check"]
    checked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise PipelineError(checked.stderr.strip().removeprefix("error: "))


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[int]:
    """Hold the checkout for one pipeline; yields the lock's descriptor, for stages to hold on to.

    Raises:
        HeldError: another one holds it.
    """
    path = root / ".dvc/tmp/plm.lock"
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


def registration_due(root: Path, stages: Sequence[Stage]) -> bool:
    """Whether what the stages made has not been registered yet, such as after an outage."""
    return any(stage.register for stage in stages) and _registered(root) != _lock_digest(root)


def mark_registered(root: Path) -> None:
    """Remember that what ``dvc.lock`` says now is registered."""
    (root / ".dvc/tmp/plm-registered").write_text(_lock_digest(root))


def default_track() -> Track:
    """What opens the tracking run unless something stands in for it."""
    from flows.tracking import pipeline_run

    return pipeline_run


def _registered(root: Path) -> str:
    path = root / ".dvc/tmp/plm-registered"
    return path.read_text() if path.exists() else ""


def _lock_digest(root: Path) -> str:
    path = root / "dvc.lock"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def _require(url: str) -> None:
    if not server.answers(url):
        raise PipelineError(
            f"PREFECT_API_URL: no Prefect server answers at {url}; start one with `prefect server start`,"
            " or unset it to run without"
        )


def _run_flow(checkout: Checkout, track: Track | None, register: Register | None) -> Result:
    from flows import flow

    results: list[Result] = []
    with display.shown():
        plm = flow.bound(track, register, results.append, checkout)
        state = plm(str(checkout.root), force=checkout.force, return_state=True)
    if not results:
        state.result()  # raises what kept the stages from being looked at
    return results[0]
