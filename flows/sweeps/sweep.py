"""``plm sweep``: trials side by side, each a process in a checkout of its own, until the budget is spent.

A trial that is killed, alone or with everything, resumes from its state when the command is called again. Its runs in
MLflow are children of the sweep's. Called by ``flows/cli.py``.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows import placement, settings
from flows.graph import Graph
from flows.machine import Machine
from flows.outcome import UserError
from flows.placement import Cluster
from flows.process import CancelledError, StageError, StageProcesses
from flows.sweeps.space import Sweep, Value
from flows.sweeps.study import Ended, Study, params_of
from flows.sweeps.trial import needed
from flows.sweeps.workspaces import Workspaces, only_one
from flows.timing import clock
from flows.tracking import pipeline_run
from plm_core.shared import parameters, paths

RETRIES = 2
"""How often a trial is resumed if its process is killed."""
LOOK_S = 1.0
"""The shortest time between two looks at what a trial reports."""
HOPELESS = 3
"""If this many trials have failed and none has succeeded, something else is wrong."""


@dataclass(frozen=True)
class Summary:
    """The state of a sweep."""

    folder: Path
    trials: list[Ended]
    best: Ended | None
    paused: int
    """The number of trials that were interrupted, and resume with the sweep."""


def run(root: Path, name: str, jobs: int | None = None) -> Summary:
    """Search what the section ``sweep`` says, or resume a search, and write what its page shows.

    ``name`` is that of the sweep's folder, and the prefix of its experiments. ``jobs`` trials run side by side; None
    for one per GPU, or per core if there is no GPU. Raises UserError: the section cannot be used, the sweep runs
    already, or its first trials have all failed.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise UserError(f"--name: {name!r}; expected letters, digits, - and _")
    sweep = settings.read_section(root, Sweep, "sweep")
    sweep.seconds()
    machine = placement.detect()
    graph = Graph(root)
    stage = next((stage.name for stage in graph.stages if sweep.file in stage.outs), None)
    if stage is None:
        outs = [Path(out) for stage in graph.stages for out in stage.outs]
        known = ", ".join(sorted(out.stem for out in outs if out.parent == paths.METRICS))
        raise UserError(f"sweep.metric: {sweep.metric!r}: no stage writes {sweep.file}; there are {known}")
    stages = needed(graph.stages, stage)
    if (root / sweep.file).is_file():
        metric(root, sweep)
    gpus = len(machine.gpus) if isinstance(machine, Machine) else machine.gpus  # here, or on a node
    jobs = jobs or (any(each.gpu for each in stages) and gpus) or machine.cores
    workspaces = Workspaces(root, name, graph.given([each.name for each in stages]), graph.cache)
    with only_one(workspaces.folder) as held:
        study = Study(workspaces.folder, name, sweep)
        if changed := workspaces.freeze():
            print(f"changed since the sweep {name} began, and ignored by its trials: {', '.join(changed)}")
        if not study.study.get_trials(deepcopy=False):
            _begin_with_what_is(root, sweep, study)
        with pipeline_run(root, f"sweep {name}") as parent:
            env = {"MLFLOW_TRACKING_URI": settings.read(root)[0].uri} | _share(machine, jobs)
            env["TORCHINDUCTOR_CACHE_DIR"] = str((root / paths.COMPILED).resolve())
            env |= {"PLM_PARENT_RUN_ID": parent} if parent else {"PLM_TRACKING": "off"}
            try:
                Trials(sweep, study, workspaces, stage, env, held).run(jobs)
            finally:
                summary = Summary(workspaces.folder, study.ended(), study.best(), len(study.unfinished()))
                trials = [asdict(trial) for trial in summary.trials]
                results = json.dumps(asdict(sweep) | {"seconds": study.seconds, "trials": trials}, indent=2)
                (summary.folder / paths.TRIALS).write_text(f"{results}\n", encoding="utf-8")
                if summary.best:
                    difference = workspaces.difference(summary.best.number)
                    (summary.folder / paths.DIFFERENCE).write_text(difference, encoding="utf-8")
    return summary


def lines(summary: Summary) -> Iterator[str]:
    """The output at the end."""
    folder = summary.folder
    if summary.paused:
        yield f"{summary.paused} trials keep their state; raise sweep.minutes or sweep.cost to resume them"
    if failed := [trial for trial in summary.trials if trial.state == "failed"]:
        yield f"failed         {len(failed)} trials, the last: {failed[-1].reason}"
    if (best := summary.best) and best.value is not None:
        yield f"best           trial {best.number}: {best.value:.6g}: {shown(best.params)}"
        if (folder / paths.DIFFERENCE).read_text(encoding="utf-8").strip():
            yield f"into params    git apply {folder / paths.DIFFERENCE}"
        yield f"with results   dvc exp apply {folder.name}-{best.number}    (dvc exp show lists all)"
    yield f"page           {folder / 'sweep.html'}"


def _begin_with_what_is(root: Path, sweep: Sweep, study: Study) -> None:
    """Make the current parameters the first trial, as the baseline of the others."""
    params = parameters.sections(root)
    now: dict[str, Value] = {}
    for name, values in sweep.space.items():
        value: Any = params
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(values, list):
            within = value in values
        else:
            within = isinstance(value, int | float) and values.low <= value <= values.high
        if not within:
            print(f"params.yaml has {name}: {value}, which is not in the space, so no trial tries it")
            return
        now[name] = value
    study.study.enqueue_trial(now)


def _share(machine: Machine | Cluster, jobs: int) -> dict[str, str]:
    """What each of ``jobs`` trials gets of the machine; on a cluster, its queue divides the resources."""
    if not isinstance(machine, Machine):
        return {"PLM_NODES": "1"}  # trials side by side would wait for each other's nodes
    gpus = max(1, len(machine.gpus) // jobs)
    gpus = min(gpus, machine.gpus_at_most or gpus)
    return {"PLM_CORES": str(max(1, machine.cores // jobs)), "PLM_GPUS": str(gpus)}


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
        self._processes = StageProcesses(workspaces.folder)
        self._stopping = self._processes.interrupted
        self._lock = threading.Lock()

    def run(self, jobs: int) -> None:
        """Run ``jobs`` trials side by side until there are enough, the time is over, or the process is interrupted.
        Raises UserError: the first trials have all failed."""
        left = self._sweep.seconds() - self._study.seconds
        over = threading.Timer(min(max(left, 0.0), threading.TIMEOUT_MAX), self._processes.interrupt_all)
        over.daemon = True
        over.start()
        try:
            with ThreadPoolExecutor(jobs) as pool:
                workers = [pool.submit(self._work) for _ in range(jobs)]
                try:
                    wait(workers, return_when=FIRST_EXCEPTION)
                finally:
                    self._processes.interrupt_all()
        finally:
            over.cancel()
            self._note_time()
        for worker in workers:
            worker.result()

    def _note_time(self) -> None:
        """Record what the sweep has taken so far, in case it is killed."""
        self._study.seconds = time.monotonic() - self._begun

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
        how = "" if ended.value is None else f"{self._sweep.name} {ended.value:.4g}"
        if ended.state != "complete":
            how = f"{how} {reason}, worse than others" if pruned else f"failed: {reason}"
        best = self._study.best()
        behind = f"; best {best.value:.4g}, trial {best.number}" if best and best.value is not None else ""
        print(f"trial {trial.number}: {how}, in {clock(ended.seconds)}{behind}", flush=True)

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
        with log.open("a", encoding="utf-8") as lines:
            looked = 0.0

            def heard(line: str) -> None:
                nonlocal looked
                print(line, file=lines, flush=True)
                if time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    self.look(trial, reports)

            command = [sys.executable, "-m", "flows.sweeps.trial", self._stage]
            self._processes.run(
                f"trial {trial.number}",
                command,
                heard,
                env=env,
                folder=place,
                # The lock: a trial that outlives a killed sweep, to save, keeps the next sweep out of its worktree.
                pass_fds=[self._held],
                may_fork=False,
            )
        return metric(place, self._sweep)

    def look(self, trial: Any, path: Path) -> None:
        """Tell the study what a trial's training run has reported since, a line of JSON each. Raises PrunedError:
        others were better."""
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
