"""The registry in MLflow: versions, decisions, aliases, and runs that will never end."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from flows import settings
from flows.health.finding import Finding, Note
from flows.registry import CHALLENGER, CHAMPION, CHECKSUMS, DIGEST_TAG, Registry, Version, opened
from flows.store import RegistryError, sha256, unless_gone
from flows.tracking import State, journals, send_leftovers
from flows.transaction import SETS_IT, alone, disagreement, recover
from plm_core.shared.stores import SQLITE, made

if TYPE_CHECKING:
    from mlflow.entities import Run

JOURNAL_TAG = "plm.journal"
JUDGED_S = 3600.0
"""A version older than this without a verdict was left by a registration that died."""
VERDICT = ("gate", "gate.reasons")

Later = Callable[..., Callable[[], object]]
"""Turns a function of a registry, with its other arguments, into a call that opens the registry again."""


def registry(root: Path, everything: bool) -> Iterator[Finding | Note]:
    """All problems of the registry."""
    if not made(settings.read(root)[0].uri):
        yield Note("MLflow: nothing is registered yet")
        return

    def apply(do: Callable[..., object], *arguments: object) -> None:
        with opened(root) as found:
            do(found, *arguments)

    with opened(root) as found:
        later: Later = partial(partial, apply)
        yield from _versions(found, everything, later)
        yield from _decisions(found, later)
        yield from _runs(root, found, later)


def _versions(registry: Registry, everything: bool, later: Later) -> Iterator[Finding]:
    """Versions without a run, without files, or with damaged ones."""
    # MLflow's ViewType.ALL is 3: deleted runs too.
    found = registry.runs(f"tags.`{DIGEST_TAG}` != ''", 3)
    living = {run.info.run_id: run.info.lifecycle_stage == "active" for run in found}
    for version in registry.versions():
        where = f"{registry.name} version {version.number}"
        instead = f"delete version {version.number} in MLflow, if nobody needs it"
        if CHAMPION in version.aliases:
            instead = "make another version the champion with `plm rollback --reason ...` or `plm promote`"
        again = f"restore the registry from a backup with `plm restore`, or {instead}"
        run = version.run_id
        if run not in living:
            mend = f"{instead}; until then the gate re-evaluates it whenever it has to"
            yield Finding("its run is gone from MLflow, and its evidence with it", where, mend)
        elif not living[run]:
            safe = later(lambda registry, run: registry.client.restore_run(run), run)
            yield Finding("its run was deleted", where, f"`mlflow runs restore --run-id {run}`", safe)
        with tempfile.TemporaryDirectory() as folder:
            whole = everything or bool({CHAMPION, CHALLENGER} & set(version.aliases))
            if problem := _checkpoint(registry, version, Path(folder) / "checkpoint", whole):
                yield Finding(problem, where, again)
            if run in living:
                _, wrong = registry.stored_evidence(version, Path(folder) / "evidence")
                if wrong:
                    yield Finding(f"its evidence {wrong}", where, f"{again}; a champion is re-evaluated automatically")


def _checkpoint(registry: Registry, version: Version, target: Path, whole: bool) -> str:
    """What is wrong with the checkpoint of a version, empty for nothing; reads all its bytes if ``whole``."""
    target.mkdir()
    bad = []
    try:
        with unless_gone():
            checkpoint = registry.checkpoint(version, target, "" if whole else CHECKSUMS)
            for line in (checkpoint / CHECKSUMS).read_text(encoding="utf-8").splitlines() if whole else []:
                expected, _, name = line.partition("  ")
                if not (checkpoint / name).is_file():
                    bad.append(f"{name} is missing")
                elif sha256(checkpoint / name) != expected:
                    bad.append(f"{name} is damaged")
            return f"its checkpoint is damaged: {', '.join(bad)}" if bad else ""
        return "its files are gone"
    except RegistryError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        return f"its file MLmodel is damaged ({type(error).__name__})"


def _decisions(registry: Registry, later: Later) -> Iterator[Finding]:
    """Decisions that were interrupted, aliases that are not as decided, verdicts that are missing."""

    def complete(registry: Registry) -> None:
        with alone(registry):
            recover(registry)

    with alone(registry):  # wait for a decision that is being made
        unfinished = registry.ledger.unfinished()
    for run, decision in unfinished:
        what = str(decision) if decision else "not recorded completely"
        mend = "the next `plm run` completes or discards it"
        yield Finding(f"a decision was interrupted: {what}", f"run {run} of the ledger", mend, later(complete))
    where = f"the model {registry.name}"
    aliases = registry.aliases()
    for alias, number in aliases.items():
        if registry.exists(number):
            continue
        what = f"the alias {alias} names version {number}, which does not exist"
        if alias == CHAMPION:
            yield Finding(what, where, SETS_IT)
        else:
            yield Finding(what, where, "delete the alias in MLflow", later(Registry.delete_alias, alias))
    named = aliases.get(CHAMPION)
    if not unfinished and (named is None or registry.exists(named)) and (odd := disagreement(registry)):
        yield Finding(odd[0], where, odd[1])
    for version in registry.versions():
        yield from _verdict(registry, version, later)


def _verdict(registry: Registry, version: Version, later: Later) -> Iterator[Finding]:
    if all(name in version.tags for name in VERDICT):
        return
    where = f"{registry.name} version {version.number}"
    decided = registry.ledger.tags_of(version.number)
    missing = {name: decided[name] for name in decided if name not in version.tags}
    if missing:
        what = f"tags of its verdict are missing: {', '.join(missing)}"
        mend = "set them in MLflow as in the run of the decision in the ledger"
        yield Finding(what, where, mend, later(Registry.tag, version.number, missing))
    elif "gate" not in version.tags and CHAMPION not in version.aliases and time.time() - version.created > JUDGED_S:
        promote = f"`plm promote {version.number} --reason ...`"
        mend = f"`plm run` asks the gate if it is one of the current checkpoints; otherwise {promote} does"
        yield Finding("it was never judged", where, mend)


def _runs(root: Path, registry: Registry, later: Later) -> Iterator[Finding]:
    """Runs of stages whose process is dead, and of registrations that were killed."""
    running = list(registry.runs("attributes.status = 'RUNNING'"))
    abandoned = {run.info.run_id for run in registry.abandoned()}
    known = {journal.path.stem: journal for journal in journals(root)}
    for run in running:
        found = _run(root, registry, run, known, run.info.run_id in abandoned, later)
        # The run may have ended, and its journal with it, since the runs were listed.
        if found and _is_running(registry, run.info.run_id):
            yield found


def _run(
    root: Path, registry: Registry, run: "Run", known: Mapping[str, State], abandoned: bool, later: Later
) -> Finding | None:
    def kill(registry: Registry) -> None:
        if _is_running(registry, run.info.run_id):
            registry.client.set_terminated(run.info.run_id, "KILLED")

    where = f"run {run.info.run_name} ({run.info.run_id})"
    tags = run.data.tags
    if abandoned:
        mend = "end it in MLflow as KILLED; the next `plm run` registers the checkpoint if it is current"
        what = "a registration was killed and left it RUNNING without a version"
        return Finding(what, where, mend, later(kill))
    key = tags.get(JOURNAL_TAG, "")
    if journal := known.get(key):
        if not journal.living and journal.sender != "":
            mend = "the next `plm run` sends the rest of its journal, and ends it"
            safe = None if journal.damaged else partial(send_leftovers, root)
            return Finding("its process is dead, and it is RUNNING in MLflow", where, mend, safe)
    elif key and tags.get("plm.host") == socket.gethostname() and registry.tracking.uri.startswith(SQLITE):
        mend = "end it in MLflow as KILLED: what its process did not send is lost"
        return Finding("its process and its journal are gone, and it is RUNNING in MLflow", where, mend, later(kill))
    return None


def _is_running(registry: Registry, run: str) -> bool:
    return registry.client.get_run(run).info.status == "RUNNING"
