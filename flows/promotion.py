"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/flow.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. The gate's decision comes from
``judging.py``, and ``transaction.py`` commits it: the alias ``champion`` moves only with a decision against the current
champion, or by force.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flows import settings, standing
from flows.judging import judge
from flows.ledger import ROLLED_BACK, Action, Decision
from flows.packaging import Packager, checkpoint_digest
from flows.registry import CHALLENGER, CHAMPION, DIGEST_TAG, Registry, Version, opened
from flows.stages import Stage
from flows.store import RegistrationFailed, RegistryError, warn
from flows.transaction import StaleError, alone, commit, disagreement, recover

TRIES = 5
"""How many times a version is judged if the alias keeps moving in the meantime."""


@dataclass(frozen=True)
class Outcome:
    """What became of a version."""

    version: str
    """Its number in the registry."""
    stage: str
    """The stage that made its checkpoint."""
    action: Action | Literal["unchanged", "not judged"]
    reasons: list[str]


def needed(root: Path, stages: Iterable[Stage]) -> bool:
    """Whether the registry lacks a model of the stages or a verdict on it, or somebody has moved the champion.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: a checkpoint is missing.
    """
    wanted = {checkpoint_digest(root / stage.register["checkpoint"]) for stage in stages if stage.register}
    if not wanted:
        return False
    try:
        found = standing.registry_status(root)
    except RegistrationFailed:
        return True  # registering will say why
    settled = {v["checkpoint_sha256"] for v in found["versions"] if v["gate"] or CHAMPION in v["aliases"]}
    return bool(wanted - settled) or found["unsettled"]


def register(
    root: Path, stages: Iterable[Stage], parent_run_id: str | None, tell: Callable[[Outcome], object] = lambda _: None
) -> list[Outcome]:
    """Put the checkpoint of every stage with ``meta: register`` into the registry and let the gate judge it.

    A checkpoint whose digest is registered and judged is left alone; if that was interrupted in between, it continues.
    Prints a line per model.

    Args:
        root: The repository.
        stages: The graph.
        parent_run_id: ``journal:`` and the key of the pipeline run's journal.
        tell: Is called with each outcome at once, because later ones may fail.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: a checkpoint is missing, or the gate cannot judge one; the others are still judged.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    graph = list(stages)
    wanted = [(s, checkpoint_digest(root / s.register["checkpoint"])) for s in graph if s.register is not None]
    if not wanted:
        return []
    outcomes: list[Outcome] = []
    # The packager imports its libraries while this process imports its own.
    with Packager(root, settings.read(root)[0]) as packager, opened(root) as registry:
        for outcome in catch_up(root, registry):
            tell(outcome)
            outcomes.append(outcome)
        for run in registry.abandoned():
            registry.client.set_terminated(run.info.run_id, "KILLED")

        # Log the new checkpoints, and test them together with those that a killed registration has logged.
        known = _by_digest(registry)
        new: dict[str, Stage] = {}
        for stage, digest in wanted:
            if digest not in known:
                new.setdefault(digest, stage)
        if new:
            what = ", ".join(stage.name for stage in new.values())
            how = "logged, then tried in a fresh process, then judged"
            print(f"registration: {what}: {how}", file=sys.stderr, flush=True)
        unjudged = [known[d] for d in dict.fromkeys(d for _, d in wanted) if d in known and not _is_judged(known[d])]
        untried = [version.number for version in unjudged]
        problems = packager.package(registry, [*new.values()], graph, registry.run_of(parent_run_id), untried)
        known = _by_digest(registry)

        for stage, digest in wanted:
            version = known[digest]
            if version.number in problems:
                outcome = _judged(root, registry, version, stage, problems.pop(version.number))
            else:
                outcome = Outcome(version.number, stage.name, "unchanged", [version.tags.get("gate.reasons", "")])
            why = "; ".join(outcome.reasons)
            print(f"{stage.name}: {registry.name} version {version.number} {outcome.action}: {why}", flush=True)
            tell(outcome)
            outcomes.append(outcome)
    if failed := [f"{o.stage}: {'; '.join(o.reasons)}" for o in outcomes if o.action == "not judged"]:
        raise RegistryError(" | ".join(failed))
    return outcomes


def promote(root: Path, version: str, reason: str, force: bool = False) -> Outcome:
    """Make a version (number or alias) the champion by hand, if the gate agrees or ``force`` is set.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: there is no such version, it is the champion already, or it cannot be loaded.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        catch_up(root, registry)
        target = registry.get(version)
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")
        if force:
            _must_work(root, registry, target)

        def decide(champion: Version | None) -> Decision:
            before = champion.number if champion else ""
            if force:
                reasons = [reason, "the gate was not asked (force)"]
                return Decision("promoted by hand", target.number, before, reasons, "overruled")
            found = judge(root, registry, target, champion)
            if not found["passed"]:
                reasons = [*found["reasons"], f"asked for by hand: {reason}"]
                return Decision("refused", target.number, before, reasons, "refused", found)
            _must_work(root, registry, target)
            return Decision("promoted by hand", target.number, before, [reason, *found["reasons"]], "passed", found)

        return _commit_against_champion(registry, target, decide)


def rollback(root: Path, reason: str) -> Outcome:
    """Make the previous champion in the ledger the champion again; a second rollback goes back one more.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: there is no champion, none before it, or the previous one cannot be loaded.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        catch_up(root, registry)
        champions = registry.ledger.champions()
        if not champions:
            raise RegistryError(f"{registry.name}: there is no champion, so there is nothing to roll back")
        known = {version.number: version for version in registry.versions()}
        current = champions[-1]
        earlier = [number for number in champions if number in known and number != current]
        if not earlier:
            raise RegistryError(f"{registry.name}: version {current} is the champion, and there was none before it")
        target = known[earlier[-1]]
        _must_work(root, registry, target)

        def decide(champion: Version | None) -> Decision:
            if (now := registry.ledger.champions()[-1]) != current:
                raise RegistryError(
                    f"{registry.name}: version {now} became the champion in the meantime; check `plm status`, then "
                    "run again"
                )
            return Decision(ROLLED_BACK, target.number, champion.number if champion else "", [reason])

        return _commit_against_champion(registry, target, decide)


def catch_up(root: Path, registry: Registry) -> list[Outcome]:
    """Complete or discard what was interrupted; if a person has moved the alias ``champion``, leave it there and record
    the move with what the gate says of it.

    Returns:
        What is new in the ledger.
    """
    with alone(registry):
        done = recover(registry)
    if odd := disagreement(registry):
        alias = registry.alias(CHAMPION)
        if alias is None:
            before = registry.former()
            instead = f"others are compared with version {before.number}" if before else "nothing can be compared"
            warn(f"{registry.name}: {'; '.join(odd)}; until then {instead}")
        else:
            decision = _moved_by_hand(root, registry, registry.get(alias), registry.former(alias))
            warn(f"{registry.name}: somebody made version {alias} the champion: {'; '.join(decision.reasons)}")
            try:
                commit(registry, decision, alias)
                done.append(decision)
            except StaleError:  # it has been moved again: the next command sees where
                pass
    return [
        Outcome(each.version, registry.get(each.version).tags.get("dvc.stage", "by hand"), each.action, each.reasons)
        for each in done
    ]


def _moved_by_hand(root: Path, registry: Registry, version: Version, before: Version | None) -> Decision:
    reasons = ["moved by a person in MLflow's UI or by its API; MLflow does not record who"]
    found = None
    try:
        found = judge(root, registry, version, before)
    except RegistryError as error:
        reasons.append(f"the gate could not judge: {error}")
    else:
        verdict = "the gate agrees" if found["passed"] else "the gate would have refused"
        reasons.append(f"{verdict}: {'; '.join(found['reasons'])}")
    gate = "passed" if found and found["passed"] else "overruled"
    return Decision("moved in the UI", version.number, before.number if before else "", reasons, gate, found)


def _by_digest(registry: Registry) -> dict[str, Version]:
    """The newest version of each checkpoint."""
    return {version.tags.get(DIGEST_TAG, ""): version for version in reversed(registry.versions())}


def _is_judged(version: Version) -> bool:
    return "gate" in version.tags or CHAMPION in version.aliases


def _judged(root: Path, registry: Registry, version: Version, stage: Stage, problem: str | None) -> Outcome:
    if problem is None:
        registry.set_alias(CHALLENGER, version.number)

    def decide(champion: Version | None) -> Decision:
        before = champion.number if champion else ""
        if problem is not None:
            return Decision("refused", version.number, before, [f"the model cannot be used: {problem}"], "refused")
        found = judge(root, registry, version, champion)
        action: Action = "promoted" if found["passed"] else "refused"
        gate = "passed" if found["passed"] else "refused"
        return Decision(action, version.number, before, found["reasons"], gate, found)

    try:
        return _commit_against_champion(registry, version, decide)
    except RegistrationFailed:
        raise
    except RegistryError as error:  # the others still have to be judged
        return Outcome(version.number, stage.name, "not judged", [str(error)])


def _commit_against_champion(
    registry: Registry, version: Version, decide: Callable[[Version | None], Decision]
) -> Outcome:
    """Decide against the current champion and commit the decision; decide again if the champion changes in between.

    If the alias names nothing, the latest champion that still exists stands in.
    """
    for _ in range(TRIES):
        champion = registry.champion()
        decision = decide(champion or registry.former())
        try:
            commit(registry, decision, champion.number if champion else None)
        except StaleError:
            warn(f"{registry.name}: the champion has changed; version {version.number} is judged again")
            continue
        return Outcome(version.number, version.tags.get("dvc.stage", ""), decision.action, decision.reasons)
    raise RegistryError(f"{registry.name}: the champion changed during each of {TRIES} comparisons; run again")


def _must_work(root: Path, registry: Registry, version: Version) -> None:
    """Test a version in a fresh process: only one that works may become the champion.

    Raises:
        RegistryError: it cannot be used.
    """
    with Packager(root, registry.tracking) as packager:
        if problem := packager.package(registry, [], [], "", [version.number])[version.number]:
            raise RegistryError(
                f"{registry.name}: version {version.number} cannot be used: {problem}; `plm status` shows the others, "
                f"and `plm promote VERSION --reason ...` makes one the champion"
            )
