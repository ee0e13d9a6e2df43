"""``plm sweep``: trials side by side, each a process in a checkout of its own, until the budget is spent.

A trial that is killed, alone or with everything, resumes from its state when the command is called again. Its runs in
MLflow are children of the sweep's. Called by ``flows/cli.py``.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows import placement, settings
from flows.graph import Graph
from flows.machine import Machine
from flows.outcome import UserError
from flows.placement import Cluster
from flows.sweeps import space
from flows.sweeps.space import Sweep, Value
from flows.sweeps.study import Ended, Study
from flows.sweeps.trial import needed
from flows.sweeps.trials import Trials, metric, shown
from flows.sweeps.workspaces import Workspaces, only_one
from flows.tracking import pipeline_run
from plm_core.shared import parameters, paths


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

    Args:
        root: The checkout.
        name: The name of the sweep: its folder, and the prefix of its experiments.
        jobs: How many trials run side by side; None for one per GPU, or per core if there is no GPU.

    Raises:
        UserError: the section cannot be used, the sweep runs already, or its first trials have all failed.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise UserError(f"--name: {name!r}; expected letters, digits, - and _")
    sweep = space.read(root)
    sweep.seconds()
    machine = placement.detect()
    graph = Graph(root)
    stage = _stage(graph, sweep)
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
                summary = _written(workspaces, study, sweep)
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


def _stage(graph: Graph, sweep: Sweep) -> str:
    """The stage that writes the metric."""
    for stage in graph.stages:
        if sweep.file in stage.outs:
            return stage.name
    known = sorted(
        Path(out).stem for stage in graph.stages for out in stage.outs if out.startswith(f"{paths.METRICS}/")
    )
    raise UserError(f"sweep.metric: {sweep.metric!r}: no stage writes {sweep.file}; there are {', '.join(known)}")


def _begin_with_what_is(root: Path, sweep: Sweep, study: Study) -> None:
    """Make the current parameters the first trial, as the baseline of the others."""
    params = parameters.sections(root)
    now: dict[str, Value] = {}
    for name, values in sweep.space.items():
        value: Any = params
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not space.within(value, values):
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


def _written(workspaces: Workspaces, study: Study, sweep: Sweep) -> Summary:
    """Write the results, for people and for the page."""
    found = Summary(workspaces.folder, study.ended(), study.best(), len(study.unfinished()))
    figures = asdict(sweep) | {"seconds": study.seconds, "trials": [asdict(each) for each in found.trials]}
    (workspaces.folder / paths.TRIALS).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if found.best:
        difference = workspaces.difference(found.best.number)
        (workspaces.folder / paths.DIFFERENCE).write_text(difference, encoding="utf-8")
    return found
