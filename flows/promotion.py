"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/flow.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. The gate's decision comes from
``judging.py``, and ``transaction.py`` commits it: the alias ``champion`` moves only with a decision against the current
champion, or by force.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows import settings, standing
from flows.judging import judge
from flows.ledger import ROLLED_BACK, Action, Decision
from flows.packaging import Packager, checkpoint_digest
from flows.registry import CHALLENGER, CHAMPION, DIGEST_TAG, TABLE_TAG, Registry, Version, opened
from flows.stages import Stage
from flows.store import RegistrationFailed, RegistryError
from flows.transaction import StaleError, catch_up, commit, warn

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
        judged = _register(root, registry, packager, graph, wanted, parent_run_id)
        for outcome in itertools.chain(_catch_up(root, registry), judged):
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
        _catch_up(root, registry)
        target = registry.get(version)
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")
        if force:
            _must_work(root, registry, target)

        def decide(champion: Version | None) -> Decision:
            if force:
                reasons = [reason, "the gate was not asked (force)"]
                return _decision("promoted by hand", target, champion, reasons, "overruled", None)
            found = judge(root, registry, target, champion)
            if not found["passed"]:
                reasons = [*found["reasons"], f"asked for by hand: {reason}"]
                return _decision("refused", target, champion, reasons, "refused", found)
            _must_work(root, registry, target)
            return _decision("promoted by hand", target, champion, [reason, *found["reasons"]], "passed", found)

        return _commit_against_champion(registry, target, decide)


def rollback(root: Path, reason: str) -> Outcome:
    """Make the previous champion in the ledger the champion again; a second rollback goes back one more.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistryError: there is no champion, none before it, or the previous one cannot be loaded.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    with opened(root) as registry:
        _catch_up(root, registry)
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
            return _decision(ROLLED_BACK, target, champion, [reason], "", {"from": current})

        return _commit_against_champion(registry, target, decide)


def _catch_up(root: Path, registry: Registry) -> list[Outcome]:
    """Complete what was interrupted, and record what a person did in MLflow's UI, before anything else happens."""

    def judged(moved: Version, before: Version | None) -> Decision:
        who = "a person in MLflow's UI or by its API; MLflow does not record who"
        try:
            found = judge(root, registry, moved, before)
        except RegistryError as error:
            reasons = [f"moved by {who}", f"the gate could not judge: {error}"]
            return _decision("moved in the UI", moved, before, reasons, "overruled", None)
        verdict = "the gate agrees" if found["passed"] else "the gate would have refused"
        reasons = [f"moved by {who}", f"{verdict}: {'; '.join(found['reasons'])}"]
        return _decision("moved in the UI", moved, before, reasons, "passed" if found["passed"] else "overruled", found)

    return [
        Outcome(each.version, registry.get(each.version).tags.get("dvc.stage", "by hand"), each.action, each.reasons)
        for each in catch_up(registry, judged)
    ]


def _register(
    root: Path,
    registry: Registry,
    packager: Packager,
    graph: Sequence[Stage],
    wanted: Sequence[tuple[Stage, str]],
    parent_run_id: str | None,
) -> Iterator[Outcome]:
    """Log the new checkpoints, test all unjudged versions together, and ask the gate about one after the other."""
    registry.close_abandoned()
    known = _by_digest(registry)
    new = {digest: stage for stage, digest in reversed(wanted) if digest not in known}
    if new:
        what = ", ".join(stage.name for stage in reversed(new.values()))
        print(f"registration: {what}: logged, then tried in a fresh process, then judged", file=sys.stderr, flush=True)
        packager.log(root, registry, list(reversed(new.values())), graph, registry.run_of(parent_run_id))
        known = _by_digest(registry)
    versions = [known[digest] for digest in dict.fromkeys(digest for _, digest in wanted)]
    untried = [v for v in versions if "gate" not in v.tags and CHAMPION not in v.aliases]
    problems = dict(zip((v.number for v in untried), packager.problems(registry, untried), strict=True))
    for stage, digest in wanted:
        version = known[digest]
        if version.number in problems:
            outcome = _judged(root, registry, version, stage, problems.pop(version.number))
        else:
            outcome = Outcome(version.number, stage.name, "unchanged", [version.tags.get("gate.reasons", "")])
        why = "; ".join(outcome.reasons)
        print(f"{stage.name}: {registry.name} version {version.number} {outcome.action}: {why}", flush=True)
        yield outcome


def _by_digest(registry: Registry) -> dict[str, Version]:
    """The newest version of each checkpoint."""
    return {version.tags.get(DIGEST_TAG, ""): version for version in reversed(registry.versions())}


def _judged(root: Path, registry: Registry, version: Version, stage: Stage, problem: str | None) -> Outcome:
    if problem is None:
        registry.set_alias(CHALLENGER, version.number)

    def decide(champion: Version | None) -> Decision:
        if problem is not None:
            reasons = [f"the model cannot be used: {problem}"]
            return _decision("refused", version, champion, reasons, "refused", None)
        found = judge(root, registry, version, champion)
        action: Action = "promoted" if found["passed"] else "refused"
        return _decision(action, version, champion, found["reasons"], "passed" if found["passed"] else "refused", found)

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
        if problem := packager.problems(registry, [version])[0]:
            raise RegistryError(
                f"{registry.name}: version {version.number} cannot be used: {problem}; `plm status` shows the others, "
                f"and `plm promote VERSION --reason ...` makes one the champion"
            )


def _decision(
    action: Action,
    version: Version,
    champion: Version | None,
    reasons: list[str],
    gate: str,
    found: Mapping[str, Any] | None,
) -> Decision:
    """A decision with the tags of the version's verdict; a rollback has no verdict (``gate`` is empty)."""
    tags = {TABLE_TAG: json.dumps({name: found[name] for name in ("champion", "table")})} if gate and found else {}
    # The verdict comes last, because it says that the others are set.
    tags |= {"gate.reasons": "; ".join(reasons), "gate": gate} if gate else {}
    return Decision(action, version.number, champion.number if champion else "", reasons, tags, found)
