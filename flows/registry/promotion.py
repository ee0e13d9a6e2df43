"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/run/flow.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. All begin with
``catch_up``, which completes interrupted decisions and records a champion chosen in MLflow's UI. ``gate_runner.py``
gets versions logged, tried and judged, and the registry commits the decisions: the alias ``champion`` moves only with
a decision against the current champion, or by force. All raise ``UserError`` if ``params.yaml`` cannot be used, and its
subclass ``RegistrationFailed`` if MLflow cannot be reached or fails, or somebody else has decided in the meantime.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.registry import registry_status
from flows.registry.gate_runner import judge, package
from flows.registry.ledger import ROLLED_BACK, Action, Decision
from flows.registry.mlflow_client import RegistrationFailed, RegistryError, evidence_digest, warn
from flows.registry.model_registry import (
    CHALLENGER,
    CHAMPION,
    DIGEST_TAG,
    EVIDENCE_TAG,
    Registry,
    Version,
    open_registry,
)
from flows.registry.registry_copy import copied
from flows.run.graph import Stage
from plm_core.shared.files import CHECKSUMS, sha256
from tasks.tracking.mlflow_stores import BY_JOURNAL
from tasks.tracking.run_journal import JOURNAL_TAG


@dataclass(frozen=True)
class VersionOutcome:
    """What became of a version."""

    version: str
    """Its number in the registry."""
    stage: str
    """The stage that made its checkpoint."""
    action: Action | Literal["unchanged", "not judged"]
    reasons: list[str]


def registration_needed(root: Path, stages: Iterable[Stage]) -> bool:
    """Whether the registry lacks a model of the stages or a verdict on it, or somebody has moved the champion. Raises
    RegistryError: a checkpoint is missing."""
    wanted = {digest for _, digest in _checkpoints(root, stages)}
    if not wanted:
        return False
    try:
        status = registry_status.registry_status(root)
    except RegistrationFailed:
        return True  # registering will say why
    settled = {v["checkpoint_sha256"] for v in status["versions"] if v["gate"] or CHAMPION in v["aliases"]}
    return bool(wanted - settled) or status["unsettled"]


def register(
    root: Path,
    stages: Iterable[Stage],
    parent_run_id: str | None,
    tell: Callable[[VersionOutcome], object] = lambda _: None,
) -> list[VersionOutcome]:
    """Put the checkpoint of every stage with ``meta: register`` into the registry and let the gate judge it.

    A checkpoint whose digest is registered and judged is left alone; one that was registered but not judged, because
    that was interrupted, is judged now. Prints a line per model.

    Args:
        root: The repository.
        stages: The graph.
        parent_run_id: ``journal:`` and the key of the pipeline run's journal.
        tell: Called with each outcome as soon as it is known, because later ones may fail.

    Raises:
        RegistryError: a checkpoint or its evidence is missing, or the gate cannot judge one; the others are judged.
    """
    graph = list(stages)
    wanted = _checkpoints(root, graph)
    if not wanted:
        return []
    with open_registry(root) as registry:
        outcomes = catch_up(root, registry)
        for outcome in outcomes:
            tell(outcome)
        for run in registry.abandoned():
            registry.client.set_terminated(run.info.run_id, "KILLED")

        # New checkpoints become versions, below the pipeline's run if MLflow has it. Versions that a killed
        # registration logged, but did not get judged, are tried again.
        versions = _by_digest(registry)
        stage_of = {digest: stage for stage, digest in wanted}
        new = {digest: stage for digest, stage in stage_of.items() if digest not in versions}
        untried = [versions[d].number for d in stage_of if d in versions and not versions[d].settled]
        key = (parent_run_id or "").removeprefix(BY_JOURNAL)
        parents = registry.runs(f"tags.`{JOURNAL_TAG}` = '{key}'") if key and new else iter(())
        parent = next((run.info.run_id for run in parents), "")
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        requests = []
        for digest, stage in new.items():
            assert stage.register is not None
            checkpoint = root / stage.register["checkpoint"]
            evidence = evidence_files(root, stage, graph)
            tags = {
                DIGEST_TAG: digest,
                EVIDENCE_TAG: evidence_digest(evidence),
                "dvc.stage": stage.name,
                "plm.model": checkpoint.name,
                **({} if git.returncode else {"git.commit": git.stdout.strip()}),
            }
            files = {"checkpoint": str(checkpoint), "evidence": [str(file) for file in evidence]}
            requests.append({**files, "tags": tags, "parent": parent})

        # All are tried in one process, side by side.
        problems: dict[str, str | None] = {}
        if requests or untried:
            what = ", ".join([stage.name for stage in new.values()] + [f"version {number}" for number in untried])
            how = "logged, then tried in a fresh process, then judged"
            print(f"registration: {what}: {how}", file=sys.stderr, flush=True)
            problems = package(root, registry, requests, untried)
            versions = _by_digest(registry)

        # They are judged one after the other: each may be the champion that the next has to beat.
        for stage, digest in wanted:
            version = versions[digest]
            if version.number in problems:
                outcome = _judged(root, registry, version, problems.pop(version.number))
            else:
                outcome = VersionOutcome(
                    version.number, stage.name, "unchanged", [version.tags.get("gate.reasons", "")]
                )
            why = "; ".join(outcome.reasons)
            print(f"{stage.name}: {registry.name} version {version.number} {outcome.action}: {why}", flush=True)
            tell(outcome)
            outcomes.append(outcome)
    if failed := [f"{o.stage}: {'; '.join(o.reasons)}" for o in outcomes if o.action == "not judged"]:
        raise RegistryError(" | ".join(failed))
    return outcomes


def promote(root: Path, version: str, reason: str, force: bool = False, to: str | None = None) -> VersionOutcome:
    """Make a version (number or alias) the champion by hand, if the gate agrees or ``force`` is set; with ``to``, make
    a copy of it the champion of that registry (``registry_copy.copied``).

    Raises:
        RegistryError: there is no such version or registry, it is the champion already, or it cannot be loaded.
    """
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(open_registry(root))
        catch_up(root, registry)
        target = registry.get(version)
        if to:
            if target.tags.get("gate") == "refused" and not force:
                raise RegistryError(
                    f"{registry.name}: the gate has refused version {target.number}; --force overrules it"
                )
            registry, target = stack.enter_context(copied(root, registry, target, to))
            catch_up(root, registry)
            if CHAMPION in (target := registry.get(target.number)).aliases:
                return VersionOutcome(
                    target.number, target.tags["dvc.stage"], "unchanged", ["it is the champion there"]
                )
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")
        champion = registry.champion()
        verdict = None if force else judge(root, registry, target, champion)
        if verdict and not verdict["passed"]:
            reasons = [*verdict["reasons"], f"asked for by hand: {reason}"]
            return _decided(registry, "refused", target, champion, reasons, verdict)
        _must_work(root, registry, target)
        reasons = [reason, *(verdict["reasons"] if verdict else ["the gate was not asked (force)"])]
        return _decided(registry, "promoted by hand", target, champion, reasons, verdict)


def rollback(root: Path, reason: str) -> VersionOutcome:
    """Make the previous champion in the ledger the champion again; a second rollback goes back one version further.

    Raises:
        RegistryError: there is no champion, none before it, or the previous one cannot be loaded.
    """
    with open_registry(root) as registry:
        catch_up(root, registry)
        champion = registry.champion()
        current = next(reversed(registry.ledger.champions()), None)
        if current is None:
            raise RegistryError(f"{registry.name}: there is no champion, so there is nothing to roll back")
        target = registry.champion(current)
        if target is None:
            raise RegistryError(f"{registry.name}: version {current} is the champion, and there was none before it")
        _must_work(root, registry, target)
        return _decided(registry, ROLLED_BACK, target, champion, [reason])


def catch_up(root: Path, registry: Registry) -> list[VersionOutcome]:
    """Complete or discard what was interrupted; if a person has moved the alias ``champion``, leave it there and record
    the move with what the gate says about it.

    Returns:
        What is new in the ledger.
    """
    # What a process had begun when it died.
    with registry.alone():
        recovered = registry.recover()
    done = [
        VersionOutcome(
            late.version, registry.get(late.version).tags.get("dvc.stage", "by hand"), late.action, late.reasons
        )
        for late in recovered
    ]
    # What a person has done in MLflow: a deleted alias is only reported, a moved one is recorded after the fact.
    alias = registry.alias(CHAMPION)
    odd = registry.disagreement()
    if odd and alias is None:
        before = registry.champion()
        instead = f"others are compared with version {before.number}" if before else "nothing can be compared"
        warn(f"{registry.name}: {'; '.join(odd)}; until then {instead}")
    elif odd and alias:
        version = registry.get(alias)
        before = registry.champion(alias)
        reasons = ["moved by a person in MLflow's UI or by its API; MLflow does not record who"]
        verdict = None
        try:
            verdict = judge(root, registry, version, before)
            says = "the gate agrees" if verdict["passed"] else "the gate would have refused"
            reasons.append(f"{says}: {'; '.join(verdict['reasons'])}")
        except RegistryError as error:
            reasons.append(f"the gate could not judge: {error}")
        warn(f"{registry.name}: somebody made version {alias} the champion: {'; '.join(reasons)}")
        done.append(_decided(registry, "moved in the UI", version, before, reasons, verdict))
    return done


def evidence_files(root: Path, stage: Stage, stages: Iterable[Stage]) -> list[Path]:
    """The files in the stage's evidence folder that a stage of the current graph made; removed stages leave theirs.

    Raises:
        RegistryError: there is none.
    """
    assert stage.register is not None
    folder = root / stage.register["evidence"]
    files = [path for made in stages for out in made.outs if (path := root / out).parent == folder and path.is_file()]
    if not files:
        raise RegistryError(f"{folder}: contains no output of any stage; expected the evidence of {stage.name}")
    return sorted(files)


def _checkpoints(root: Path, stages: Iterable[Stage]) -> list[tuple[Stage, str]]:
    """The stages with ``meta: register``, each with the sha256 of its checkpoint's list of checksums."""
    checkpoints = []
    for stage in stages:
        if stage.register is not None:
            path = root / stage.register["checkpoint"] / CHECKSUMS
            try:
                checkpoints.append((stage, sha256(path)))
            except OSError as error:
                expected = "expected a checkpoint made by its stage"
                raise RegistryError(f"{path}: {error.strerror}; {expected}") from error
    return checkpoints


def _by_digest(registry: Registry) -> dict[str, Version]:
    """The newest version of each checkpoint."""
    return {version.tags.get(DIGEST_TAG, ""): version for version in reversed(registry.versions())}


def _judged(root: Path, registry: Registry, version: Version, problem: str | None) -> VersionOutcome:
    """Decide on a new version; ``problem`` says why it cannot be used, None if it works."""
    champion = registry.champion()
    if problem is not None:
        return _decided(registry, "refused", version, champion, [f"the model cannot be used: {problem}"])
    registry.set_alias(CHALLENGER, version.number)
    try:
        verdict = judge(root, registry, version, champion)
    except RegistrationFailed:
        raise
    except RegistryError as error:  # the others still have to be judged
        return VersionOutcome(version.number, version.tags["dvc.stage"], "not judged", [str(error)])
    action: Action = "promoted" if verdict["passed"] else "refused"
    return _decided(registry, action, version, champion, verdict["reasons"], verdict)


def _decided(
    registry: Registry,
    action: Action,
    version: Version,
    champion: Version | None,
    reasons: list[str],
    verdict: dict[str, Any] | None = None,
) -> VersionOutcome:
    """Commit a decision that was made against this champion, with the gate's ``verdict`` if it was asked."""
    registry.commit(Decision(action, version.number, champion.number if champion else "", reasons, verdict))
    return VersionOutcome(version.number, version.tags.get("dvc.stage", "by hand"), action, reasons)


def _must_work(root: Path, registry: Registry, version: Version) -> None:
    """Test a version: only one that works may become the champion. Raises RegistryError: it does not."""
    if problem := package(root, registry, [], [version.number])[version.number]:
        raise RegistryError(
            f"{registry.name}: version {version.number} cannot be used: {problem}; `plm status` shows the others, "
            f"and `plm promote VERSION --reason ...` makes one the champion"
        )
