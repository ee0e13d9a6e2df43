"""MLflow for one stage process: ``with tracked(...) as tracker``. Every stage uses it, and it never disturbs one.

The stage itself never imports MLflow nor waits for it. It appends what happens, one JSON line at a time, to the run's
journal (``journal.py``), and the checkout's recorder (``recorder.py``), which is started when there is none, sends it
to MLflow. So only the recorder is affected when the server is down or hangs, and what could not be sent stays on disk.
The stage holds a lock on its journal: after a SIGKILL the recorder finds the lock free and marks the run KILLED. Only
what does not fit on the disk is sent by a process that the stage waits for.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.shared.statuses import INTERRUPTED
from plm_core.shared.stores import BY_JOURNAL, RECORDER
from tasks.settings.machine import leads
from tasks.tracking import service
from tasks.tracking.journal import FORMAT, Journal, line_of, milliseconds, unfinished

LOOK_S = 15.0
"""How often a stage checks that its recorder is alive."""


class Tracker:
    """What a stage reports to MLflow. Every method returns at once, and none raises because of MLflow."""

    def __init__(self, stage: str = "", training: str | None = None) -> None:
        self._stage, self._training = stage, training
        self._open = False
        self._journal: Journal | None = None
        self._service: service.Service | None = None
        self._looked = 0.0
        self._refused: list[dict[str, Any]] = []
        """Messages that did not fit on the disk so far."""
        self._known: set[tuple[str, int]] = set()
        """Points (name, step) that are not recorded again: those from before an interruption, which a training run
        repeats, and a checkpoint's, which the summary repeats."""
        self._step = 0

    def open(self, params: Mapping[str, object], inputs: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Begin the run, or continue that of the same training; ``tracked`` calls it."""
        self._open = True
        store = None
        try:
            store = service.store()
            # A pipeline has its own recorder, which reports problems itself.
            if not os.environ.get("PLM_PARENT_RUN_ID", "").startswith(BY_JOURNAL):
                self._service = service.Service(store)
        except UserError as error:
            service.warn(f"{error}; the run is kept in its journal")
        kind = self._stage.partition("-")[0]
        tags = {
            "dvc.stage": os.environ.get("PLM_STAGE", self._stage),
            "plm.stage": kind,
            "plm.stage_pid": str(os.getpid()),
            **tags,
            **origin(f"tasks/{kind}.py"),
        }
        if trial := os.environ.get("PLM_TRIAL"):
            tags["plm.trial"] = trial
        with contextlib.suppress(OSError):
            self._journal = unfinished(self._training) if self._training else None
            self._known = self._journal.points() if self._journal else set()
        self._send(
            "open",
            format=FORMAT,
            name=f"{self._stage} {trial}" if trial else self._stage,
            training=self._training,
            params=params,
            inputs=inputs,
            parent=os.environ.get("PLM_PARENT_RUN_ID"),
            tags=tags,
            start_time=milliseconds(),
            store=store,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record points of curves; they carry the time of this call."""
        self._step = max(self._step, step)
        if points := [point for point in _points(metrics, step) if (point[0], step) not in self._known]:
            self._send("metrics", points=points)

    def repeat(self, step: int) -> None:
        """Training was rolled back: points from this step on are recorded again; MLflow shows both."""
        self._known = {point for point in self._known if point[1] < step}

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Record the stage's results; they belong to the last step that was logged."""
        self.log(metrics, self._step)

    def outputs(self, digests: Mapping[str, str]) -> None:
        """Record the sha256 of the files that the stage wrote, as tags ``output.<path>``."""
        self._send("tags", tags={f"output.{path}": digest for path, digest in digests.items()})

    def checkpoint(self, path: Path, digest: str, metrics: Mapping[str, float]) -> None:
        """Record a checkpoint as a LoggedModel; ``digest`` is the sha256 of its SHA256SUMS file."""
        self._known |= {(name, self._step) for name in metrics}
        self._send("checkpoint", path=path.as_posix(), digest=digest, points=_points(metrics, self._step))

    def checkpoint_metrics(self, digest: str, metrics: Mapping[str, float]) -> None:
        """Add results to the LoggedModel of the checkpoint with this digest, which another stage recorded."""
        self._send("checkpoint_metrics", digest=digest, points=_points(metrics, self._step))

    def end(self, status: str) -> None:
        """Close the run as FINISHED, FAILED or KILLED; ``tracked`` calls it."""
        self._send("end", status=status, time=milliseconds())
        if self._refused:
            # Another process sends the run, with what did not fit on the disk.
            lines = b"".join(map(line_of, self._refused))
            path = [str(self._journal.path)] if self._journal else []
            with contextlib.suppress(OSError):
                subprocess.run([*RECORDER, "--alone", *path], input=lines, check=False)
        if self._journal is not None:
            holder = self._service.holder() if self._service else None
            if holder and (says := holder.get("says")):
                service.warn(f"{says}; {self._journal.path} keeps this run until MLflow has it")
            self._journal.close()

    def _send(self, kind: str, **content: object) -> None:
        if not self._open:
            return
        first = not self._refused
        self._refused.append({"kind": kind, **content})
        try:
            self._journal = self._journal or Journal.new(self._stage)
            while self._refused:
                self._journal.append(self._refused[0])
                del self._refused[0]
        except OSError as error:
            if first:
                service.warn(f"no journal ({error}); the stage continues, and sends the run at its end")
        if self._journal and self._service and time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            try:
                service.ensure(self._service)
            except OSError as error:
                service.warn(f"no recorder could be started ({error}); the run is kept in its journal")


@contextlib.contextmanager
def tracked(
    stage: str,
    params: Mapping[str, object],
    inputs: Mapping[str, str],
    training: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Show the block as a run named ``stage`` whose status is how the block ended.

    ``params`` are the stage's sections of ``params.yaml``, nested or not; ``inputs`` maps the path of each input to its
    sha256. ``training`` is the digest of everything that a training run depends on: an interrupted one continues in its
    MLflow run. ``tags`` are for finding the run. With ``PLM_TRACKING=off`` the tracker does nothing. A failure of
    MLflow is a warning on stderr.
    """
    tracker = Tracker(stage, training)
    if os.environ.get("PLM_TRACKING") != "off" and leads():
        tracker.open(params, inputs, tags or {})
    try:
        yield tracker
    except BaseException as error:
        tracker.end(_status(error))
        raise
    tracker.end("FINISHED")


def origin(source: str) -> dict[str, str]:
    """The program, the host, the commit, and whether code or parameters differ from it, as tags of a run.

    What the pipeline writes does not count. The UI shows tags that begin with ``mlflow.`` in columns of their own.
    """
    known = {"plm.host": socket.gethostname(), "mlflow.source.name": source, "mlflow.source.type": "LOCAL"}
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!artifacts"]
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        dirty = subprocess.run(changed, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return known | {"git.dirty": "unknown"}
    commits = {name: commit.strip() for name in ("mlflow.source.git.commit", "git.commit")}
    return known | commits | {"git.dirty": str(bool(dirty)).lower()}


def _points(metrics: Mapping[str, float], step: int) -> list[tuple[str, float, int, int]]:
    now = milliseconds()
    return [(name, float(value), now, step) for name, value in metrics.items()]


def _status(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return {None: "FINISHED", 0: "FINISHED", INTERRUPTED: "KILLED"}.get(error.code, "FAILED")  # type: ignore[arg-type]
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
