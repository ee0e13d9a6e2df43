"""MLflow for one stage process: ``with tracked(...) as tracker``. Every stage uses it; it never disturbs one.

The stage itself never imports MLflow. It appends what happens, one JSON line at a time, to the run's journal
(``tasks/seam/journal.py``), and a process of its own, the recorder (``tasks/seam/recorder.py``), sends the journal to
MLflow. So the seconds of MLflow's import pass beside the stage's work, an outage or a hang of the server is the
recorder's trouble, and what could not be sent lies on the disk for a later recorder. The pipe between the two says
that the stage lives: one that dies by SIGKILL leaves a run marked KILLED, because the recorder sees the pipe end. Only
what the journal cannot take, because the disk is full, goes through the pipe.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.seam.journal import Journal, unfinished
from tasks.seam.machine import leads

PATIENCE_S = 60.0
"""How long an ending stage waits for its recorder, which makes tables in a new database or sends what has piled up.
While MLflow is away it does not take that long: see ``recorder.GRACE_S``."""

INTERRUPTED = 75
"""EX_TEMPFAIL: the exit status of a stage that was interrupted with its state saved."""


class Tracker:
    """What a stage tells MLflow. Every method returns at once and none of them raises because of MLflow."""

    def __init__(self, training: str | None = None) -> None:
        self._training = training
        self._journal: Journal | None = None
        self._recorder: subprocess.Popen[bytes] | None = None
        self._known: set[tuple[str, int]] = set()
        """Points (name, step) from before an interruption: a training repeats them, and the first record stays."""
        self._said: set[tuple[str, float, int]] = set()
        """What was said of a checkpoint, which the summary repeats."""
        self._warned = False
        self._step = 0

    def open(self, stage: str, params: Mapping[str, object], inputs: Mapping[str, str]) -> None:
        """Begin the run, or go on in that of the same training; ``tracked`` calls it."""
        try:
            found = unfinished(self._training) if self._training else None
            self._journal = found or Journal.new(stage)
            self._known = found.points() if found else set()
        except OSError as error:
            found = None
            self._warn_of_journal(f"no journal ({error})")
        self._recorder = _start_recorder(self._journal)
        tags = {"dvc.stage": os.environ.get("PLM_STAGE", stage), "plm.stage_pid": str(os.getpid())}
        if found:
            self._send("resume", tags=tags)
            return
        self._send(
            "open",
            name=stage,
            training=self._training,
            params=params,
            inputs=inputs,
            parent=os.environ.get("PLM_PARENT_RUN_ID"),
            tags=tags,
            start_time=_now(),
            system_metrics=True,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record points of curves; they carry the time of this call."""
        self._step = max(self._step, step)
        points = [point for point in _points(metrics, step) if (point[0], step) not in self._known]
        if points:
            self._send("metrics", points=points)

    def repeat(self, step: int) -> None:
        """A training went back: points from this step on are recorded once more; MLflow shows both."""
        self._known = {point for point in self._known if point[1] < step}

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Record the stage's results; they belong to the last step that was logged."""
        points = _points(metrics, self._step)
        self._send("metrics", points=[p for p in points if (p[0], p[1], p[3]) not in self._said])

    def outputs(self, digests: Mapping[str, str]) -> None:
        """Record the sha256 of the files that the stage wrote, as tags ``output.<path>``."""
        self._send("tags", tags={f"output.{path}": digest for path, digest in digests.items()})

    def checkpoint(self, path: Path, digest: str, metrics: Mapping[str, float]) -> None:
        """Record a checkpoint as a LoggedModel; ``digest`` is the sha256 of its SHA256SUMS file."""
        points = _points(metrics, self._step)
        self._said |= {(name, value, step) for name, value, _, step in points}
        self._send("checkpoint", path=path.as_posix(), digest=digest, points=points)

    def checkpoint_metrics(self, digest: str, metrics: Mapping[str, float]) -> None:
        """Add results to the LoggedModel of the checkpoint with this digest, which another stage recorded."""
        self._send("checkpoint_metrics", digest=digest, points=_points(metrics, self._step))

    def end(self, status: str) -> None:
        """Close the run as FINISHED, FAILED or KILLED; ``tracked`` calls it."""
        self._send("end", status=status, time=_now())
        if self._recorder is not None:
            self._wait_for(self._recorder)
        if self._journal is not None:
            self._journal.close()

    def _send(self, kind: str, **content: object) -> None:
        message = {"kind": kind, **content}
        if self._journal is not None:
            try:
                self._journal.append(message)
                return
            except OSError as error:
                self._warn_of_journal(f"{self._journal.path}: {error.strerror}")
        if self._recorder is not None and self._recorder.stdin is not None:
            # The pipe does not block: what a recorder in trouble leaves in it is lost. The first end of line is for a
            # message that did not fit.
            with contextlib.suppress(OSError):
                os.write(self._recorder.stdin.fileno(), b"\n" + json.dumps(message, default=str).encode() + b"\n")

    def _wait_for(self, recorder: "subprocess.Popen[bytes]") -> None:
        """Let go of the recorder once it has ended, or after a while."""
        assert recorder.stdin is not None
        with contextlib.suppress(OSError):
            recorder.stdin.close()
        try:
            code = recorder.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            recorder.kill()
            code = recorder.wait()
        if code < 0:
            kept = self._journal if self._journal and self._journal.on_disk else None
            fate = f"; {kept.path} keeps the run, the next stage sends it" if kept else ""
            _warn(f"the recorder was killed by signal {-code}{fate}")

    def _warn_of_journal(self, what: str) -> None:
        if not self._warned:
            _warn(f"{what}; the run is sent without being kept on the disk")
        self._warned = True


@contextlib.contextmanager
def tracked(
    stage: str, params: Mapping[str, object], inputs: Mapping[str, str], training: str | None = None
) -> Iterator[Tracker]:
    """Show the block as a run named ``stage`` whose status is how the block ended.

    ``params`` are the stage's sections of ``params.yaml``, nested or not; ``inputs`` maps the path of each input to
    its sha256. ``training`` is the digest of all that a training depends on: one that was interrupted goes on in its
    run. With ``PLM_TRACKING=off`` the tracker does nothing. A failure of MLflow is a warning on stderr.
    """
    tracker = Tracker(training)
    if os.environ.get("PLM_TRACKING") != "off" and leads():
        tracker.open(stage, params, inputs)
    try:
        yield tracker
    except BaseException as error:
        tracker.end(_status(error))
        raise
    tracker.end("FINISHED")


def _start_recorder(journal: Journal | None) -> "subprocess.Popen[bytes] | None":
    arguments = [str(journal.path), str(journal.descriptor)] if journal else []
    try:
        recorder = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tasks.seam.recorder", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Out of reach of a Ctrl-C for the stage's group: the recorder ends when the pipe does.
            start_new_session=True,
            # Room for what happens while the recorder imports MLflow.
            pipesize=1 << 20,
            pass_fds=[journal.descriptor] if journal else [],
        )
    except OSError as error:
        _warn(f"no recorder could be started ({error})")
        return None
    assert recorder.stdin is not None
    os.set_blocking(recorder.stdin.fileno(), False)
    return recorder


def _points(metrics: Mapping[str, float], step: int) -> list[tuple[str, float, int, int]]:
    now = _now()
    return [(name, float(value), now, step) for name, value in metrics.items()]


def _now() -> int:
    """Milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000


def _status(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return {None: "FINISHED", 0: "FINISHED", INTERRUPTED: "KILLED"}.get(error.code, "FAILED")  # type: ignore[arg-type]
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"


def _warn(what: str) -> None:
    print(f"warning: MLflow: {what}; the stage goes on", file=sys.stderr, flush=True)
