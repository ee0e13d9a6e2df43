"""What sends a checkout's journals to MLflow, one process for all stages: ``python -m tasks.tracking.recorder``.

- ``recorder`` goes when nothing is left to send and no stage has begun for a while. A stage starts it in the
  background when there is none (``tasks/tracking/service.py``).
- ``recorder --pipeline NAME [KEY]`` also keeps a journal of its own, for a run that groups others, and prints its key;
  ``flows/tracking.py`` starts it and writes the run's status to its stdin. With KEY it goes on for one that died.
- ``recorder --leftovers`` goes when what waits is sent, or MLflow is away; ``plm run`` starts it.
- ``recorder --alone [JOURNAL]`` sends one run, of which the messages on stdin found no room on the disk.

A run whose journal nobody holds any more has ended: as its last message says, or KILLED. What goes wrong here is a line
on stderr, never the end of a stage.
"""

import argparse
import contextlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from plm_core.shared.paths import JOURNALS
from plm_core.shared.stores import QUIET
from tasks.tracking import service
from tasks.tracking.client import origin
from tasks.tracking.journal import SENDER, WRITER, Journal, milliseconds, parsed, path_of
from tasks.tracking.run import Monitor, Run
from tasks.tracking.sender import NotYetError, Sender, one_line, refuses
from tasks.tracking.store import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

TICK_S = 0.25
"""How often journals are looked at."""

LONGEST_PAUSE_S = 30.0
"""While MLflow is away it is tried again after 1, 2, 4 ... and at most so many seconds."""

GRACE_S = 5.0
"""How long after the last run has ended a recorder goes on trying before it leaves the journals to a later one."""

LINGER_S = 10.0
"""How long one in the background waits for the next stage."""

ENVIRONMENT = {
    **QUIET,
    # With MLflow's defaults a dead server blocks a call for four minutes; whoever is to try again is this process.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # What goes wrong is told once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


class Recorder:
    """Sends every journal that is meant for this process's MLflow, and those that nobody else sends."""

    def __init__(self) -> None:
        self.store = service.store()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.service = service.Service(self.store)
        self.runs: dict[Path, Run] = {}
        self.monitor: Monitor | None = None
        self.connection: tuple[MlflowClient, str] | None = None
        self.away: str | None = None
        """Why MLflow takes nothing, while it does not."""
        self.due = 0.0
        self.pause = 1.0
        self.progress = time.monotonic()

    def serve(self, pipe: "Pipe | None" = None, linger: float = 0.0) -> None:
        """Send until the pipe has ended and every ended run is sent, or MLflow is away for too long after that.

        One that lingers stays as long as any run lives, and so much longer.
        """
        quiet = time.monotonic()
        while True:
            living, waiting = self._round(every=linger > 0)
            now = time.monotonic()
            quiet = now if living else max(quiet, self.progress)
            if not living and not waiting and now - quiet >= linger:
                return
            if waiting and now - quiet > GRACE_S:
                why = self.away or "another recorder does not get on"
                service.warn(f"{why}; {JOURNALS} keeps what it has not, and the next stage or `plm run` sends it")
                return
            if pipe is not None and not pipe.run.ended:
                pipe.read(TICK_S)
            else:
                time.sleep(TICK_S)

    def serve_all(self) -> None:
        """Send for every stage until none has begun for a while; returns at once where another recorder does so."""
        while self.service.take():
            self.serve(linger=LINGER_S)
            known = set(self.runs)
            self.service.leave()
            # A stage that began just now has seen this recorder and started none.
            if not any(run.living() or run.journal.path not in known for run in self._runs()):
                return

    def _round(self, every: bool) -> tuple[bool, bool]:
        """Look at each journal once; whether a run lives (its own, or any), and whether one that ended waits."""
        sends = self.service.take()
        self.service.beat(self.away)
        living = waiting = False
        for run in self._runs():
            lives = run.living()
            if not lives and run.finished():
                self._drop(run, discard=run.journal.outdated())
                continue
            if sends:
                self._attend(run, lives)
            living |= lives and (every or run.mine)
            waiting |= not lives and run.journal.on_disk
        return living, waiting

    def _runs(self) -> Iterator[Run]:
        """The runs that are this recorder's to send, the oldest first, so that parents come before their children."""
        for path in sorted({*JOURNALS.glob("*.jsonl"), *self.runs}):
            if path not in self.runs:
                with contextlib.suppress(OSError):
                    self.runs[path] = Run(Journal.existing(path))
            run = self.runs.get(path)
            if run is not None and (self._is_another_s(run) or not run.journal.on_disk):
                self._drop(run)
            elif run is not None:
                yield run

    def _is_another_s(self, run: Run) -> bool:
        """Whether it is meant for another MLflow, and somebody is there to send it."""
        store = run.opening.get("store")
        if store in (None, self.store):
            return False
        return run.living() or service.Service(store).holder() is not None

    def _drop(self, run: Run, discard: bool = False) -> None:
        del self.runs[run.journal.path]
        if discard:
            run.journal.discard()
        run.journal.close()

    def _attend(self, run: Run, lives: bool) -> None:
        """Sample the machine for a living run, and send what is due."""
        now = time.monotonic()
        if lives and self.connection:
            self.monitor = self.monitor or Monitor()
            run.sample(self.monitor, now)
        if now < (run.due if lives else run.tried) or (self.away is not None and now < self.due):
            return
        try:
            self.connection = self.connection or connect()
            run.send(lives, self.connection)
        except Exception as error:  # noqa: BLE001 what MLflow and its database may raise is not to be listed
            run.sender = None
            run.tried = time.monotonic() + 1
            of_this_run = isinstance(error, NotYetError) or refuses(error)
            if not self.connection or not of_this_run:  # else it holds up no other one
                self._lose(error)
            return
        self.progress = time.monotonic()
        if self.away is not None:
            print("MLflow answers again and has what it missed", file=sys.stderr, flush=True)
            self.service.beat()
        self.away = None
        self.pause = 1.0

    def _lose(self, error: Exception) -> None:
        self.connection = None
        self.due = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE_S)
        if self.away is None:
            self.away = one_line(error)
            self.progress = time.monotonic()
            self.service.beat(self.away)
            service.warn(f"{self.away}; {JOURNALS} keeps the runs until MLflow has them")


class Pipe:
    """The run of a pipeline: its journal, and how it ends, which stdin says; one that ends without is KILLED."""

    def __init__(self, name: str, key: str | None) -> None:
        self.journal = Journal.existing(path_of(key)) if key else Journal.new(name)
        self.journal.lock(WRITER)
        if not key:
            tags = {"plm.stage": name} | origin("plm run")
            opening = {"name": name, "params": {}, "inputs": {}, "tags": tags}
            self.journal.append({"kind": "open", **opening, "start_time": milliseconds(), "store": service.store()})
        self.run = Run(self.journal, mine=True)
        print(self.journal.key, flush=True)

    def read(self, seconds: float) -> None:
        """Wait so long for the status."""
        if select.select([0], [], [], seconds)[0]:
            said = os.read(0, 1 << 10).decode().split()
            self.run.ended = True
            with contextlib.suppress(OSError):  # a full disk: the run is shown as KILLED
                ending = {"kind": "end", "status": said[0] if said else "KILLED", "time": milliseconds()}
                self.journal.append(ending)


def _send_alone(path: Path | None) -> None:
    """Send one run with the messages on stdin, which the disk did not take; its stage waits."""
    messages = [message for line in sys.stdin.buffer if (message := parsed(line)) is not None]
    if path is None:
        descriptor, name = tempfile.mkstemp()
        Path(name).unlink()
        journal = Journal(path_of(f"none-{time.time_ns()}"), descriptor)
    else:
        journal = Journal.existing(path)
    journal.lock(SENDER, wait=True)
    try:
        sender = Sender(journal, *connect(), messages)
        sender.send()
        sender.close()
    except Exception as error:  # noqa: BLE001 as above
        service.warn(f"{one_line(error)}; there is no room to keep this run, and some of it is lost")


def _report(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """The last word of a recorder that fails in a way not foreseen: one line instead of a traceback."""
    service.warn(f"{one_line(error)}; what it has not waits in {JOURNALS}, the work goes on")


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tasks.tracking.recorder")
    parser.add_argument("--pipeline", nargs="+", metavar=("NAME", "KEY"))
    parser.add_argument("--leftovers", action="store_true")
    parser.add_argument("--alone", type=Path, nargs="?", const=Path(), metavar="JOURNAL")
    given = parser.parse_args()
    sys.excepthook = _report
    # Whoever ends the stage's processes means the stage; this one ends when everything is sent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    recorder = Recorder()
    if given.alone is not None:
        _send_alone(given.alone if given.alone.name else None)
    elif given.pipeline:
        pipe = Pipe(given.pipeline[0], given.pipeline[1] if given.pipeline[1:] else None)
        recorder.runs[pipe.journal.path] = pipe.run
        recorder.serve(pipe)
    elif given.leftovers:
        recorder.serve()
    else:
        recorder.serve_all()


if __name__ == "__main__":
    main()
