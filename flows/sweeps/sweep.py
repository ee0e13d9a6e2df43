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

from flows import flow_configs
from flows.processes import executor
from flows.processes.executor import Cluster
from flows.processes.process import StageError, StageProcesses
from flows.processes.resources import CancelledError, Machine
from flows.run.graph import Graph
from flows.run.parent_run import pipeline_run
from flows.run.timing import format_duration
from flows.sweeps.study import (
    ENDED,
    Ended,
    StorageInternalError,
    Study,
    Sweep,
    Trial,
    TrialPruned,
    TrialState,
    Value,
    best,
    distribution,
    ended_trials,
    in_state,
    open_study,
    params_of,
)
from flows.sweeps.trial import needed_stages
from flows.sweeps.trial_checkouts import TrialCheckouts, lock_sweep
from plm_core.shared import params_file, paths
from plm_core.shared.errors import UserError

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
    sweep = flow_configs.read_section(root, Sweep, "sweep")
    sweep.seconds()
    machine = executor.detect()
    graph = Graph(root)
    stage = next((stage.name for stage in graph.stages if sweep.file in stage.outs), None)
    if stage is None:
        outs = [Path(out) for stage in graph.stages for out in stage.outs]
        written = ", ".join(sorted(out.stem for out in outs if out.parent == paths.METRICS))
        raise UserError(f"sweep.metric: {sweep.metric!r}: no stage writes {sweep.file}; there are {written}")
    stages = needed_stages(graph.stages, stage)
    # Better to refuse a wrong name here than in the first trials.
    if (root / sweep.file).is_file():
        read_metric(root, sweep)
    gpus = len(machine.gpus) if isinstance(machine, Machine) else machine.gpus  # here, or on a node
    jobs = jobs or (any(part.gpu for part in stages) and gpus) or machine.cores
    workspaces = TrialCheckouts(root, name, graph.given([part.name for part in stages]), graph.cache)

    # What was searched, and on which files, is settled by the first call; later ones resume it.
    with lock_sweep(workspaces.folder) as held:
        study = open_study(workspaces.folder, sweep)
        if changed := workspaces.freeze():
            print(f"changed since the sweep {name} began, and ignored by its trials: {', '.join(changed)}")
        if not study.trials:
            _begin_with_what_is(root, sweep, study)
        with pipeline_run(root, f"sweep {name}") as parent:
            # A trial's own folder has neither MLflow's store nor compiled code.
            env = {"MLFLOW_TRACKING_URI": flow_configs.read_tracking(root)[0].uri} | _share(machine, jobs)
            env["TORCHINDUCTOR_CACHE_DIR"] = str((root / paths.COMPILED).resolve())
            env |= {"PLM_PARENT_RUN_ID": parent} if parent else {"PLM_TRACKING": "off"}
            try:
                Trials(sweep, study, workspaces, stage, env, held).run(jobs)
            finally:
                paused = len(in_state(study, TrialState.RUNNING))
                summary = Summary(workspaces.folder, ended_trials(study), best(study), paused)
                trials = [asdict(trial) for trial in summary.trials]
                results = asdict(sweep) | {"seconds": study.user_attrs["seconds"], "trials": trials}
                text = json.dumps(results, indent=2)
                (summary.folder / paths.TRIALS).write_text(f"{text}\n", encoding="utf-8")
                if summary.best:
                    difference = workspaces.difference(summary.best.number)
                    (summary.folder / paths.DIFFERENCE).write_text(difference, encoding="utf-8")
    return summary


def result_lines(summary: Summary) -> Iterator[str]:
    """What ``plm sweep`` prints at its end."""
    folder = summary.folder
    if summary.paused:
        yield f"{summary.paused} trials keep their state; raise sweep.minutes or sweep.cost to resume them"
    if failed := [trial for trial in summary.trials if trial.state == "failed"]:
        yield f"failed         {len(failed)} trials, the last: {failed[-1].reason}"
    if (best := summary.best) and best.value is not None:
        yield f"best           trial {best.number}: {best.value:.6g}: {format_parameters(best.params)}"
        if (folder / paths.DIFFERENCE).read_text(encoding="utf-8").strip():
            yield f"into params    git apply {folder / paths.DIFFERENCE}"
        yield f"with results   dvc exp apply {folder.name}-{best.number}    (dvc exp show lists all)"
    yield f"page           {folder / 'sweep.html'}"


def _begin_with_what_is(root: Path, sweep: Sweep, study: Study) -> None:
    """Make the current parameters the first trial, as the baseline of the others."""
    params = params_file.sections(root)
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
            print(f"params.yaml has {name}: {value}, which is not in the search space, so no trial tries it")
            return
        now[name] = value
    study.enqueue_trial(now)


def _share(machine: Machine | Cluster, jobs: int) -> dict[str, str]:
    """What each of ``jobs`` trials gets of the machine; on a cluster, its queue divides the resources."""
    if not isinstance(machine, Machine):
        return {"PLM_NODES": "1"}  # trials side by side would wait for each other's nodes
    gpus = max(1, len(machine.gpus) // jobs)
    gpus = min(gpus, machine.gpus_at_most or gpus)
    return {"PLM_CORES": str(max(1, machine.cores // jobs)), "PLM_GPUS": str(gpus)}


class Trials:
    """The trials of a sweep while it runs."""

    def __init__(
        self, sweep: Sweep, study: Study, workspaces: TrialCheckouts, stage: str, env: Mapping[str, str], held: int
    ) -> None:
        """``stage`` is what each trial brings up to date, ``env`` are variables for its environment, ``held`` is the
        sweep's lock, which it inherits."""
        self._sweep, self._study, self._workspaces, self._stage, self._env = sweep, study, workspaces, stage, env
        self._space = {name: distribution(values) for name, values in sweep.space.items()}
        self._left = [Trial(study, trial._trial_id) for trial in in_state(study, TrialState.RUNNING)]
        self._held = held
        self._processes = StageProcesses(workspaces.folder)
        self._lock = threading.Lock()
        self._begun = time.monotonic() - study.user_attrs.get("seconds", 0.0)
        """When the sweep would have begun if it had never been interrupted, on the monotonic clock."""

    def run(self, jobs: int) -> None:
        """Run ``jobs`` trials side by side until there are enough, time is up, or the process is interrupted.
        Raises UserError: the first trials have all failed."""
        left = self._sweep.seconds() - (time.monotonic() - self._begun)
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
            # The budget covers all calls together.
            self._study.set_user_attr("seconds", time.monotonic() - self._begun)
        for worker in workers:
            worker.result()

    def _work(self) -> None:
        while trial := self._next():
            try:
                self._carry_out(trial)
            except (OSError, StorageInternalError) as error:
                raise UserError(f"trial {trial.number}: {error}; it resumes with the sweep") from error
            # Nobody wants to find in the morning that a hundred trials had the same wrong parameter.
            ends = ended_trials(self._study)
            if len(ends) >= HOPELESS and all(end.state == "failed" for end in ends):
                raise UserError(f"sweep: the first {len(ends)} trials have failed, the last: {ends[-1].reason}")

    def _next(self) -> Trial | None:
        with self._lock:
            if self._processes.interrupted.is_set():
                return None
            if self._left:
                return self._left.pop(0)
            begun = in_state(self._study, TrialState.RUNNING, *ENDED)
            return self._study.ask(self._space) if len(begun) < self._sweep.trials else None

    def _carry_out(self, trial: Trial) -> None:
        """Run a trial to its end, and print its outcome; one that is interrupted stays as it is."""
        begun = time.monotonic()
        print(f"trial {trial.number}: {format_parameters(params_of(trial))}", flush=True)
        value = None
        state = TrialState.FAIL
        reason = ""
        try:
            value = self._value(trial)
            state = TrialState.COMPLETE
        except TrialPruned as error:
            state = TrialState.PRUNED
            reason = str(error)
        except (StageError, CancelledError, UserError) as error:
            if self._processes.interrupted.is_set():
                return
            reason = error.reason if isinstance(error, StageError) else str(error)
        finally:  # also of one that resumes later
            trial.set_user_attr("seconds", trial.user_attrs.get("seconds", 0.0) + time.monotonic() - begun)
        trial.set_user_attr("reason", reason)
        end = self._study.tell(trial.number, value, state)
        self._workspaces.close(trial.number)

        # For people: what became of it, and which is the best so far.
        how = "" if end.value is None else f"{self._sweep.name} {end.value:.4g}"
        if state != TrialState.COMPLETE:
            how = f"{how} {reason}, worse than others" if state == TrialState.PRUNED else f"failed: {reason}"
        top = best(self._study)
        behind = f"; best {top.value:.4g}, trial {top.number}" if top else ""
        print(f"trial {trial.number}: {how}, in {format_duration(end.user_attrs['seconds'])}{behind}", flush=True)

    def _value(self, trial: Trial) -> float:
        """Run the process of a trial, and keep what it made; returns its metric. Raises TrialPruned: others were
        better."""
        place = self._workspaces.open(trial.number, params_of(trial))
        reports, log = (self._workspaces.place(trial.number, suffix) for suffix in (".reports", ".log"))
        name = f"{self._workspaces.folder.name}-{trial.number}"
        env = {**self._env, "PLM_REPORTS": str(reports), "PLM_TRIAL": name}
        with log.open("a", encoding="utf-8") as lines:
            looked = 0.0

            def heard(line: str) -> None:
                nonlocal looked
                print(line, file=lines, flush=True)
                if time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    self._look(trial, reports)

            command = [sys.executable, "-m", "flows.sweeps.trial", self._stage]
            # The lock: a trial that outlives a killed sweep to save its state keeps the next sweep out of its checkout.
            options: dict[str, Any] = {"env": env, "folder": place, "pass_fds": [self._held], "may_fork": False}
            for left in range(RETRIES, -1, -1):
                try:
                    self._processes.run(f"trial {trial.number}", command, heard, **options)
                    break
                except StageError as error:
                    if self._processes.interrupted.is_set() or not (error.transient and left):
                        raise
                    print(f"trial {trial.number}: resumed, because its process ended: {error}", flush=True)
        value = read_metric(place, self._sweep)
        self._workspaces.keep(trial.number)
        return value

    def _look(self, trial: Trial, path: Path) -> None:
        """Tell the study what a trial's training run has reported since, a line of JSON each. Raises TrialPruned:
        others were better."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        last = self._study.trials[trial.number].last_step or 0
        for report in map(json.loads, text.rpartition("\n")[0].splitlines()):
            values = {f"{report['stage']}/{name}": value for name, value in report["metrics"].items()}
            # A training run that was rolled back reports some steps again.
            if report["step"] > last and self._sweep.metric in values:
                last = report["step"]
                trial.report(values[self._sweep.metric], last)
                if trial.should_prune():
                    raise TrialPruned(f"at step {last}")
        # In case the sweep is killed.
        self._study.set_user_attr("seconds", time.monotonic() - self._begun)


def read_metric(place: Path, sweep: Sweep) -> float:
    """The metric in a checkout. Raises UserError: it is missing, or not a number."""
    metrics = json.loads((place / sweep.file).read_text(encoding="utf-8"))
    value = metrics.get(sweep.name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"sweep.metric: {sweep.file} has no number {sweep.name!r}; it has {', '.join(metrics)}")
    return float(value)


def format_parameters(params: Mapping[str, Value]) -> str:
    """Parameters in one line, by the last part of their names if those differ."""
    short = {name.rpartition(".")[2] for name in params}
    return ", ".join(
        f"{name.rpartition('.')[2] if len(short) == len(params) else name} {value}" for name, value in params.items()
    )
