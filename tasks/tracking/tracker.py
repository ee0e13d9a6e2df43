"""MLflow for one stage process: ``with tracked(...) as tracker``. Every stage uses it, and it never disturbs one.

The stage itself neither imports MLflow nor waits for it. It appends what happens to the run's journal
(``tasks/tracking/run_journal.py``), and a publisher, which it starts unless one is running, sends that to MLflow. So
only the publisher is affected when the server is down or hangs.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from plm_core.config import UserError
from plm_core.shared.errors import INTERRUPTED
from plm_core.shared.files import is_locked
from plm_core.shared.paths import JOURNALS
from tasks.parameters.environment_limits import leads
from tasks.tracking import mlflow_stores
from tasks.tracking import run_journal as journals
from tasks.tracking.mlflow_stores import BY_JOURNAL, PUBLISHER, without_credentials
from tasks.tracking.run_journal import Journal

LOOK_S = 15.0
"""How often a stage checks that its publisher is alive."""


class Tracker:
    """What a stage reports to MLflow. Every method returns at once, and none raises because of MLflow."""

    def __init__(self, stage: str, training: str | None = None) -> None:
        self._stage, self._training = stage, training
        self._open = False
        self._journal: Journal | None = None
        self._store: str | None = None
        """The MLflow for which this process starts a publisher; None if it starts none, because its pipeline does."""
        self._publisher: subprocess.Popen[bytes] | None = None
        self._looked = -LOOK_S
        self._unkept: list[Mapping[str, object]] = []
        """Messages that do not fit on the disk; they are tried again with the next one."""
        self._known: set[tuple[str, int]] = set()
        """Points (name, step) from before an interruption, which a training run repeats and which are not recorded
        again."""
        self._step = 0

    def open(self, params: Mapping[str, object], inputs: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Begin the run, or continue that of the same training; ``tracked`` calls it."""
        self._open = True
        parent = os.environ.get("PLM_PARENT_RUN_ID", "")
        trial = os.environ.get("PLM_TRIAL")
        store = None
        try:
            store = mlflow_stores.named(*mlflow_stores.address())
        except UserError as error:
            warn(f"{error}; the run is kept in its journal")
        self._store = None if parent.startswith(BY_JOURNAL) else store
        kind = self._stage.partition("-")[0]
        tags = {
            "dvc.stage": os.environ.get("PLM_STAGE", self._stage),
            "plm.stage": kind,
            "plm.stage_pid": str(os.getpid()),
            **tags,
            **journals.origin(f"tasks/stages/{kind}.py"),
            **({"plm.trial": trial} if trial else {}),
        }
        # An interrupted run of the same training continues in its journal.
        for path in sorted(JOURNALS.glob("*.jsonl"), reverse=True) if self._training else ():
            with contextlib.suppress(OSError):
                same = journals.first_message(path).get("training") == self._training
                unfinished = same and journals.end_status(path)[0] != "FINISHED"
                if unfinished and (journal := Journal.existing(path)):
                    self._journal = journal
                    points = (point for message, _ in journals.messages(path) for point in message.get("points", ()))
                    self._known = {(name, step) for name, _, _, step in points}
                    break
        name = f"{self._stage} {trial}" if trial else self._stage
        content = {"params": params, "inputs": inputs, "parent": parent, "training": self._training}
        self._send(journals.begin_message(name, store, tags, **content))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record points of curves; they carry the time of this call."""
        self._step = max(self._step, step)
        new = {name: value for name, value in metrics.items() if (name, step) not in self._known}
        if new:
            self._send(journals.points_message(new, step))

    def repeat(self, step: int) -> None:
        """Training was rolled back: points from this step on are recorded again; MLflow shows both."""
        self._known = {point for point in self._known if point[1] < step}

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Record the stage's results; they belong to the last step that was logged."""
        self.log(metrics, self._step)

    def outputs(self, digests: Mapping[str, str]) -> None:
        """Record the sha256 of the files that the stage wrote, as tags ``output.<path>``."""
        self._send({"kind": "tags", "tags": {f"output.{path}": digest for path, digest in digests.items()}})

    def end(self, status: str) -> None:
        """Close the run as FINISHED, FAILED or KILLED; ``tracked`` calls it."""
        self._looked = -LOOK_S  # it must have a publisher now
        self._send(journals.end_message(status))
        if self._journal is not None:
            publisher = journals.publisher_of(self._store) if self._store else None
            if publisher and is_locked(publisher) and (trouble := publisher.read_text(encoding="utf-8")):
                warn(f"{trouble}; {self._journal.path} keeps this run until MLflow has it")
            self._journal.close()

    def _send(self, message: Mapping[str, object]) -> None:
        """Append a message, after those that found no room before; make sure that a publisher sends them."""
        if not self._open:
            return
        self._unkept.append(message)
        try:
            self._journal = self._journal or Journal.new(JOURNALS, self._stage)
            while self._unkept:
                self._journal.append(self._unkept[0])
                del self._unkept[0]
        except OSError as error:
            if len(self._unkept) == 1:
                warn(f"no journal ({error}); the stage continues, and what finds no room is missing in MLflow")
        if not (self._journal and self._store and time.monotonic() - self._looked >= LOOK_S):
            return
        # The journal exists by now, and a publisher that is about to end looks for new ones first.
        self._looked = time.monotonic()
        if is_locked(journals.publisher_of(self._store)) or (self._publisher and self._publisher.poll() is None):
            return
        try:
            with (JOURNALS / "publisher.log").open("ab") as log:  # for its warnings
                # A Ctrl-C for the stage's group does not reach it, and it does not hold the stage's output open.
                self._publisher = subprocess.Popen(
                    [*PUBLISHER, "--serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            warn(f"no publisher could be started ({error}); the run is kept in its journal")


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
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except SystemExit as error:
        status = {None: "FINISHED", 0: "FINISHED", INTERRUPTED: "KILLED"}.get(error.code, "FAILED")  # type: ignore[arg-type]
        raise
    finally:
        tracker.end(status)


def warn(what: str) -> None:
    """Report a problem with MLflow on stderr; it never ends a stage."""
    print(f"warning: MLflow: {what}", file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """The message of an error, as one line of limited length without passwords."""
    return f"{type(error).__name__}: {' '.join(without_credentials(str(error)).split())[:300]}"
