"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/pipeline.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. The gate itself is a
process, ``python -m tasks.gate``: whoever moves the alias ``champion`` here has its decision in hand, or says force.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.graph import Stage
from flows.packaging import checkpoint_digest, evidence_files, log_model, try_model
from flows.registry import (
    CHALLENGER,
    CHAMPION,
    DIGEST_TAG,
    RegistrationFailed,
    Registry,
    RegistryError,
    Version,
    opened,
)

__all__ = [
    "Outcome",
    "RegistrationFailed",
    "RegistryError",
    "promote",
    "register",
    "registry_status",
    "rollback",
]


@dataclass(frozen=True)
class Outcome:
    """What became of one version."""

    version: str
    """Its number in the registry."""
    stage: str
    """The stage that made its checkpoint."""
    action: Literal["promoted", "refused", "unchanged", "rolled back"]
    reasons: list[str]


def register(root: Path, stages: Iterable[Stage], parent_run_id: str | None) -> list[Outcome]:
    """Put the checkpoint of every stage with ``meta: register`` into the registry and let the gate judge it.

    A checkpoint whose digest is registered and judged is left alone; one that was interrupted in between goes on.

    Raises:
        SettingsError: ``params.yaml`` cannot be used.
        RegistryError: a checkpoint is missing, or the gate cannot judge.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    graph = list(stages)
    wanted = [stage for stage in graph if stage.register is not None]
    if not wanted:
        return []
    with opened(root) as registry:
        return [_register(root, registry, stage, graph, parent_run_id) for stage in wanted]


def promote(root: Path, version: str, reason: str, force: bool = False) -> Outcome:
    """Make a version (number or alias) the champion by hand, if the gate agrees or ``force`` is set.

    Raises:
        SettingsError: ``params.yaml`` cannot be used.
        RegistryError: there is no such version, it is the champion already, or it cannot be loaded.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        target = registry.get(version)
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")
        decision = _judge(root, registry, target) if not force else None
        reasons = [reason, *(decision["reasons"] if decision else ["the gate was not asked (force)"])]
        if decision and not decision["passed"]:
            return _refuse(registry, target, reasons, decision)
        if problem := try_model(registry, target):
            raise RegistryError(f"{registry.name}: version {target.number} cannot be used: {problem}")
        with registry.decision("promoted by hand", target, reasons, decision):
            gate = "passed" if decision else "overruled"
            registry.tag(target, {"gate": gate, "gate.reasons": "; ".join(reasons)})
            registry.make_champion(target)
        return Outcome(target.number, target.tags.get("dvc.stage", ""), "promoted", reasons)


def rollback(root: Path, reason: str) -> Outcome:
    """Make the previous champion the champion again, by the ledger; a second rollback goes one further back.

    Raises:
        SettingsError: ``params.yaml`` cannot be used.
        RegistryError: there is no champion, or none before it.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        current = registry.champion()
        if current is None:
            raise RegistryError(f"{registry.name}: there is no champion, so there is nothing to roll back")
        known = {version.number: version for version in registry.versions()}
        earlier = [number for number in registry.champions() if number in known]
        while earlier and earlier[-1] == current.number:
            earlier.pop()
        if not earlier:
            raise RegistryError(f"{registry.name}: version {current.number} is the champion and none came before it")
        target = known[earlier[-1]]
        with registry.decision("rolled back", target, [reason], {"from": current.number}):
            registry.make_champion(target)
        return Outcome(target.number, target.tags.get("dvc.stage", ""), "rolled back", [reason])


def registry_status(root: Path) -> dict[str, Any]:
    """The registered model and its versions, the newest first, as plain data.

    Raises:
        SettingsError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        versions = [
            {
                "version": version.number,
                "aliases": version.aliases,
                "gate": version.tags.get("gate"),
                "reasons": version.tags.get("gate.reasons"),
                "checkpoint_sha256": version.tags.get(DIGEST_TAG),
                "stage": version.tags.get("dvc.stage"),
                "git_commit": version.tags.get("git.commit"),
                "created": version.created,
                "metrics": {k: v if math.isfinite(v) else None for k, v in sorted(version.metrics.items())},
            }
            for version in registry.versions()
        ]
        return {"model": registry.name, "tracking_uri": registry.tracking.uri, "versions": versions}


def _register(root: Path, registry: Registry, stage: Stage, graph: list[Stage], parent_run_id: str | None) -> Outcome:
    assert stage.register is not None
    digest = checkpoint_digest(root / stage.register["checkpoint"])
    version = next((v for v in registry.versions() if v.tags.get(DIGEST_TAG) == digest), None)
    if version is not None and ("gate" in version.tags or CHAMPION in version.aliases):
        return Outcome(version.number, stage.name, "unchanged", [version.tags.get("gate.reasons", "")])
    if version is None:
        version = log_model(root, registry, stage, evidence_files(root, stage, graph), parent_run_id)
    if problem := try_model(registry, version):
        return _refuse(registry, version, [f"the model cannot be used: {problem}"], None)
    registry.set_alias(CHALLENGER, version)
    decision = _judge(root, registry, version)
    reasons = decision["reasons"]
    if not decision["passed"]:
        return _refuse(registry, version, reasons, decision)
    with registry.decision("promoted", version, reasons, decision):
        # The tag first: a version that is judged is never judged again, least of all against itself.
        registry.tag(version, {"gate": "passed", "gate.reasons": "; ".join(reasons)})
        registry.make_champion(version)
    return Outcome(version.number, stage.name, "promoted", reasons)


def _refuse(registry: Registry, version: Version, reasons: list[str], details: object) -> Outcome:
    with registry.decision("refused", version, reasons, details):
        registry.tag(version, {"gate": "refused", "gate.reasons": "; ".join(reasons)})
    return Outcome(version.number, version.tags.get("dvc.stage", ""), "refused", reasons)


def _judge(root: Path, registry: Registry, challenger: Version) -> dict[str, Any]:
    """The gate's decision; where the stored examples differ, the champion, then both are evaluated on today's.

    What was evaluated may show that another file is needed, so it is asked until nothing new is.
    """
    champion = registry.champion()
    sides = [challenger] if champion is None else [champion, challenger]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        evidence = {side.number: _stored_evidence(registry, side, work) for side in sides}
        decision = _gate(root, work, evidence[challenger.number], evidence[champion.number] if champion else None)
        fresh: set[tuple[str, str]] = set()
        while champion is not None:
            wanted = [(s, f) for s in sides for f in decision["examples_differ"] if (s.number, f) not in fresh]
            if not wanted:
                break
            side, files = wanted[0][0], [file for each, file in wanted if each is wanted[0][0]]
            _evaluate_again(root, registry, side, files, evidence[side.number], work)
            fresh |= {(side.number, file) for file in files}
            decision = _gate(root, work, evidence[challenger.number], evidence[champion.number])
    return decision


def _stored_evidence(registry: Registry, version: Version, work: Path) -> Path:
    target = work / version.number
    target.mkdir()
    return registry.evidence(version, target)


def _gate(root: Path, work: Path, challenger: Path, champion: Path | None) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tasks.gate",
        "--challenger",
        str(challenger),
        "--out",
        str(work / "decision.json"),
    ]
    command += ["--champion", str(champion)] if champion else []
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RegistryError(f"the gate cannot judge: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return json.loads((work / "decision.json").read_text(encoding="utf-8"))


def _evaluate_again(
    root: Path, registry: Registry, version: Version, files: list[str], evidence: Path, work: Path
) -> None:
    """Replace these evidence files of a version by what its checkpoint does on today's examples.

    A task's file is named ``<task>.<seed>.csv``: all of its seeds are replaced together.
    """
    checkpoint = registry.checkpoint(version, _new_folder(work, "model"))
    tasks = dict.fromkeys(file.split(".")[0] if file.count(".") > 1 else "" for file in files)
    for task in tasks:
        module = "tasks.finetune" if task else "tasks.evaluate"
        fresh = _new_folder(work, "again")
        command = [sys.executable, "-m", module, version.tags["plm.model"], *([task] if task else [])]
        command += ["--checkpoint", str(checkpoint), "--evidence", str(fresh)]
        done = subprocess.run(command, cwd=root, env={**os.environ, "PLM_TRACKING": "off"}, check=False)
        if done.returncode != 0:
            raise RegistryError(
                f"version {version.number} cannot be evaluated on today's examples: `{' '.join(command[1:])}` "
                f"ended with exit status {done.returncode}"
            )
        for stale in evidence.glob(f"{task}.*.csv"):
            stale.unlink()
        for file in fresh.iterdir():
            shutil.copyfile(file, evidence / file.name)


def _new_folder(work: Path, name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
