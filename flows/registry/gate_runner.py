"""Runs the tasks that say whether a version works, and what the gate decides on a challenger. Used by promotion.

Packaging, the gate and each evaluation run as processes of their own.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.processes import supervisor
from flows.registry.ledger import TABLE_TAG
from flows.registry.mlflow_client import RegistrationFailed, RegistryError, skip_if_deleted, warn
from flows.registry.model_registry import Registry, Version
from tasks.tracking.mlflow_stores import without_credentials

STDERR = 2
"""Where tasks print: the standard output of `plm compare --json` is for its JSON."""
GRACE_S = 60.0
"""How long a task may take to end when this process dies."""


def package(
    root: Path, registry: Registry, new: Sequence[dict[str, Any]], untried: Sequence[str]
) -> dict[str, str | None]:
    """Log what ``new`` describes (``tasks/commands/package.py``) as versions; then load and query these, and those
    whose numbers are ``untried``, each in a fresh process.

    Returns:
        What is wrong with each version, by its number; None if it works.

    Raises:
        RegistrationFailed: a version could not be logged, or not be tested, for example because memory ran out.
    """
    store = {"MLFLOW_TRACKING_URI": registry.tracking.uri, "MLFLOW_EXPERIMENT_NAME": registry.tracking.experiment}
    with tempfile.TemporaryDirectory() as folder:
        request, answered = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"model": registry.name, "log": [*new], "try": [*untried]}), encoding="utf-8")
        # The test needs no GPU, and others may be using them.
        status, _ = _task(
            root, ["tasks.commands.package", str(request), str(answered)], STDERR, CUDA_VISIBLE_DEVICES="", **store
        )
        if status != 0:
            raise RegistrationFailed(f"tasks.commands.package ended with exit status {status}; see its error above")
        answer = json.loads(answered.read_text(encoding="utf-8"))
    if answer["error"]:
        names = ", ".join(version["tags"]["dvc.stage"] for version in new)
        raise RegistrationFailed(f"{names}: could not be logged as models: {answer['error']}")
    for number, problem in answer["problems"].items():
        if problem and problem["passing"]:
            what = f"version {number} could not be tested: {problem['error']}"
            raise RegistrationFailed(f"{registry.name}: {what}; run again")
    return {number: problem and without_credentials(problem["error"]) for number, problem in answer["problems"].items()}


def judge(
    root: Path, registry: Registry, challenger: Version, champion: Version | None, *, also_earlier: bool = True
) -> dict[str, Any]:
    """The gate's decision. If the stored examples differ, first the champion and then, if needed, the challenger is
    re-evaluated on the current ones.

    If the champion has no likelihood of the challenger's kind, and ``also_earlier`` is set, the challenger is compared
    with the last champion that has one, too. The registry keeps new evidence. ``plm compare`` uses this for any two.

    Raises:
        RegistryError: the gate cannot judge, or a version cannot be evaluated.
    """
    sides = [challenger] if champion is None else [champion, challenger]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        facts = {"experiment": registry.experiment(), "sides": [registered_facts(registry, side) for side in sides]}
        (work / "about.json").write_text(json.dumps(facts), encoding="utf-8")
        evidence = {side.number: registry.evidence(side, work / side.number) for side in sides}
        arguments = ["--challenger", str(evidence[challenger.number])]
        if champion:
            looks = registry.ledger.earlier_challengers(champion.number, challenger.number)
            arguments += ["--champion", str(evidence[champion.number]), "--earlier-challengers", str(looks)]
            # Its old text: what it was registered with, before it is evaluated on the current examples.
            registered, wrong = registry.stored_evidence(champion, work / "registered", again=False)
            if wrong:
                warn(f"version {champion.number}: its first evidence {wrong}: its old text is not judged apart")
            else:
                arguments += ["--registered", str(registered)]

        def gate() -> dict[str, Any]:
            out = work / "decision.json"
            command = ["tasks.commands.gate", *arguments, "--out", str(out), "--about", str(work / "about.json")]
            status, message = _task(root, command, subprocess.PIPE)
            if status != 0:
                raise RegistryError(f"the gate cannot judge: {' '.join(message.split()) or f'exit status {status}'}")
            return dict(json.loads(out.read_text(encoding="utf-8")))

        def settled(sides: Sequence[Version], stale: str) -> dict[str, Any]:
            """The decision once the sides have been re-evaluated, one by one, on the files that it lists in ``stale``.

            A new evaluation may show that another file is needed, so the gate is asked again until none is.
            """
            decision = gate()
            fresh: set[tuple[str, str]] = set()
            while wanted := [(s, f) for s in sides for f in decision[stale] if (s.number, f) not in fresh]:
                side = wanted[0][0]
                files = [file for owner, file in wanted if owner is side]
                _evaluate_again(root, registry, side, files, evidence[side.number])
                fresh |= {(side.number, file) for file in files}
                decision = gate()
            for side in sides:
                if any(number == side.number for number, _ in fresh):
                    registry.keep_evidence(side, evidence[side.number])
            return decision

        # The champion first: as a rule only its examples are stale.
        decision = settled(sides, "examples_differ")
        if champion is None:
            return decision | {"champion": None}

        # The last champion before this one with a likelihood that the challenger has and this one lacks.
        rows = [row for row in decision["table"] if row["verdict"] == "not comparable" and row["champion"] is None]
        lacking = {row["metric"] for row in rows}
        for earlier in registry.champions(champion.number, challenger.number) if also_earlier and lacking else []:
            table = json.loads(earlier.tags.get(TABLE_TAG, "{}")).get("table", [])
            if not lacking & {row["metric"] for row in table if row.get("challenger") is not None}:
                continue
            evidence[earlier.number] = registry.evidence(earlier, work / earlier.number)
            arguments += ["--earlier", earlier.number, str(evidence[earlier.number])]
            try:
                decision = settled([earlier, challenger], "earlier_differs")
            except RegistrationFailed:
                raise
            except RegistryError as error:  # the gate records that it was not compared
                warn(str(error))
                decision = gate()
            break
    return decision | {"champion": champion.number}


def registered_facts(registry: Registry, version: Version) -> dict[str, Any]:
    """What the registry knows about a version; only its tags if its run was deleted."""
    facts: dict[str, Any] = {"version": version.number, "run": "", "tags": dict(version.tags)}
    facts |= {"params": {}, "metrics": {}, "samples": []}
    with skip_if_deleted(), tempfile.TemporaryDirectory() as folder:
        run = registry.client.get_run(version.run_id)
        facts |= {"run": version.run_id, "tags": {**run.data.tags, **version.tags}}
        facts |= {"params": run.data.params, "metrics": run.data.metrics}
        pictures = [file.path for file in registry.client.list_artifacts(version.run_id, "report")]
        facts["picture"] = min((path for path in pictures if path.startswith("report/verdict-")), default="")
        if registry.client.list_artifacts(version.run_id, "samples"):
            try:
                (samples,) = Path(registry.client.download_artifacts(version.run_id, "samples", folder)).iterdir()
                facts["samples"] = json.loads(samples.read_text(encoding="utf-8"))
            except ValueError as error:
                warn(f"{registry.name} version {version.number}: its samples are left out: {error}")
    return facts


def _evaluate_again(root: Path, registry: Registry, version: Version, files: list[str], evidence: Path) -> None:
    """Replace these evidence files of a version with an evaluation of its checkpoint on the current examples."""
    progress = f"{registry.name} version {version.number} is re-evaluated on the current examples"
    tasks = dict(map(task_and_seed, files))  # all seeds of a task are replaced together
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = registry.checkpoint(version, Path(folder))
        for number, (task, seed) in enumerate(tasks.items(), 1):
            print(f"{progress}: {task or 'likelihood'} ({number} of {len(tasks)})", file=sys.stderr, flush=True)
            # Nothing is trained for minimal pairs: their seed is 0.
            module = {"": "tasks.stages.evaluate", "0": "tasks.stages.minimal_pairs"}.get(seed, "tasks.stages.finetune")
            output = Path(tempfile.mkdtemp(dir=folder))
            command = [module, version.tags["plm.model"], *([task] if task else [])]
            command += ["--checkpoint", str(checkpoint), "--evidence", str(output)]
            status, _ = _task(root, command, STDERR, PLM_TRACKING="off")
            if status != 0:
                raise RegistryError(
                    f"version {version.number} cannot be evaluated on the current examples: {module} ended with exit "
                    f"status {status}, see its error above; fix it and run again"
                )
            for stale in evidence.glob(f"{task}.*.csv"):
                stale.unlink()
            for file in output.iterdir():
                shutil.copyfile(file, evidence / file.name)


def task_and_seed(file: str) -> tuple[str, str]:
    """The task and the seed in ``<task>.<seed>.csv``; both are empty for ``likelihood.csv``."""
    task, *seed, _ = file.split(".")
    return (task, seed[0]) if seed else ("", "")


def _task(root: Path, arguments: Sequence[str], stderr: int, **env: str) -> tuple[int, str]:
    """Run a task whose processes all end when this one does; returns its exit status and what it printed on stderr."""
    command = [sys.executable, "-m", *arguments]
    options = {"cwd": root, "env": os.environ | env, "stdout": subprocess.DEVNULL, "stderr": stderr, "text": True}
    with supervisor.start_supervisor(GRACE_S, command, **options) as process:
        message = process.stderr.read() if process.stderr else ""
        return process.wait(), message  # before the pipe is closed, which would end it
