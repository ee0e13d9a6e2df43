"""A run while it is being sent to MLflow, and what is seen of the machine meanwhile. Used by the recorder."""

import contextlib
import time
from typing import TYPE_CHECKING

from plm_core.files import atomic_text
from plm_core.shared import paths
from tasks.tracking import service
from tasks.tracking.journal import FORMAT, SENDER, Journal, milliseconds
from tasks.tracking.sender import Sender
from tasks.tracking.store import page_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLUSH_S = 5.0
"""The journal of a living run is sent this often."""

SYSTEM_METRICS_S = (2.0, 30.0)
"""Sampling interval of CPU, memory, disk, network and GPU: at first, so that a stage of 10 s has points, and at most;
between them a twentieth of the run so far."""


class Run:
    """One journal while it is being sent."""

    def __init__(self, journal: Journal, mine: bool = False) -> None:
        self.journal, self.mine = journal, mine
        """``mine``: this process writes it too."""
        self.opening = journal.opening()
        self.sender: Sender | None = None
        self.due = self.tried = self.sample_due = 0.0
        self.ended = self.linked = self.told = False

    def unreadable(self) -> bool:
        """Whether nothing of it can be sent, which is told once."""
        found = self.opening.get("format", 1)
        if found > FORMAT:
            why = f"is of format {found}; expected at most {FORMAT}: a newer version sends it"
        elif self.opening or self.living() or not self.journal.size or self.journal.sent().run:
            return False
        else:
            why = "its first message is damaged, so that MLflow cannot have it; look at it, and delete it"
        if not self.told:
            service.warn(f"{self.journal.path}: {why}")
        self.told = True
        return True

    def living(self) -> bool:
        """Whether its writer lives."""
        return not self.ended if self.mine else self.journal.written()

    def finished(self) -> bool:
        """Whether MLflow has it all, though its file is kept for its training to go on."""
        sent = self.sender.sent if self.sender else self.journal.sent()
        return sent.closed and sent.offset >= self.journal.size

    def send(self, living: bool, store: "tuple[MlflowClient, str]") -> None:
        """Send what there is, and the end of a run that has ended; raises what MLflow raises."""
        if not self.journal.lock(SENDER):
            return
        try:
            self.sender = self.sender or Sender(self.journal, *store)
            self.sender.send()
            self._link(self.sender)
            if not living:
                self.sender.close()
        finally:
            self.journal.unlock(SENDER)
        self.due = time.monotonic() + FLUSH_S

    def sample(self, monitor: "Monitor", now: float) -> None:
        """Add system metrics to the run when they are due; their step is its age in seconds."""
        if not self.opening.get("system_metrics") or now < self.sample_due:
            return
        shortest, longest = SYSTEM_METRICS_S
        when = milliseconds()
        age = max(0, when - self.opening["start_time"]) // 1000
        self.sample_due = now + min(longest, max(shortest, age / 20))
        points = [[name, value, when, age] for name, value in monitor.values(now).items()]
        with contextlib.suppress(OSError):  # a full disk: the run does without
            self.journal.append({"kind": "metrics", "points": points})

    def _link(self, sender: Sender) -> None:
        """Leave the address of a training's run for the page of the meters."""
        if not self.opening.get("training") or not sender.sent.run or self.linked:
            return
        self.linked = True
        with contextlib.suppress(OSError):  # a full disk: the page does without
            page = page_of(sender.client, sender.experiment, sender.sent.run)
            atomic_text(paths.RUN_LINKS / f"{self.opening['name']}.txt", f"{page}\n")


class Monitor:
    """Samples CPU, memory, disk, network and GPU with MLflow's own monitors, which would send by themselves."""

    def __init__(self) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self.samples = SystemMetricsMonitor("")
        self.taken = -1.0
        self.last = dict[str, float]()

    def values(self, now: float) -> dict[str, float]:
        """What they see at this moment, one sample for all runs."""
        if now - self.taken > SYSTEM_METRICS_S[0] / 2:
            self.samples.collect_metrics()
            self.taken = now
            self.last = self.samples.aggregate_metrics()
            for each in self.samples.monitors:
                each.clear_metrics()
        return {f"system/{name}": value for name, value in self.last.items()}
