"""Runs the trials of a sweep, side by side, until there are enough or the time is over. Used by ``sweep.py``."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from flows.failures import CancelledError, StageError
from flows.outcome import UserError
from flows.process import StageProcesses
from flows.sweeps.space import Sweep, Value
from flows.sweeps.study import Ended, Study, params_of
from flows.sweeps.workspaces import Workspaces
from flows.timing import clock

RETRIES = 2
"""How often a trial is resumed if its process is killed."""
LOOK_S = 1.0
"""The shortest time between two looks at what a trial reports."""
HOPELESS = 3
"""If this many trials have failed and none has succeeded, something else is wrong."""


class PrunedError(Exception):
    """A trial should end, because others were better at this step."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Trials:
    """The trials of a sweep while it runs."""

    def __init__(
        self, sweep: Sweep, study: Study, workspaces: Workspaces, stage: str, env: Mapping[str, str], held: int
    ) -> None:
        """``stage`` is what each trial brings up to date, ``env`` are variables for its environment, ``held`` is the
        sweep's lock, which it inherits."""
        self._sweep, self._study, self._workspaces, self._stage, self._env = sweep, study, workspaces, stage, env
        self._left = study.unfinished()
        self._held = held
        self._begun = time.monotonic() - study.seconds
        """When the sweep would have begun if it had never been interrupted, on the monotonic clock."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._processes: set[StageProcesses] = set()

    def run(self, jobs: int) -> None:
        """Run ``jobs`` trials side by side until there are enough, the time is over, or the process is interrupted.

        Raises:
            UserError: the first trials have all failed.
        """
        left = self._sweep.seconds() - self._study.seconds
        over = threading.Timer(min(max(left, 0.0), threading.TIMEOUT_MAX), self._stop)
        over.daemon = True
        over.start()
        try:
            with ThreadPoolExecutor(jobs) as pool:
                workers = [pool.submit(self._work) for _ in range(jobs)]
                try:
                    wait(workers, return_when=FIRST_EXCEPTION)
                finally:
                    self._stop()
        finally:
            over.cancel()
            self._note_time()
        for worker in workers:
            worker.result()

    def _note_time(self) -> None:
        """Record what the sweep has taken so far, in case it is killed."""
        self._study.seconds = time.monotonic() - self._begun

    def _stop(self) -> None:
        """Have the running trials save their state and end, and begin no others."""
        self._stopping.set()
        with self._lock:
            running = list(self._processes)
        for each in running:
            each.interrupt_all()

    def _work(self) -> None:
        while trial := self._next():
            try:
                self._carry_out(trial)
                self._note_time()
            except OSError as error:
                raise UserError(f"trial {trial.number}: {error}; it resumes with the sweep") from error
            ended = self._study.ended()
            if len(ended) >= HOPELESS and all(each.state == "failed" for each in ended):
                raise UserError(f"sweep: the first {len(ended)} trials have failed, the last: {ended[-1].reason}")

    def _next(self) -> Any:
        with self._lock:
            if self._stopping.is_set():
                return None
            if self._left:
                return self._left.pop(0)
            return self._study.ask() if self._study.many() < self._sweep.trials else None

    def _carry_out(self, trial: Any) -> None:
        """Run a trial to its end, keep what it made, and print its outcome."""
        begun = time.monotonic()
        print(f"trial {trial.number}: {shown(params_of(trial))}", flush=True)
        value = None
        reason = ""
        pruned = False
        try:
            found = self._value(trial)
            self._workspaces.keep(trial.number)
            value = found
        except PrunedError as error:
            reason = f"at step {error.step}"
            pruned = True
        except (StageError, CancelledError, UserError) as error:
            if self._stopping.is_set() or self._goes_on(trial, error):
                self._study.pause(trial, time.monotonic() - begun)
                return
            reason = error.reason if isinstance(error, StageError) else str(error)
        ended = self._study.end(trial, value, time.monotonic() - begun, reason, pruned)
        self._workspaces.close(trial.number)
        print(_said(ended, self._sweep, self._study.best()), flush=True)

    def _goes_on(self, trial: Any, error: Exception) -> bool:
        """Whether a trial whose process was killed is resumed from its state."""
        tries = trial.user_attrs.get("tries", 0)
        if not (isinstance(error, StageError) and error.transient and tries < RETRIES):
            return False
        print(f"trial {trial.number}: resumed, because its process ended: {error}", flush=True)
        trial.set_user_attr("tries", tries + 1)
        with self._lock:
            self._left.append(trial)
        return True

    def _value(self, trial: Any) -> float:
        """Run the process of a trial; returns its metric."""
        place = self._workspaces.open(trial.number, params_of(trial))
        reports, log = (self._workspaces.beside(trial.number, what) for what in ("reports", "log"))
        env = {**self._env, "PLM_REPORTS": str(reports), "PLM_TRIAL": self._workspaces.name_of(trial.number)}
        with self._registered(StageProcesses(place)) as processes, log.open("a", encoding="utf-8") as lines:
            looked = 0.0

            def heard(line: str) -> None:
                nonlocal looked
                print(line, file=lines, flush=True)
                if time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    self.look(trial, reports)

            command = [sys.executable, "-m", "flows.sweeps.trial", self._stage]
            # With the lock: a trial that outlives a killed sweep, to save, keeps the next sweep out of its worktree.
            processes.run(f"trial {trial.number}", command, heard, env=env, pass_fds=[self._held], may_fork=False)
        return metric(place, self._sweep)

    def look(self, trial: Any, path: Path) -> None:
        """Tell the study what a trial's training run has reported since, a line of JSON each.

        Raises:
            PrunedError: others were better.
        """
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        known = self._study.reported(trial)
        for report in map(json.loads, text.rpartition("\n")[0].splitlines()):
            values = {f"{report['stage']}/{name}": value for name, value in report["metrics"].items()}
            # A training run that was rolled back reports some steps again.
            if report["step"] > known and self._sweep.metric in values:
                known = report["step"]
                self._note_time()
                if self._study.report(trial, known, values[self._sweep.metric]):
                    raise PrunedError(known)

    @contextlib.contextmanager
    def _registered(self, processes: StageProcesses) -> Iterator[StageProcesses]:
        with self._lock:
            if self._stopping.is_set():
                raise CancelledError
            self._processes.add(processes)
        try:
            yield processes
        finally:
            with self._lock:
                self._processes.discard(processes)


def metric(place: Path, sweep: Sweep) -> float:
    """The metric in a checkout. Raises UserError: it is missing, or not a number."""
    found = json.loads((place / sweep.file).read_text(encoding="utf-8"))
    value = found.get(sweep.name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"sweep.metric: {sweep.file} has no number {sweep.name!r}; it has {', '.join(found)}")
    return float(value)


def shown(params: Mapping[str, Value]) -> str:
    """Parameters in one line, by the last part of their names if those differ."""
    short = {name.rpartition(".")[2] for name in params}
    return ", ".join(
        f"{name.rpartition('.')[2] if len(short) == len(params) else name} {value}" for name, value in params.items()
    )


def _said(ended: Ended, sweep: Sweep, best: Ended | None) -> str:
    """The outcome of a trial, in one line."""
    number = "" if ended.value is None else f"{sweep.name} {ended.value:.4g}"
    said = {
        "complete": number,
        "pruned": f"{number} {ended.reason}, worse than others",
        "failed": f"failed: {ended.reason}",
    }
    behind = f"; best {best.value:.4g}, trial {best.number}" if best and best.value is not None else ""
    return f"trial {ended.number}: {said[ended.state]}, in {clock(ended.seconds)}{behind}"
