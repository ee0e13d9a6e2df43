"""Publishes journals in MLflow: ``python -m tasks.tracking.publisher``.

It publishes the runs that have ended and that no other publisher has, and exits when MLflow has them or is unreachable;
`plm run` starts it so. A stage that is started by hand starts it with ``--serve``: it also publishes the living runs of
all such stages for the same MLflow, and ends a while after the last. A pipeline starts it with ``--follow KEY``: it
also publishes the pipeline's run and those of its stages. A problem here is a line on stderr, and never ends a stage.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_core.config import UserError
from plm_core.shared.files import held, taken
from plm_core.shared.journal import Journal, ending, opening, publisher_of, serving
from plm_core.shared.paths import JOURNALS
from plm_core.shared.stores import BY_JOURNAL, QUIET
from tasks.tracking.client import one_line, store, warn

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.tracking.run import Run

TICK_S = 0.25
"""How often journals are looked at."""

EVERY_S = (2.0, 30.0)
"""How often a living run is published, with what its machine does (CPU, memory, disk, network, GPU): the shortest
interval, so that a stage of 10 s has points, and the longest; in between, a twentieth of the run's age."""

RETRY_S = 2.0
"""When MLflow is tried again that is unreachable, or refuses a run while it accepts others."""

GRACE_S = 5.0
"""How long a publisher keeps trying when its runs have ended; then it leaves their journals to a later one."""

LINGER_S = 10.0
"""How long it waits with ``--serve`` for another stage: importing MLflow takes two seconds of a processor."""

ENVIRONMENT = {
    **QUIET,
    # With MLflow's defaults a dead server blocks a call for four minutes; this process retries instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A problem is reported once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


class Publisher:
    """Publishes runs that have ended, and living ones: those of the pipeline with this key, or with ``serves`` those of
    all stages for the same MLflow that were started by hand."""

    def __init__(self, key: str = "", serves: bool = False) -> None:
        self.key, self.serves = key, serves
        self.store = store()
        self.runs: dict[Path, Run] = {}
        """The runs that this process publishes, and no other one."""
        self.connection: tuple[MlflowClient, str] | None = None
        self._away = False
        """Whether MLflow is unreachable, and when it is tried again."""
        self._retry = 0.0
        self._progress = time.monotonic()
        self._kept: dict[Path, int] = {}
        """The length of journals that MLflow has in full, and that are kept."""
        self._monitor: Any = None

    def serve(self) -> None:
        """Publish while one of its runs lives, and then until MLflow has what has ended, or is away for too long."""
        while True:
            lives, waits = self.round()
            quiet = time.monotonic() - self._progress
            if lives:
                self._progress = time.monotonic()
            elif not waits and quiet >= (LINGER_S if self.serves else 0.0):
                return
            elif waits and quiet > GRACE_S:
                why = next((run.trouble for run in self.runs.values() if run.trouble), "it does not answer in time")
                warn(f"{why}; {JOURNALS} keeps what has not been sent, and the next stage or `plm run` sends it")
                return
            time.sleep(TICK_S)

    def round(self) -> tuple[bool, bool]:
        """Publish what is due; returns whether a run of this process lives, and whether one that has ended is left."""
        for path in sorted(JOURNALS.glob("*.jsonl")):  # oldest first, so that parents come before their children
            with contextlib.suppress(FileNotFoundError):  # another process has just published it
                lives = held(path)
                if path in self.runs or self._is_mine(path, lives):
                    self._publish(self.runs[path], lives)
        self.runs = {path: run for path, run in self.runs.items() if path.exists()}  # the others are published
        living = [held(path) for path in self.runs]
        return any(living), not all(living)

    def _is_mine(self, path: Path, lives: bool) -> bool:
        """Become the one that publishes this run, unless it is another publisher's."""
        size = path.stat().st_size
        if not lives and (self._kept.get(path) == size or ending(path)[1]):
            self._kept[path] = size
            return False
        begun = opening(path)
        parent = begun.get("parent") or ""
        leader = parent.removeprefix(BY_JOURNAL) if parent.startswith(BY_JOURNAL) else path.stem
        if leader != self.key:
            # A run of another pipeline, or of a stage started by hand, is that one's as long as it lives.
            own = self.serves and leader == path.stem and begun.get("store") == self.store
            if lives and not own:
                return False
            if leader != path.stem and held(path.with_name(f"{leader}.jsonl")):
                return False
            # For another MLflow another publisher may just be starting.
            elsewhere = self.serves and begun.get("store") not in (None, self.store)
            if elsewhere and time.time() - path.stat().st_mtime < LINGER_S:
                return False
        if held(publisher_of(path)):
            return False
        lock = publisher_of(path).open("a")
        if not taken(lock.fileno()):
            lock.close()
            return False
        lock.truncate(0)  # what a killed publisher had to say
        from tasks.tracking.run import Run  # MLflow takes seconds to import: only if there is something to publish

        self.runs[path] = Run(path, lock)
        return True

    def _publish(self, run: "Run", lives: bool) -> None:
        """Publish a run if it is due. What MLflow refuses of this one alone does not hold up others."""
        from tasks.tracking.run import connect

        if time.monotonic() < max(self._retry, run.due if lives or run.trouble else 0.0):
            return
        try:
            self.connection = self.connection or connect()
            run.publish(*self.connection, lives, self._sample() if lives else {})
            if not lives:
                self._close(run)
        except Exception as error:  # noqa: BLE001 what MLflow and its database may raise cannot be listed
            run.due = time.monotonic() + RETRY_S
            if self.connection:
                run.note(f"{one_line(error)} ({run.path})")
            else:
                self._retry = run.due
                for each in self.runs.values():
                    each.note(one_line(error))
                if not self._away:
                    self._progress = time.monotonic()
                    warn(f"{run.trouble}; {JOURNALS} keeps the runs until MLflow has them")
                self._away = True
            self.connection = None  # the next try shows whether MLflow is reachable at all
            return
        if self._away:
            print("MLflow answers again and has what it missed", file=sys.stderr, flush=True)
        self._away = False
        self._progress = time.monotonic()
        run.due = time.monotonic() + min(EVERY_S[1], max(EVERY_S[0], run.age_s / 20))
        run.note("")

    def _close(self, run: "Run") -> None:
        """Delete the journal of a run that MLflow has, or, if its training run may be resumed, note that in it."""
        if run.opening.get("training") and ending(run.path)[0] != "FINISHED":
            if (journal := Journal.existing(run.path)) is None:
                return  # it has just been resumed
            if run.path.stat().st_size == run.offset:
                with contextlib.suppress(OSError):  # a full disk: another publisher sends it once more
                    journal.append({"kind": "published"})
                self._kept[run.path] = run.path.stat().st_size
            journal.close()
        else:
            run.path.unlink(missing_ok=True)
        publisher_of(run.path).unlink(missing_ok=True)
        del self.runs[run.path]

    def _sample(self) -> dict[str, float]:
        """What this machine does now, as MLflow measures it."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = self._monitor or SystemMetricsMonitor("")  # which would send by itself, if it were started
        self._monitor.collect_metrics()
        values: dict[str, float] = self._monitor.aggregate_metrics()
        for each in self._monitor.monitors:
            each.clear_metrics()
        return values


def main() -> None:
    """Publish as the command line says."""
    # A signal to the stage's processes is meant for the stage; this one ends when everything is sent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    match sys.argv[1:]:
        case ["--serve"]:
            publisher = Publisher(serves=True)
            lives = True
            while lives:
                with serving(publisher.store).open("a") as lock:
                    if not taken(lock.fileno()):
                        return  # another one serves
                    publisher.serve()
                # A stage that has begun in this moment has seen the lock, and started no other publisher.
                lives, _ = publisher.round()
        case ["--follow", key]:
            publisher = Publisher(key)
            # The pipeline waits for this line: what a person has to mend first, empty if nothing.
            from tasks.tracking.run import connect

            try:
                publisher.connection = connect()
            except UserError as error:
                sys.exit(print(error))
            except Exception:  # noqa: BLE001 it is told when there is something to send
                pass
            print(flush=True)
            publisher.serve()
        case _:
            Publisher().serve()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 an unexpected error is one line instead of a traceback
        warn(f"{one_line(error)}; what has not been sent stays in {JOURNALS}, and the work continues")
        sys.exit(1)
