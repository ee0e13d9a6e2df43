"""Publishes journals in MLflow: ``python -m tasks.publishing.publisher``, one process per checkout and MLflow.

It publishes the running runs that are meant for its MLflow, and all that have ended. As `plm run` starts it, it exits
when MLflow has all that have ended, or is unreachable. With ``--serve``, as a stage started by hand starts it, it exits
a while after the last run; with ``--follow KEY``, as a pipeline starts it, after that run. A problem here is a line on
stderr, and never ends a stage.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_core.config import UserError
from plm_core.shared.files import is_locked, try_lock
from plm_core.shared.paths import JOURNALS
from tasks.tracking import mlflow_stores
from tasks.tracking.mlflow_stores import QUIET
from tasks.tracking.run_journal import Journal, end_status, first_message, publisher_of
from tasks.tracking.tracker import one_line, warn

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.publishing.mlflow_run import Run

TICK_S = 0.25
"""How often journals are looked at."""

EVERY_S = (2.0, 30.0)
"""How often a living run is published, with what its machine does (CPU, memory, disk, network, GPU): the shortest
interval, so that a stage of 10 s has points, and the longest; in between, a twentieth of the run's age."""

RETRY_S = 2.0
"""How long to wait before another try when MLflow is unreachable, or refuses a run while it accepts others."""

GRACE_S = 5.0
"""How long a publisher keeps trying when its runs have ended; then it leaves their journals to a later one."""

LINGER_S = 10.0
"""How long it waits with ``--serve`` for another stage: importing MLflow takes two seconds of processor time."""

ENVIRONMENT = {
    **QUIET,
    # With MLflow's defaults a dead server blocks a call for four minutes; this process retries instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A problem is reported once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


class Publisher:
    """Publishes the living runs that are meant for its MLflow, which no other process does, and all that have ended."""

    def __init__(self, store: str, pipeline: str | None, connection: "tuple[MlflowClient, str] | None") -> None:
        """``store`` names the MLflow of the ``connection``, if there is one yet. It waits for the run with the key
        ``pipeline``, or, if that is None, for all stages started by hand."""
        self.store, self.pipeline, self.connection = store, pipeline, connection
        self.runs: dict[Path, Run] = {}
        """The runs that this process publishes."""
        self._away = False
        """Whether MLflow is unreachable, and when it is tried again."""
        self._retry = 0.0
        self._trouble = ""
        self._progress = time.monotonic()
        self._kept: dict[Path, int] = {}
        """The length of journals that MLflow has in full, and that are kept."""
        self._monitor: Any = None

    def serve(self) -> bool:
        """Publish while an awaited run is alive, then until MLflow has all others; False if MLflow is unreachable."""
        while True:
            lives, waits = self._round()
            quiet = time.monotonic() - self._progress
            if lives:
                self._progress = time.monotonic()
            elif not waits and quiet >= (LINGER_S if self.pipeline is None else 0.0):
                return True
            elif waits and quiet > GRACE_S:
                why = self._trouble or "it does not answer in time"
                warn(f"{why}; {JOURNALS} keeps what has not been sent, and the next stage or `plm run` sends it")
                return False
            time.sleep(TICK_S)

    def needed(self) -> bool:
        """Whether a run that it waits for is alive, or MLflow lacks one that has ended."""
        for path in JOURNALS.glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # another process has just published it
                lives = is_locked(path)
                if self._is_mine(path, lives) and (not lives or self.pipeline in (None, path.stem)):
                    return True
        return False

    def _round(self) -> tuple[bool, bool]:
        """Publish what is due; returns whether a run that it waits for is alive, and whether an ended one is left."""
        for path in sorted(JOURNALS.glob("*.jsonl")):  # oldest first, so that parents come before their children
            with contextlib.suppress(FileNotFoundError):
                lives = is_locked(path)
                if path not in self.runs and self._is_mine(path, lives):
                    # MLflow takes seconds to import: only if there is a run.
                    from tasks.publishing.mlflow_run import Run

                    self.runs[path] = Run(path)
                if path in self.runs:
                    self._publish(self.runs[path], lives)
        self.runs = {path: run for path, run in self.runs.items() if path.exists()}  # the others are published
        living = {path.stem for path in self.runs if is_locked(path)}
        return bool(living if self.pipeline is None else living & {self.pipeline}), len(living) < len(self.runs)

    def _is_mine(self, path: Path, lives: bool) -> bool:
        """Whether this process has to publish a run, and MLflow lacks something of it."""
        store = first_message(path).get("store")
        if lives:
            return bool(store == self.store)
        size = path.stat().st_size
        if self._kept.get(path) == size or end_status(path)[1]:
            self._kept[path] = size
            return False
        # Another MLflow's publisher may just be starting.
        recent = self.pipeline is None and time.time() - path.stat().st_mtime < LINGER_S
        return store in (None, self.store) or not (recent or is_locked(publisher_of(store)))

    def _publish(self, run: "Run", lives: bool) -> None:
        """Publish a run if it is due. A run that MLflow refuses does not hold up the others."""
        from tasks.publishing.mlflow_run import connect

        if time.monotonic() < max(self._retry, run.due if lives or run.failed else 0.0):
            return
        try:
            self.connection = self.connection or connect()
            run.publish(*self.connection, lives, self._sample() if lives else {})
            if not lives:
                self._close(run)
        except Exception as error:  # noqa: BLE001 what MLflow and its database may raise cannot be listed
            run.failed = True
            run.due = time.monotonic() + RETRY_S
            if self.connection:
                self._note(f"{one_line(error)} ({run.path})")
            else:
                self._retry = run.due
                self._note(one_line(error))
                if not self._away:
                    self._progress = time.monotonic()
                    warn(f"{self._trouble}; {JOURNALS} keeps the runs until MLflow has them")
                self._away = True
            self.connection = None  # the next try shows whether MLflow is reachable at all
            return
        if self._away:
            print("MLflow answers again and has what it missed", file=sys.stderr, flush=True)
        self._away = run.failed = False
        self._progress = time.monotonic()
        run.due = time.monotonic() + min(EVERY_S[1], max(EVERY_S[0], run.age_s / 20))
        if not any(other.failed for other in self.runs.values()):
            self._note("")

    def _note(self, trouble: str) -> None:
        """Note for others what is wrong, "" if nothing is."""
        if trouble != self._trouble:
            with contextlib.suppress(OSError):  # a full disk
                publisher_of(self.store).write_text(trouble, encoding="utf-8")
        self._trouble = trouble

    def _close(self, run: "Run") -> None:
        """Delete the journal of a run that MLflow has, or, if its training run may be resumed, note that in it."""
        if run.opening.get("training") and end_status(run.path)[0] != "FINISHED":
            if (journal := Journal.existing(run.path)) is None:
                return  # it has just been resumed
            if run.path.stat().st_size == run.offset:
                with contextlib.suppress(OSError):  # a full disk: another publisher sends it once more
                    journal.append({"kind": "published"})
                self._kept[run.path] = run.path.stat().st_size
            journal.close()
        else:
            run.path.unlink(missing_ok=True)
        del self.runs[run.path]

    def _sample(self) -> dict[str, float]:
        """What this machine does now, as MLflow measures it."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = self._monitor or SystemMetricsMonitor("")  # which would send by itself, if it were started
        self._monitor.collect_metrics()
        values: dict[str, float] = self._monitor.aggregate_metrics()
        for monitor in self._monitor.monitors:
            monitor.clear_metrics()
        return values


def main() -> None:
    """Publish as the command line says."""
    # A signal to the stage's processes is meant for the stage; this process ends when everything is sent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    pipeline = None if sys.argv[1:] == ["--serve"] else "".join(sys.argv[2:])
    connection = None
    if pipeline:
        # The pipeline waits for this line: what a person has to fix first, or nothing.
        from tasks.publishing.mlflow_run import connect

        try:
            connection = connect()
        except UserError as error:
            sys.exit(print(error))
        except Exception:  # noqa: BLE001 it is reported once there is something to send
            pass
        print(flush=True)
    publisher = Publisher(mlflow_stores.named(*mlflow_stores.address()), pipeline, connection)
    JOURNALS.mkdir(parents=True, exist_ok=True)
    again = True
    while again:
        with publisher_of(publisher.store).open("a") as lock:
            while not try_lock(lock.fileno()):  # another one publishes what there is
                if not pipeline or not publisher.needed():
                    return
            lock.truncate(0)  # the trouble that a killed publisher had noted
            sent = publisher.serve()
        # A stage that began just now may have seen the lock, and started no publisher of its own.
        again = sent and publisher.needed()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 an unexpected error is one line instead of a traceback
        warn(f"{one_line(error)}; what has not been sent stays in {JOURNALS}, and the work continues")
        sys.exit(1)
