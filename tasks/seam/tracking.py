"""MLflow for one stage process: ``with tracked(...) as tracker``. Every stage uses it; it never disturbs one.

The stage itself never imports MLflow. It writes what happens, one JSON line at a time, into the pipe of a recorder
(``tasks/seam/recorder.py``), a process of its own that talks to MLflow. So the seconds of MLflow's import pass
beside the stage's work, an outage or a hang of the server is the recorder's trouble, and a stage that dies by
SIGKILL still leaves a run marked KILLED, because the recorder sees the pipe end without a farewell.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PATIENCE_S = 60.0
"""How long an ending stage waits for its recorder: a first migration takes seconds, an outage some 20 s."""

INTERRUPTED = 75
"""EX_TEMPFAIL: the exit status of a stage that was interrupted with its state saved."""


class Tracker:
    """What a stage tells MLflow. Every method returns at once and none of them raises because of MLflow."""

    def __init__(self, recorder: "subprocess.Popen[bytes] | None" = None) -> None:
        self._recorder = recorder
        self._step = 0

    def open(self, stage: str, params: Mapping[str, object], inputs: Mapping[str, str]) -> None:
        """Begin the run; ``tracked`` calls it."""
        self._send(
            "open",
            name=stage,
            params=params,
            inputs=inputs,
            parent=os.environ.get("PLM_PARENT_RUN_ID"),
            tags={"dvc.stage": os.environ.get("PLM_STAGE", stage), "plm.stage_pid": str(os.getpid())},
            start_time=_now(),
            system_metrics=True,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record points of curves; they carry the time of this call."""
        self._step = max(self._step, step)
        self._send("metrics", points=_points(metrics, step))

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Record the stage's results; they belong to the last step that was logged."""
        self._send("metrics", points=_points(metrics, self._step))

    def outputs(self, digests: Mapping[str, str]) -> None:
        """Record the sha256 of the files that the stage wrote, as tags ``output.<path>``."""
        self._send("tags", tags={f"output.{path}": digest for path, digest in digests.items()})

    def checkpoint(self, path: Path, digest: str, metrics: Mapping[str, float]) -> None:
        """Record a checkpoint as a LoggedModel; ``digest`` is the sha256 of its SHA256SUMS file."""
        points = _points(metrics, self._step)
        self._send("checkpoint", path=path.as_posix(), digest=digest, points=points)

    def checkpoint_metrics(self, digest: str, metrics: Mapping[str, float]) -> None:
        """Add results to the LoggedModel of the checkpoint with this digest, which another stage recorded."""
        self._send("checkpoint_metrics", digest=digest, points=_points(metrics, self._step))

    def _send(self, kind: str, **content: object) -> None:
        if self._recorder is None or self._recorder.stdin is None:
            return
        try:
            self._recorder.stdin.write(json.dumps({"kind": kind, **content}, default=str).encode() + b"\n")
            self._recorder.stdin.flush()
        except OSError:  # the recorder has ended; it said why in its own line
            self._close()

    def _close(self) -> None:
        """Let go of the recorder once it has ended, or after a while."""
        process, self._recorder = self._recorder, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            code = process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code < 0:
            _warn(f"the recorder was killed by signal {-code}; this run is not complete in MLflow")

    def end(self, status: str) -> None:
        """Close the run as FINISHED, FAILED or KILLED; ``tracked`` calls it."""
        self._send("end", status=status)
        self._close()


@contextlib.contextmanager
def tracked(stage: str, params: Mapping[str, object], inputs: Mapping[str, str]) -> Iterator[Tracker]:
    """Show the block as a run named ``stage`` whose status is how the block ended.

    ``params`` are the stage's sections of ``params.yaml``, nested or not; ``inputs`` maps the path of each input to
    its sha256. With ``PLM_TRACKING=off`` the tracker does nothing. A failure of MLflow is one warning on stderr.
    """
    tracker = Tracker(None if os.environ.get("PLM_TRACKING") == "off" else _start_recorder())
    tracker.open(stage, params, inputs)
    try:
        yield tracker
    except BaseException as error:
        tracker.end(_status(error))
        raise
    tracker.end("FINISHED")


def _start_recorder() -> "subprocess.Popen[bytes] | None":
    try:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tasks.seam.recorder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Out of reach of a Ctrl-C for the stage's group: the recorder ends when the pipe does.
            start_new_session=True,
            # Room for what happens while the recorder imports MLflow: the stage does not wait for it.
            pipesize=1 << 20,
        )
    except OSError as error:
        _warn(f"no recorder could be started ({error}); this run is not recorded")
        return None


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
