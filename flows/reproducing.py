"""Brings a stage of a checkout up to date: its share of the machine, what DVC does around it, its process.

Used by the tasks of the flow (``flow.py``) and by a trial of a sweep (``flows/sweeps/trial.py``).
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flows import placement, room, settings, timing
from flows.checkout import Checkout
from flows.helpers import helped
from flows.outcome import Spent
from flows.process import StageProcesses
from flows.stages import Stage


class Log(Protocol):
    """Where the lines of a stage go, such as a logger of Prefect's or Python's."""

    def info(self, message: str, /, *values: object, extra: Mapping[str, object] | None = None) -> None:
        """Log what happens."""

    def warning(self, message: str, /, *values: object) -> None:
        """Log what is not as it should be."""


class Reproducer:
    """Brings stages of a checkout up to date, one at a time or several side by side."""

    def __init__(self, checkout: Checkout) -> None:
        self.processes = StageProcesses(checkout.root)
        self.begun = time.monotonic()
        self.graph = checkout.graph
        sharing = sum(stage.cores == "all" for stage in self.graph.stages)
        self.machine = placement.detect(self.processes.interrupted, sharing)
        self.expected = timing.expected(checkout.root, self.graph.stages)
        """For each stage, the seconds that it takes, and those of the longest path that begins with it."""
        self._checkout = checkout
        self._peaks = timing.peaks(checkout.root)
        self._withheld = {settings.notify(checkout.root).urls_from: ""}
        """Variables with secrets that no stage needs."""

    def reasons(self, stage: Stage) -> list[str]:
        """Why the stage has to run; empty if it is up to date. Raises GraphError."""
        return ["forced"] if self._checkout.force else self.graph.reasons(stage.name)

    def run(
        self,
        stage: Stage,
        reasons: Sequence[str],
        parent_run_id: str | None,
        log: Log,
        spent: Spent,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for the stage's share of the machine, run it, and have DVC keep what it made.

        ``log`` receives its lines, ``spent`` is filled in as it runs, and ``then`` is called when it has succeeded,
        before its share of the machine is released.

        Raises:
            StageError: its command failed.
            GraphError: DVC fails, or a dependency changed while it ran.
            FullError: there is too little disk space for it.
            CancelledError: the pipeline was cancelled before it began.
        """
        with self.machine.acquire(stage, *self.expected[stage.name], say=log.info) as grant:
            peak = 0 if grant.launcher else self._peaks.get(stage.name, 0)
            room.look(self._checkout.root, self.graph.size(stage.name), peak, log.warning)
            log.info("runs: %s", "; ".join(reasons), extra={"stage_event": "began"})
            spent.begun = time.monotonic() - self.begun
            env = {"PLM_STAGE": stage.name, **self._withheld, **grant.env}
            if parent_run_id:
                env["PLM_PARENT_RUN_ID"] = parent_run_id
            with self.graph.reproducing(stage.name, self._checkout.force) as command:
                if command:
                    run = functools.partial(
                        self.processes.run,
                        stage.name,
                        on_line=log.info,
                        env=command.env | env,
                        pass_fds=(self._checkout.held, *grant.fds),
                        may_fork=not grant.fds,  # GPU drivers are not known to survive a fork
                        minutes=stage.minutes,
                        launcher=grant.launcher,
                    )
                    with helped(self.processes, self._checkout.root, stage.name, grant, command.env | env, log.info):
                        for used in map(run, command.lines):
                            spent.cpu += used.cpu
                            spent.memory = max(spent.memory, used.memory)
            then()
