"""From a trained checkpoint to the champion: register, gate, promote, roll back.

``flows/flow.py`` calls ``register`` after the graph; the ``plm`` command calls the rest. ``python -m tasks.package``
makes a checkpoint a version and tries it, ``judging.py`` gets the gate's decision, and the registry commits it: the
alias ``champion`` moves only with a decision against the current champion, or by force. All raise ``UserError`` if
``params.yaml`` cannot be used, and its kind ``RegistrationFailed`` if MLflow cannot be reached or fails.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows import settings, standing
from flows.judging import judge
from flows.ledger import ROLLED_BACK, Action, Decision
from flows.registry import (
    CHALLENGER,
    CHAMPION,
    CHECKSUMS,
    DIGEST_TAG,
    EVIDENCE_TAG,
    Registry,
    StaleError,
    Version,
    opened,
)
from flows.stages import Stage
from flows.store import ENVIRONMENT, RegistrationFailed, RegistryError, evidence_digest, sha256, warn
from plm_core.shared.stores import BY_JOURNAL, shown

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


@contextlib.contextmanager
def packager(root: Path) -> "Iterator[subprocess.Popen[str]]":
    """The process ``python -m tasks.package``, which imports MLflow and torch while this one does something else: one
    serves a whole registration, and this process loads no model. It ends with the block, or when this process dies."""
    tracking, _ = settings.read(root)
    store = {"MLFLOW_TRACKING_URI": tracking.uri, "MLFLOW_EXPERIMENT_NAME": tracking.experiment}
    store["CUDA_VISIBLE_DEVICES"] = ""  # the test needs no GPU, and others may be using them
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.package"],
        cwd=root,
        env=ENVIRONMENT | os.environ | store,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # only this process gets a Ctrl-C, and ends the other
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the forks that try versions
        process.communicate()


def package(
    process: "subprocess.Popen[str]", model: str, new: Sequence[dict[str, Any]], untried: Sequence[str]
) -> dict[str, str | None]:
    """Log what ``new`` describes (``tasks/package.py``) as versions; then load and query these, and those whose numbers
    are ``untried``, each in a fresh process.

    Returns:
        What is wrong with each version, by its number; None if it works.

    Raises:
        RegistrationFailed: a version could not be logged, or not be tested, for example because memory ran out.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"model": model, "log": [*new], "try": [*untried]}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    if not line:
        raise RegistrationFailed(f"tasks.package ended with exit status {process.wait()}; see its error above")
    answer = json.loads(line)
    if answer["error"]:
        names = ", ".join(each["tags"]["dvc.stage"] for each in new)
        raise RegistrationFailed(f"{names}: could not be logged as models: {answer['error']}")
    for number, problem in answer["problems"].items():
        if problem and problem["passing"]:
            what = f"version {number} could not be tested: {problem['error']}"
            raise RegistrationFailed(f"{model}: {what}; run again")
    return {number: problem and shown(problem["error"]) for number, problem in answer["problems"].items()}


def needed(root: Path, stages: Iterable[Stage]) -> bool:
    """Whether the registry lacks a model of the stages or a verdict on it, or somebody has moved the champion.

    Raises:
        RegistryError: a checkpoint is missing.
    """
    wanted = {digest for _, digest in _checkpoints(root, stages)}
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
        RegistryError: a checkpoint or its evidence is missing, or the gate cannot judge one; the others are judged.
    """
    graph = list(stages)
    wanted = _checkpoints(root, graph)
    if not wanted:
        return []
    stage_of: dict[str, Stage] = {}
    for stage, digest in wanted:
        stage_of.setdefault(digest, stage)
    outcomes: list[Outcome] = []
    # The packager imports its libraries while this process imports its own.
    with packager(root) as process, opened(root) as registry:
        for outcome in catch_up(root, registry):
            tell(outcome)
            outcomes.append(outcome)
        for run in registry.abandoned():
            registry.client.set_terminated(run.info.run_id, "KILLED")

        # New checkpoints become versions, under the pipeline's run if MLflow has it.
        known = _by_digest(registry)
        new = {digest: stage for digest, stage in stage_of.items() if digest not in known}
        if new:
            what = ", ".join(stage.name for stage in new.values())
            how = "logged, then tried in a fresh process, then judged"
            print(f"registration: {what}: {how}", file=sys.stderr, flush=True)
        key = (parent_run_id or "").removeprefix(BY_JOURNAL)
        parents = registry.runs(f"tags.`plm.journal` = '{key}'") if key and new else iter(())
        parent = next((run.info.run_id for run in parents), "")
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        versions = []
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
            versions.append({**files, "tags": tags, "parent": parent})

        # They are tested together with those that a killed registration has logged, and judged one after the other.
        untried = [known[d].number for d in stage_of if d in known and not known[d].settled]
        problems = package(process, registry.name, versions, untried) if versions or untried else {}
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
        RegistryError: there is no such version, it is the champion already, or it cannot be loaded.
    """
    with opened(root) as registry:
        catch_up(root, registry)
        target = registry.get(version)
        if CHAMPION in target.aliases:
            raise RegistryError(f"{registry.name}: version {target.number} is the champion already")

        def decide(champion: Version | None) -> Decision:
            before = champion.number if champion else ""
            found = None if force else judge(root, registry, target, champion)
            if found and not found["passed"]:
                reasons = [*found["reasons"], f"asked for by hand: {reason}"]
                return Decision("refused", target.number, before, reasons, "refused", found)
            _must_work(root, registry, target)
            reasons = [reason, *(found["reasons"] if found else ["the gate was not asked (force)"])]
            gate = "passed" if found else "overruled"
            return Decision("promoted by hand", target.number, before, reasons, gate, found)

        return _commit_against_champion(registry, target, decide)


def rollback(root: Path, reason: str) -> Outcome:
    """Make the previous champion in the ledger the champion again; a second rollback goes back one more.

    Raises:
        RegistryError: there is no champion, none before it, or the previous one cannot be loaded.
    """
    with opened(root) as registry:
        catch_up(root, registry)
        current = next(reversed(registry.ledger.champions()), None)
        if current is None:
            raise RegistryError(f"{registry.name}: there is no champion, so there is nothing to roll back")
        target = registry.former(current)
        if target is None:
            raise RegistryError(f"{registry.name}: version {current} is the champion, and there was none before it")
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
    with registry.alone():
        done = registry.recover()
    alias = registry.alias(CHAMPION)
    odd = registry.disagreement()
    if odd and alias is None:
        before = registry.former()
        instead = f"others are compared with version {before.number}" if before else "nothing can be compared"
        warn(f"{registry.name}: {'; '.join(odd)}; until then {instead}")
    elif odd and alias:
        version = registry.get(alias)
        before = registry.former(alias)
        reasons = ["moved by a person in MLflow's UI or by its API; MLflow does not record who"]
        found = None
        try:
            found = judge(root, registry, version, before)
            verdict = "the gate agrees" if found["passed"] else "the gate would have refused"
            reasons.append(f"{verdict}: {'; '.join(found['reasons'])}")
        except RegistryError as error:
            reasons.append(f"the gate could not judge: {error}")
        warn(f"{registry.name}: somebody made version {alias} the champion: {'; '.join(reasons)}")
        gate = "passed" if found and found["passed"] else "overruled"
        number = before.number if before else ""
        decision = Decision("moved in the UI", version.number, number, reasons, gate, found)
        with contextlib.suppress(StaleError):  # it has been moved again: the next command sees where
            registry.commit(decision, alias)
            done.append(decision)
    return [
        Outcome(each.version, registry.get(each.version).tags.get("dvc.stage", "by hand"), each.action, each.reasons)
        for each in done
    ]


def evidence_files(root: Path, stage: Stage, stages: Iterable[Stage]) -> list[Path]:
    """The files in the stage's evidence folder that a stage of the current graph made: removed stages leave theirs.

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
    found = []
    for stage in stages:
        if stage.register is not None:
            path = root / stage.register["checkpoint"] / CHECKSUMS
            try:
                found.append((stage, sha256(path)))
            except OSError as error:
                expected = "expected a checkpoint made by its stage"
                raise RegistryError(f"{path}: {error.strerror}; {expected}") from error
    return found


def _by_digest(registry: Registry) -> dict[str, Version]:
    """The newest version of each checkpoint."""
    return {version.tags.get(DIGEST_TAG, ""): version for version in reversed(registry.versions())}


def _judged(root: Path, registry: Registry, version: Version, stage: Stage, problem: str | None) -> Outcome:
    """What becomes of a new version with this ``problem``, None if it works."""
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
            registry.commit(decision, champion.number if champion else None)
        except StaleError:
            warn(f"{registry.name}: the champion has changed; version {version.number} is judged again")
            continue
        return Outcome(version.number, version.tags.get("dvc.stage", ""), decision.action, decision.reasons)
    raise RegistryError(f"{registry.name}: the champion changed during each of {TRIES} comparisons; run again")


def _must_work(root: Path, registry: Registry, version: Version) -> None:
    """Test a version: only one that works may become the champion. Raises RegistryError: it does not."""
    with packager(root) as process:
        problem = package(process, registry.name, [], [version.number])[version.number]
    if problem:
        raise RegistryError(
            f"{registry.name}: version {version.number} cannot be used: {problem}; `plm status` shows the others, "
            f"and `plm promote VERSION --reason ...` makes one the champion"
        )
