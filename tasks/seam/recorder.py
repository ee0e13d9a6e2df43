"""The process that talks to MLflow for a stage or a pipeline run: ``python -m tasks.seam.recorder``.

``tasks/seam/tracking.py`` and ``flows/tracking.py`` start it and write JSON lines to its stdin: ``open`` first,
then ``metrics``, ``tags``, ``checkpoint`` and ``checkpoint_metrics`` as they happen, ``end`` with a status last.
When stdin ends without ``end``, the writer was killed, and so the run is KILLED. It prints the run's id once the
run exists. Whatever goes wrong here is one line on stderr and the end of this process, never of the stage.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from tasks.seam.store import connect, reap

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

FLUSH_S = 5.0
"""Points are sent in batches: after this many seconds ..."""

FLUSH_POINTS = 1000
"""... or this many points, which is also MLflow's largest batch."""

SYSTEM_METRICS_S = (2.0, 30.0)
"""Sampling interval of CPU, memory, disk, network and GPU: at first, so that a stage of 10 s has points, and at most;
between them a twentieth of the run so far."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # With MLflow's defaults a dead server blocks a call for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # What goes wrong is told once, by _report.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Recorder:
    """One MLflow run, from the messages of the process that it records."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        client, self.experiment = connect()
        reap(client, self.experiment)
        self.client: MlflowClient = client
        self.run = _create_run(client, self.experiment, opening)
        self.points: list[Metric] = []
        self.of_checkpoints: set[tuple[str, float, int]] = set()
        self.monitor = _monitor(self.run) if opening["system_metrics"] else None
        self.begin = time.monotonic()

    def handle(self, message: Mapping[str, Any]) -> None:
        """Do what one message asks; metrics wait for ``flush``."""
        kind = message["kind"]
        if kind == "metrics":
            self._add(message["points"], model=None)
        elif kind == "tags":
            _log_tags(self.client, self.run, message["tags"])
        elif kind == "checkpoint":
            model = self._find_model(message["digest"]) or self._create_model(message["path"], message["digest"])
            self._link(model)
            self._add(message["points"], model)
        elif kind == "checkpoint_metrics":
            self._add(message["points"], self._find_model(message["digest"]))

    def flush(self) -> None:
        """Send the points that wait."""
        while self.points:
            batch, self.points = self.points[:FLUSH_POINTS], self.points[FLUSH_POINTS:]
            self.client.log_batch(self.run, metrics=batch, synchronous=True)
        if self.monitor is not None:
            shortest, longest = SYSTEM_METRICS_S
            self.monitor.sampling_interval = min(longest, max(shortest, (time.monotonic() - self.begin) / 20))

    def end(self, status: str) -> None:
        """Send what waits and close the run."""
        self.flush()
        if self.monitor is not None:
            self.monitor.finish()
        self.client.set_terminated(self.run, status)

    def _add(self, points: list[list[Any]], model: str | None) -> None:
        """Queue points; a stage's summary repeats what it said of its checkpoint, and is not drawn twice."""
        from mlflow.entities import Metric

        if model is not None:
            self.of_checkpoints |= {(name, value, step) for name, value, _, step in points}
        else:
            points = [p for p in points if (p[0], p[1], p[3]) not in self.of_checkpoints]
        self.points.extend(Metric(name, value, when, step, model_id=model) for name, value, when, step in points)

    def _find_model(self, digest: str) -> str | None:
        found = self.client.search_logged_models(
            [self.experiment],
            filter_string=f"tags.`checkpoint.sha256` = '{digest}'",
            order_by=[{"field_name": "creation_time", "ascending": False}],
            max_results=1,
        )
        return found[0].model_id if found else None

    def _create_model(self, path: str, digest: str) -> str:
        import mlflow

        tags = {"checkpoint.sha256": digest, "checkpoint.path": path}
        return mlflow.create_external_model(
            name=Path(path).name, source_run_id=self.run, experiment_id=self.experiment, tags=tags
        ).model_id

    def _link(self, model: str) -> None:
        from mlflow.entities import LoggedModelOutput

        self.client.log_outputs(self.run, [LoggedModelOutput(model, step=0)])


def _create_run(client: "MlflowClient", experiment: str, opening: Mapping[str, Any]) -> str:
    from mlflow.entities import Param

    me = psutil.Process()
    tags = {
        **opening["tags"],
        **_commit(),
        "plm.host": socket.gethostname(),
        "plm.pid": str(me.pid),
        "plm.started": str(me.create_time()),
        "mlflow.user": me.username(),
    }
    if opening["parent"]:
        tags["mlflow.parentRunId"] = opening["parent"]
    run = client.create_run(experiment, start_time=opening["start_time"], tags=tags, run_name=opening["name"])
    items = [Param(name, str(value)[:6000]) for name, value in _flat(opening["params"])]
    for start in range(0, len(items), 100):
        client.log_batch(run.info.run_id, params=items[start : start + 100], synchronous=True)
    _log_inputs(client, run.info.run_id, opening["inputs"])
    return run.info.run_id


def _log_inputs(client: "MlflowClient", run: str, inputs: Mapping[str, str]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    datasets = [
        DatasetInput(
            # MLflow cuts no digest and refuses one of more than 36 characters.
            Dataset(path, digest[:36], "local", json.dumps({"uri": path}), profile=json.dumps({"sha256": digest})),
            tags=[InputTag("mlflow.data.context", "input"), InputTag("sha256", digest)],
        )
        for path, digest in inputs.items()
    ]
    if datasets:
        client.log_inputs(run, datasets)


def _log_tags(client: "MlflowClient", run: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    items = [RunTag(name, value) for name, value in tags.items()]
    for start in range(0, len(items), 100):
        client.log_batch(run, tags=items[start : start + 100], synchronous=True)


def _monitor(run: str) -> "SystemMetricsMonitor":
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run, sampling_interval=SYSTEM_METRICS_S[0])
    monitor.start()
    return monitor


def _commit() -> dict[str, str]:
    """The commit, and whether code or parameters differ from it; what the pipeline writes does not count."""
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!artifacts"]
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        dirty = subprocess.run(changed, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"git.dirty": "unknown"}
    return {"mlflow.source.git.commit": commit.strip(), "git.dirty": str(bool(dirty)).lower()}


def _flat(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _serve(recorder: Recorder, lines: Iterator[bytes | None]) -> str:
    """Handle messages until the farewell or the end of the pipe; returns the status to close the run with."""
    due = time.monotonic() + FLUSH_S
    for line in lines:
        if line is not None:
            message = json.loads(line)
            if message["kind"] == "end":
                return message["status"]
            recorder.handle(message)
        if time.monotonic() >= due or len(recorder.points) >= FLUSH_POINTS:
            recorder.flush()
            due = time.monotonic() + FLUSH_S
    return "KILLED"


def _lines(descriptor: int) -> Iterator[bytes | None]:
    """The lines that arrive, and None about once a second when none does."""
    rest = b""
    while True:
        if not select.select([descriptor], [], [], 1.0)[0]:
            yield None
            continue
        received = os.read(descriptor, 1 << 16)
        if not received:
            return
        *whole, rest = (rest + received).split(b"\n")
        yield from whole


def _report(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """The last word of a recorder that fails: one line instead of a traceback."""
    reason = " ".join(str(error).split())[:300]
    print(
        f"warning: MLflow: {kind.__name__}: {reason}; the rest of this run is not recorded, its work goes on",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    """Record one run from stdin."""
    sys.excepthook = _report
    # Whoever ends the stage's processes means the stage; this one ends with the pipe, after closing the run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    lines = _lines(0)
    opening = next((line for line in lines if line is not None), None)
    if opening is None:
        return
    recorder = Recorder(json.loads(opening))
    print(recorder.run, flush=True)
    recorder.end(_serve(recorder, lines))


if __name__ == "__main__":
    main()
