"""The process that talks to MLflow for a stage or a pipeline run: ``python -m tasks.seam.recorder``.

- ``recorder JOURNAL DESCRIPTOR`` sends a stage's journal while the stage appends to it; ``tasks/seam/tracking.py``
  starts it. Down its stdin comes only what the journal cannot take.
- ``recorder`` makes the journal itself, from the messages on its stdin; ``flows/tracking.py`` starts it.
- ``recorder --leftovers`` sends the journals that an outage left, as every recorder does; ``plm run`` starts it.

When stdin ends without an ``end`` in the journal, the writer was killed, and so the run is KILLED. It prints the run's
id once the run exists, or ``journal:`` and a key while MLflow is away. What goes wrong here is a line on stderr, never
the end of the stage.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from plm_core.config import BadInput
from plm_core.files import atomic_text
from tasks.seam import paths
from tasks.seam.journal import Journal, parsed, path_of, waiting
from tasks.seam.sender import BY_JOURNAL, NotYetError, Sender, one_line, refuses
from tasks.seam.store import connect, page_of

FLUSH_S = 5.0
"""The journal is sent this often."""

LONGEST_PAUSE_S = 30.0
"""While MLflow is away it is tried again after 1, 2, 4 ... and at most so many seconds."""

GRACE_S = 5.0
"""How long after the end of its stage a recorder goes on trying before it leaves the journal to a later one."""

SYSTEM_METRICS_S = (2.0, 30.0)
"""Sampling interval of CPU, memory, disk, network and GPU: at first, so that a stage of 10 s has points, and at most;
between them a twentieth of the run so far."""

UNKEPT = 100_000
"""How many messages are remembered that the journal could not take."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # With MLflow's defaults a dead server blocks a call for four minutes; whoever is to try again is this process.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # What goes wrong is told once.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Recorder:
    """Sends one journal for as long as its writer lives, and then what others left."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.unkept: list[dict[str, Any]] = []
        self.sender: Sender | None = None
        self.monitor: Monitor | None = None
        self.opening = next(journal.messages(), ({}, 0))[0]
        self.told = self.announced = self.linked = self.swept = False

    def record(self, pipe: "Pipe") -> None:
        """Send until the pipe has ended and all is sent, or MLflow is away for too long after that."""
        due, pause = 0.0, 1.0
        while True:
            for message in pipe.read():
                self.keep(message)
            self._sample()
            if pipe.ended is None and time.monotonic() < due:
                continue
            error = self._try(pipe.ended is not None)
            if error is None:
                if pipe.ended is not None:
                    return
                due, pause = time.monotonic() + FLUSH_S, 1.0
            elif pipe.ended is None:
                if pause > 1:  # not for a moment, nor for a stage that has ended meanwhile
                    self._tell_away(error)
                due, pause = time.monotonic() + pause, min(2 * pause, LONGEST_PAUSE_S)
            elif time.monotonic() - pipe.ended > GRACE_S:
                _warn(f"{one_line(error)}; {self._fate('the next stage or `plm run` sends it')}")
                return
            else:
                time.sleep(1.0)

    def keep(self, message: dict[str, Any]) -> None:
        """Append a message to the journal, or remember it when the disk is full."""
        try:
            self.journal.append(message)
        except OSError:
            if len(self.unkept) < UNKEPT:
                self.unkept.append(message)

    def _try(self, ending: bool) -> Exception | None:
        """Send what there is; returns what kept MLflow from taking it."""
        try:
            self._send(ending)
        except _failures() as error:
            self.sender, self.swept = None, False  # what others could not send meanwhile is looked for again
            if not self.announced:
                self._announce(f"{BY_JOURNAL}{self.journal.key}")
            return error
        if self.told:
            print("MLflow answers again and has what it missed", file=sys.stderr, flush=True)
            self.told = False
        if ending or not self.swept:
            self.swept = send_leftovers(self.journal.path)
        return None

    def _send(self, ending: bool) -> None:
        if self.sender is None:
            self.sender = Sender(self.journal, *connect(), self.unkept)
        self.sender.send()
        if self.sender.sent.run and not self.announced:
            self._announce(self.sender.sent.run)
        self._link(self.sender)
        if ending:
            self.sender.close()

    def _announce(self, what: str) -> None:
        with contextlib.suppress(OSError):  # nobody is left to read it
            print(what, flush=True)
        self.announced = True

    def _link(self, sender: Sender) -> None:
        """Leave the address of a training's run for the page of the meters."""
        if not self.opening.get("training") or not sender.sent.run or self.linked:
            return
        self.linked = True
        with contextlib.suppress(OSError):  # a full disk: the page does without
            page = page_of(sender.client, sender.experiment, sender.sent.run)
            atomic_text(paths.RUN_LINKS / f"{self.opening['name']}.txt", f"{page}\n")

    def _tell_away(self, error: Exception) -> None:
        if not self.told and not isinstance(error, NotYetError):
            _warn(f"{one_line(error)}; {self._fate('it is sent when MLflow answers')}")
            self.told = True

    def _fate(self, kept: str) -> str:
        if self.unkept or not self.journal.on_disk:
            return "there is no room to keep this run, and some of it is lost"
        return f"{self.journal.path} keeps this run: {kept}"

    def _sample(self) -> None:
        if not self.opening.get("system_metrics") or "mlflow" not in sys.modules:
            return
        self.monitor = self.monitor or Monitor(self.opening["start_time"])
        if points := self.monitor.points():
            self.keep({"kind": "metrics", "points": points})


class Monitor:
    """Samples CPU, memory, disk, network and GPU with MLflow's own monitors, which would send by themselves."""

    def __init__(self, start_time: int) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self.samples = SystemMetricsMonitor("")
        self.begin_ms, self.begin, self.due = start_time, time.monotonic(), 0.0

    def points(self) -> list[tuple[str, float, int, int]]:
        """The sample that is due, if one is; its step is the run's age in seconds, which no interruption repeats."""
        now, (shortest, longest) = time.monotonic(), SYSTEM_METRICS_S
        if now < self.due:
            return []
        self.due = now + min(longest, max(shortest, (now - self.begin) / 20))
        self.samples.collect_metrics()
        when = time.time_ns() // 1_000_000
        values = self.samples.aggregate_metrics()
        for each in self.samples.monitors:
            each.clear_metrics()
        return [(f"system/{name}", value, when, (when - self.begin_ms) // 1000) for name, value in values.items()]


class Pipe:
    """The messages on stdin, whose end is the end of the writer."""

    def __init__(self) -> None:
        self.ended: float | None = None
        """When the pipe ended, on the monotonic clock."""
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """What has arrived; waits a second when nothing has, and not at all when the pipe has ended."""
        if self.ended is not None or not select.select([0], [], [], 1.0)[0]:
            return []
        received = os.read(0, 1 << 16)
        if not received:
            self.ended = time.monotonic()
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [message for line in lines if (message := parsed(line)) is not None]


def send_leftovers(but: Path | None = None) -> bool:
    """Send the journals whose stage and recorder are gone, and close their runs; False when MLflow went away."""
    try:
        store = None
        for journal in waiting(but):
            store = store or connect()
            sender = Sender(journal, *store)
            try:
                sender.send()
                sender.close()
            except _failures() as error:  # one that cannot be sent must not keep the others
                if not isinstance(error, NotYetError) and not refuses(error):
                    raise
    except _failures():
        return False
    return True


def _origin() -> dict[str, str]:
    """The host, the commit, and whether code or parameters differ from it; what the pipeline writes does not count."""
    host = socket.gethostname()
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!artifacts"]
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        dirty = subprocess.run(changed, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"plm.host": host, "git.dirty": "unknown"}
    return {"plm.host": host, "mlflow.source.git.commit": commit.strip(), "git.dirty": str(bool(dirty)).lower()}


def _failures() -> tuple[type[Exception], ...]:
    """What MLflow being away, or set up wrongly, raises."""
    from mlflow import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError, ImportError, BadInput, NotYetError)


def _warn(what: str) -> None:
    print(f"warning: MLflow: {what}", file=sys.stderr, flush=True)


def _report(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """The last word of a recorder that fails in a way not foreseen: one line instead of a traceback."""
    _warn(f"{one_line(error)}; the run is not recorded any more, its work goes on")


def _opened(pipe: Pipe) -> Recorder | None:
    """The recorder of a journal of its own, opened by the first messages of the pipe; None when none comes."""
    messages: list[dict[str, Any]] = []
    while not messages and pipe.ended is None:
        messages = pipe.read()
    if not messages:
        return None
    try:
        journal = Journal.new(messages[0]["name"])
    except OSError:
        descriptor, name = tempfile.mkstemp()
        Path(name).unlink()
        journal = Journal(path_of(f"none-{time.time_ns()}"), descriptor, torn=False)
    recorder = Recorder(journal)
    recorder.opening = messages[0]
    for message in messages:
        recorder.keep(message)
    return recorder


def main() -> None:
    """Record one run, then send what was left of others."""
    sys.excepthook = _report
    # Whoever ends the stage's processes means the stage; this one ends with the pipe, after closing the run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if sys.argv[1:] == ["--leftovers"]:
        send_leftovers()
        return
    pipe, recorder = Pipe(), None
    if sys.argv[1:]:
        journal = Journal(Path(sys.argv[1]), int(sys.argv[2]), torn=False)
        if journal.lock(wait=True):  # False: an old recorder of the same training has just sent it all
            recorder = Recorder(journal)
    else:
        recorder = _opened(pipe)
    if recorder is not None:
        recorder.keep({"kind": "tags", "tags": _origin()})
        recorder.record(pipe)


if __name__ == "__main__":
    main()
