"""Brings a stage of a checkout up to date: its share of the machine, what DVC does around it, its process.

Used by the tasks of the flow (``flow.py``) and by a trial of a sweep (``flows/sweeps/trial.py``).
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from flows import flow_configs
from flows.processes import executor, resources
from flows.processes.process import StageProcesses
from flows.run import timing
from flows.run.checkout import Checkout
from flows.run.graph import Stage
from flows.run.run_result import Spent

Log = logging.Logger | logging.LoggerAdapter[Any]
"""Where the lines of a stage go: a logger of Prefect's or Python's."""


class Reproducer:
    """Brings stages of a checkout up to date, one at a time or several side by side."""

    def __init__(self, checkout: Checkout) -> None:
        self.processes = StageProcesses(checkout.root)
        self.begun = time.monotonic()
        self.graph = checkout.graph
        sharing = sum(stage.cores == "all" for stage in self.graph.stages)
        self.machine = executor.detect(self.processes.interrupted, sharing)
        self._paths = timing.longest_paths(checkout.root, self.graph.stages)
        self._checkout = checkout
        self._took = timing.last_durations(checkout.root)
        self._withheld = {flow_configs.read_notify(checkout.root).urls_from: ""}
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
    ) -> None:
        """Wait for the stage's share of the machine, run it, and have DVC keep what it made.

        ``log`` receives its lines, and ``spent`` is filled in as it runs.

        Raises:
            StageError: its command failed.
            GraphError: DVC fails, or a dependency changed while it ran.
            FullError: there is too little disk space for it.
            CancelledError: the pipeline was cancelled before it began.
        """
        with self.machine.acquire(stage, self._paths[stage.name], log.info) as grant:
            _, peak = self._took.get(stage.name, (0.0, 0)) if not grant.launcher else (0.0, 0)
            resources.warn_if_scarce(self._checkout.root, self.graph.size(stage.name), peak, log.warning)
            log.info("runs: %s", "; ".join(reasons), extra={"stage_event": "began"})
            spent.begun = time.monotonic() - self.begun
            env = {"PLM_STAGE": stage.name, **self._withheld, **grant.env}
            if parent_run_id:
                env["PLM_PARENT_RUN_ID"] = parent_run_id
            with self.graph.reproducing(stage.name, self._checkout.force) as command:
                if not command:
                    return
                env = command.env | env
                with executor.with_helpers(self.processes, self._checkout.root, stage.name, grant, env, log.info):
                    for line in command.lines:
                        used = self.processes.run(
                            stage.name,
                            line,
                            log.info,
                            env=env,
                            pass_fds=(self._checkout.held, *grant.fds),
                            may_fork=not grant.fds,  # GPU drivers are not known to survive a fork
                            minutes=stage.minutes,
                            launcher=grant.launcher,
                        )
                        spent.cpu += used.cpu
                        spent.memory = max(spent.memory, used.memory)
