"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/flow.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. The gate's decision comes from
``judging.py``: whoever moves the alias ``champion`` here has it in hand, or says force.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows import settings
from flows.describing import describe
from flows.judging import judge
from flows.packaging import Packager, checkpoint_digest
from flows.registry import CHALLENGER, CHAMPION, DIGEST_TAG, TABLE_TAG, Registry, Version, opened
from flows.stages import Stage
from flows.store import RegistryError


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
    Prints a line a model. ``parent_run_id`` is ``journal:`` and the key of the pipeline run's journal.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: a checkpoint is missing, or the gate cannot judge.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    graph = list(stages)
    wanted = [(s, checkpoint_digest(root / s.register["checkpoint"])) for s in graph if s.register is not None]
    if not wanted:
        return []
    # It imports for as long as this process does.
    with Packager(root, settings.read(root)[0]) as packager, opened(root) as registry:
        return _register(root, registry, packager, graph, wanted, parent_run_id)


def promote(root: Path, version: str, reason: str, force: bool = False) -> Outcome:
    """Make a version (number or alias) the champion by hand, if the gate agrees or ``force`` is set.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: there is no such version, it is the champion already, or it cannot be loaded.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        target = registry.get(version)
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")
        decision = judge(root, registry, target, registry.champion()) if not force else None
        reasons = [reason, *(decision["reasons"] if decision else ["the gate was not asked (force)"])]
        if decision and not decision["passed"]:
            return _refuse(registry, target, reasons, decision)
        with Packager(root, registry.tracking) as packager:
            if problem := packager.problems(registry, [target])[0]:
                raise RegistryError(f"{registry.name}: version {target.number} cannot be used: {problem}")
        with registry.decision("promoted by hand", target, reasons, decision):
            registry.make_champion(target)
            describe(registry, target, "passed" if decision else "overruled", decision)
            registry.tag(target, _verdict("passed" if decision else "overruled", reasons, decision))
        return Outcome(target.number, target.tags.get("dvc.stage", ""), "promoted", reasons)


def rollback(root: Path, reason: str) -> Outcome:
    """Make the previous champion the champion again, by the ledger; a second rollback goes one further back.

    Raises:
        UserError: ``params.yaml`` cannot be used.
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


def _register(
    root: Path,
    registry: Registry,
    packager: Packager,
    graph: Sequence[Stage],
    wanted: Sequence[tuple[Stage, str]],
    parent_run_id: str | None,
) -> list[Outcome]:
    """Log the new checkpoints, try side by side all that were not judged, and ask the gate for one after the other."""
    known = _by_digest(registry)
    new = {digest: stage for stage, digest in reversed(wanted) if digest not in known}
    if new:
        packager.log(root, registry, list(reversed(new.values())), graph, registry.run_of(parent_run_id))
        known = _by_digest(registry)
    versions = [known[digest] for digest in dict.fromkeys(digest for _, digest in wanted)]
    untried = [v for v in versions if "gate" not in v.tags and CHAMPION not in v.aliases]
    problems = dict(zip((v.number for v in untried), packager.problems(registry, untried), strict=True))
    outcomes = []
    for stage, digest in wanted:
        version = known[digest]
        if version.number in problems:
            outcome = _settle(root, registry, version, stage, problems.pop(version.number))
        else:
            outcome = Outcome(version.number, stage.name, "unchanged", [version.tags.get("gate.reasons", "")])
        why = "; ".join(outcome.reasons)
        print(f"{stage.name}: {registry.name} version {version.number} {outcome.action}: {why}", flush=True)
        outcomes.append(outcome)
    return outcomes


def _by_digest(registry: Registry) -> dict[str, Version]:
    """The newest version of each checkpoint."""
    return {version.tags.get(DIGEST_TAG, ""): version for version in reversed(registry.versions())}


def _settle(root: Path, registry: Registry, version: Version, stage: Stage, problem: str | None) -> Outcome:
    if problem is not None:
        return _refuse(registry, version, [f"the model cannot be used: {problem}"], None)
    registry.set_alias(CHALLENGER, version)
    decision = judge(root, registry, version, registry.champion())
    reasons = decision["reasons"]
    if not decision["passed"]:
        return _refuse(registry, version, reasons, decision)
    with registry.decision("promoted", version, reasons, decision):
        # The alias first: killed in between, the champion is not judged again, and none that passed is forgotten.
        registry.make_champion(version)
        describe(registry, version, "passed", decision)
        registry.tag(version, _verdict("passed", reasons, decision))
    return Outcome(version.number, stage.name, "promoted", reasons)


def _refuse(registry: Registry, version: Version, reasons: list[str], decision: Mapping[str, Any] | None) -> Outcome:
    with registry.decision("refused", version, reasons, decision):
        describe(registry, version, "refused", decision)
        registry.tag(version, _verdict("refused", reasons, decision))
    return Outcome(version.number, version.tags.get("dvc.stage", ""), "refused", reasons)


def _verdict(gate: str, reasons: Sequence[str], decision: Mapping[str, Any] | None) -> dict[str, str]:
    """The tags of a version that was judged; ``gate`` comes last, for it says that the others are there."""
    compared = {TABLE_TAG: json.dumps({name: decision[name] for name in ("champion", "table")})} if decision else {}
    return {**compared, "gate.reasons": "; ".join(reasons), "gate": gate}
