"""Sends a checkout's journals to MLflow, one process for all stages: ``python -m tasks.tracking.recorder``.

- ``recorder`` exits when nothing is left to send and no stage has started for a while. A stage starts it in the
  background if none is running (``tasks/tracking/service.py``).
- ``recorder --pipeline NAME [KEY]`` also keeps a journal of its own, for a run that groups others, and prints its key;
  ``flows/tracking.py`` starts it and writes the run's status to its stdin. With KEY it takes over from one that died.
- ``recorder --leftovers`` exits when what waits is sent, or MLflow is unreachable; ``plm run`` starts it.
- ``recorder --alone [JOURNAL]`` sends one run, whose messages on stdin did not fit on the disk.

A run whose journal is no longer locked has ended: as its last message says, or KILLED. A problem here is a line on
stderr, and never ends a stage.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plm_core.config import UserError
from plm_core.shared.paths import JOURNALS
from plm_core.shared.statuses import USER_ERROR
from plm_core.shared.stores import QUIET
from tasks.tracking import service
from tasks.tracking.client import origin
from tasks.tracking.journal import FORMAT, SENDER, WRITER, Journal, milliseconds, parsed, path_of
from tasks.tracking.service import one_line, warn

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    from tasks.tracking.run import Run

TICK_S = 0.25
"""How often journals are checked."""

LONGEST_PAUSE_S = 30.0
"""While MLflow is unreachable it is tried again after 1, 2, 4 ... and at most this many seconds; a run that it refuses
while it accepts others, after a second."""

GRACE_S = 5.0
"""How long after the last run has ended a recorder keeps trying before it leaves the journals to a later one."""

SAMPLES_S = (2.0, 30.0)
"""Sampling interval of CPU, memory, disk, network and GPU: the shortest, so that a stage of 10 s has points, and the
longest; in between, a twentieth of the youngest run's age."""

LINGER_S = 10.0
"""How long a background recorder waits for the next stage."""

ENVIRONMENT = {
    **QUIET,
    # With MLflow's defaults a dead server blocks a call for four minutes; this process retries instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A problem is reported once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


class Recorder:
    """Sends every journal that is meant for this process's MLflow, and those that nobody else sends."""

    def __init__(self) -> None:
        self.store = service.store()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.service = service.Service(self.store)
        self.journals: dict[Path, Journal] = {}
        self.runs: dict[Path, Run] = {}
        self.monitor: SystemMetricsMonitor | None = None
        self.sampled = float("-inf")
        self.connection: tuple[MlflowClient, str] | None = None
        self.away = False
        """Whether MLflow is unreachable."""
        self.due = 0.0
        self.pause = 1.0
        self.progress = time.monotonic()

    def serve(self, linger: float = 0.0) -> None:
        """Send until every run that has ended is sent, or MLflow is unreachable for too long after that.

        With ``linger`` it stays as long as any run is alive, and this many seconds longer.
        """
        quiet = time.monotonic()
        while True:
            living, waiting = self.round()
            now = time.monotonic()
            quiet = now if living and linger else max(quiet, self.progress)
            if not waiting and now - quiet >= linger:
                return
            if waiting and now - quiet > GRACE_S:
                why = self.trouble or "another recorder makes no progress"
                warn(f"{why}; {JOURNALS} keeps what has not been sent, and the next stage or `plm run` sends it")
                return
            time.sleep(TICK_S)

    def serve_all(self) -> None:
        """Send for every stage until none has begun for a while; returns at once if another recorder does so."""
        while self.service.take():
            self.serve(LINGER_S)
            known = set(self.journals)
            self.service.leave()
            # A stage that began just now has seen this recorder and started none.
            if not any(journal.written() or journal.path not in known for journal in self._mine()):
                return

    def round(self) -> tuple[bool, bool]:
        """Check each journal once; return whether a run is alive, and whether one that has ended waits."""
        if sends := self.service.take():
            self.service.beat(self.trouble)
        living = list[Journal]()
        waiting = False
        for journal in self._mine():
            lives = journal.written()
            run = self.runs.get(journal.path)
            sent = run.sent if run else journal.sent()
            if not lives and sent.closed and sent.offset >= journal.size:  # kept so that its training run can resume
                if journal.outdated():
                    journal.discard()
                continue
            if lives:
                living.append(journal)
            if sends:
                self._attend(journal, lives)
            waiting |= not lives and journal.on_disk
        if sends and self.connection:
            self._sample(living)
        return bool(living), waiting

    @property
    def trouble(self) -> str | None:
        """What keeps a run from reaching MLflow; None if nothing does."""
        return next((run.trouble for run in self.runs.values() if run.trouble), None)

    def _mine(self) -> Iterator[Journal]:
        """The journals that this recorder sends, oldest first, so that parents come before their children."""
        for path in {*JOURNALS.glob("*.jsonl")} - {*self.journals}:
            with contextlib.suppress(OSError):
                self.journals[path] = journal = Journal.existing(path)
                if (found := journal.opening().get("format", FORMAT)) != FORMAT:
                    warn(f"{path}: has format {found}; expected {FORMAT}: the version that wrote it sends it")
        for path, journal in sorted(self.journals.items()):
            if self._is_another_s(journal) or not journal.on_disk:
                self.journals.pop(path).close()
                self.runs.pop(path, None)
            elif journal.opening().get("format", FORMAT) == FORMAT:
                yield journal

    def _is_another_s(self, journal: Journal) -> bool:
        """Whether it is meant for another MLflow, and another process sends it."""
        store = journal.opening().get("store")
        if store in (None, self.store):
            return False
        return journal.written() or service.Service(store).holder() is not None

    def _attend(self, journal: Journal, lives: bool) -> None:
        """Send what is due of a run. What MLflow refuses of this one alone does not hold up others."""
        # MLflow takes seconds to import: only if there is something to send.
        from tasks.tracking.run import Run
        from tasks.tracking.store import connect

        run = self.runs[journal.path] = self.runs.get(journal.path) or Run(journal)
        now = time.monotonic()
        if now < self.due or (now < run.due and (lives or run.trouble)):
            return
        self.service.beat(self.trouble)
        try:
            self.connection = self.connection or connect()
            run.send(lives, *self.connection)
        except Exception as error:  # noqa: BLE001 what MLflow and its database may raise cannot be listed
            run.trouble = one_line(error) if self.connection is None else f"{one_line(error)} ({journal.path})"
            run.due = time.monotonic() + self.pause
            if self.connection is None:
                self.due = run.due
                self.pause = min(2 * self.pause, LONGEST_PAUSE_S)
                if not self.away:
                    self.away = True
                    self.progress = time.monotonic()
                    warn(f"{run.trouble}; {JOURNALS} keeps the runs until MLflow has them")
            self.connection = None  # the next try shows whether MLflow is reachable at all
            return
        self.progress = time.monotonic()
        if self.away:
            print("MLflow answers again and has what it missed", file=sys.stderr, flush=True)
        self.away = False
        self.pause = 1.0

    def _sample(self, living: Sequence[Journal]) -> None:
        """Add system metrics to this machine's running runs, when they are due; their step is the run's age in
        seconds."""
        when = milliseconds()
        opened = ((each, opening) for each in living if (opening := each.opening()))
        ages = {
            each: max(0, when - opening["start_time"]) // 1000
            for each, opening in opened
            if opening["tags"].get("plm.host") == socket.gethostname()
        }
        shortest, longest = SAMPLES_S
        if not ages or time.monotonic() - self.sampled < min(longest, max(shortest, min(ages.values()) / 20)):
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self.sampled = time.monotonic()
        self.monitor = self.monitor or SystemMetricsMonitor("")  # which would send by itself, if it were started
        self.monitor.collect_metrics()
        values = self.monitor.aggregate_metrics()
        for each in self.monitor.monitors:
            each.clear_metrics()
        for journal, age in ages.items():
            points = [[f"system/{name}", value, when, age] for name, value in values.items()]
            with contextlib.suppress(OSError):  # a full disk: the run does without
                journal.append({"kind": "metrics", "points": points})


def _send_pipeline(recorder: Recorder, name: str, key: str | None = None) -> None:
    """Send for a pipeline until stdin says how it ended, and keep its run; one that ends silently is KILLED.

    If a person has to mend MLflow first, print why, and end."""
    if not key:
        from tasks.tracking.store import connect

        try:
            recorder.connection = connect()
        except UserError as error:
            print(f"error: {error}", flush=True)
            sys.exit(USER_ERROR)
        except Exception:  # noqa: BLE001 it is told when there is something to send
            pass
    journal = Journal.existing(path_of(key)) if key else Journal.new(name)
    journal.lock(WRITER)
    if not key:
        about = {"name": name, "tags": {"plm.stage": name} | origin("plm run"), "store": recorder.store}
        begun = {"format": FORMAT, "start_time": milliseconds()}
        journal.append({"kind": "open", **begun, **about, "params": {}, "inputs": {}})
    recorder.journals[journal.path] = journal
    print(journal.key, flush=True)
    while not select.select([0], [], [], TICK_S)[0]:
        recorder.round()
    with contextlib.suppress(OSError):  # a full disk: the run is shown as KILLED
        status = os.read(0, 1 << 10).decode() or "KILLED"
        journal.append({"kind": "end", "status": status, "time": milliseconds()})
    journal.unlock(WRITER)
    recorder.serve()


def _send_alone(path: str | None = None) -> None:
    """Send one run with the messages on stdin, which did not fit on the disk; its stage waits."""
    from tasks.tracking.run import Run
    from tasks.tracking.store import connect

    messages = [message for line in sys.stdin.buffer if (message := parsed(line.rstrip(b"\n"))) is not None]
    with tempfile.TemporaryFile() as none:
        journal = Journal.existing(Path(path)) if path else Journal(path_of(f"none-{time.time_ns()}"), none.fileno())
        journal.lock(SENDER, wait=True)
        try:
            Run(journal, messages).send(False, *connect())
        except Exception as error:  # noqa: BLE001 as above
            warn(f"{one_line(error)}; there is no disk space to keep this run, and part of it is lost")


def main() -> None:
    """Serve as the command line says."""
    # A signal to the stage's processes is meant for the stage; this one ends when everything is sent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    recorder = Recorder()
    match sys.argv[1:]:
        case ["--pipeline", name, *key]:
            _send_pipeline(recorder, name, *key)
        case ["--alone", *path]:
            _send_alone(*path)
        case ["--leftovers"]:
            recorder.serve()
        case _:
            recorder.serve_all()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 an unexpected error is one line instead of a traceback
        warn(f"{one_line(error)}; what has not been sent stays in {JOURNALS}, and the work continues")
        sys.exit(1)
