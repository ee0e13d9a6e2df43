"""The registry in MLflow: versions, decisions, aliases, runs that will never end; and what the rules do not keep."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows import flow_configs
from flows.flow_configs import DAY_S, Retention
from flows.maintenance.findings import Finding, Found, unneeded
from flows.registry.mlflow_client import RegistryError, pages, skip_if_deleted
from flows.registry.model_registry import CHALLENGER, CHAMPION, DIGEST_TAG, SETS_IT, Registry, Version, open_registry
from flows.run.parent_run import journals, send_leftovers
from plm_core.shared import paths
from plm_core.shared.files import CHECKSUMS, sha256
from tasks.tracking.mlflow_stores import SQLITE, store_exists
from tasks.tracking.run_journal import JOURNAL_TAG

if TYPE_CHECKING:
    from mlflow.entities import Run

DELETED, ALL = 2, 3
"""MLflow's ``ViewType`` of deleted runs, and of all."""
REGISTERING_S = 3600.0
"""How long a registration may take: an older version without a verdict, or run without a version, was left by one that
died."""
VERDICT = ("gate", "gate.reasons")
KEEP_TAG = "keep"
"""A version or run with this tag is kept, unless its value is ``false``."""


def registry(root: Path, everything: bool) -> Found:
    """All problems of the registry. The bytes of champion and challenger are read, those of the others only if
    ``everything`` is set."""
    if not store_exists(flow_configs.read_tracking(root)[0].uri):
        yield "MLflow: nothing is registered yet"
        return
    with open_registry(root) as models:
        runs = {run.info.run_id: run for run in models.runs(f"tags.`{DIGEST_TAG}` != ''", ALL)}
        for version in models.versions():
            yield from _version(models, version, runs.get(version.run_id), everything)
        yield from _decisions(models)
        yield from _running(root, models)


def _version(registry: Registry, version: Version, run: "Run | None", everything: bool) -> Iterator[Finding]:
    """A version without a run, without files, with damaged ones, or without a verdict."""
    where = f"{registry.name} version {version.number}"
    # Only a person can say what to do without a version: the champion is served, others may be somebody's baseline.
    instead = f"delete version {version.number} in MLflow, if nobody needs it"
    if CHAMPION in version.aliases:
        instead = "make another version the champion with `plm rollback --reason ...` or `plm promote`"
    again = f"restore the registry from a backup with `plm restore`, or {instead}"
    if run is None:
        mend = f"{instead}; until then the gate re-evaluates it whenever it has to"
        yield Finding("its run is gone from MLflow, and its evidence with it", where, mend)
    elif run.info.lifecycle_stage != "active":
        safe = partial(registry.client.restore_run, version.run_id)
        yield Finding("its run was deleted", where, f"`mlflow runs restore --run-id {version.run_id}`", safe)

    # Its files: the list of checksums is always read, the files that it lists only for versions in use.
    with tempfile.TemporaryDirectory() as folder:
        whole = everything or bool({CHAMPION, CHALLENGER} & set(version.aliases))
        problem = "its files are gone"
        try:
            (target := Path(folder) / "checkpoint").mkdir()
            with skip_if_deleted():
                bad = []
                checkpoint = registry.checkpoint(version, target, "" if whole else CHECKSUMS)
                for line in (checkpoint / CHECKSUMS).read_text(encoding="utf-8").splitlines() if whole else []:
                    expected, _, name = line.partition("  ")
                    if not (checkpoint / name).is_file():
                        bad.append(f"{name} is missing")
                    elif sha256(checkpoint / name) != expected:
                        bad.append(f"{name} is damaged")
                problem = f"its checkpoint is damaged: {', '.join(bad)}" if bad else ""
        except RegistryError as error:
            problem = str(error).partition(": ")[2].partition(";")[0]
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            problem = f"its file MLmodel is damaged ({type(error).__name__})"
        if problem:
            yield Finding(problem, where, again)
        if run:
            _, wrong = registry.stored_evidence(version, Path(folder) / "evidence")
            if wrong:
                yield Finding(f"its evidence {wrong}", where, f"{again}; a champion is re-evaluated automatically")


def _decisions(registry: Registry) -> Iterator[Finding]:
    """Decisions that were interrupted, aliases that are not as decided, verdicts that are missing."""

    def complete() -> None:
        with registry.alone():
            registry.recover()

    with registry.alone():  # wait for a decision that is being made
        unfinished = registry.ledger.unfinished()
    for run, decision in unfinished:
        what = str(decision) if decision else "not recorded completely"
        mend = "the next `plm run` completes or discards it"
        yield Finding(f"a decision was interrupted: {what}", f"run {run} of the ledger", mend, complete)
    # Aliases: people move them too, so the champion's is never changed here.
    where = f"the model {registry.name}"
    versions, aliases = registry.versions(), registry.aliases()
    numbers = {version.number for version in versions}
    for alias, number in aliases.items():
        if number not in numbers:
            what = f"the alias {alias} names version {number}, which does not exist"
            if alias == CHAMPION:
                yield Finding(what, where, SETS_IT)
            else:
                yield Finding(what, where, "delete the alias in MLflow", partial(registry.delete_alias, alias))
    named = aliases.get(CHAMPION)
    if not unfinished and (named is None or named in numbers) and (odd := registry.disagreement()):
        yield Finding(odd[0], where, odd[1])

    # Verdicts: the ledger holds what was decided, the tags are what people see of it.
    for version in versions:
        if all(name in version.tags for name in VERDICT):
            continue
        where = f"{registry.name} version {version.number}"
        decided = registry.ledger.tags_of(version.number)
        if missing := {name: decided[name] for name in decided if name not in version.tags}:
            what = f"tags of its verdict are missing: {', '.join(missing)}"
            mend = "set them in MLflow as in the run of the decision in the ledger"
            yield Finding(what, where, mend, partial(registry.tag, version.number, missing))
        elif not version.settled and time.time() - version.created > REGISTERING_S:
            promote = f"`plm promote {version.number} --reason ...`"
            mend = f"`plm run` asks the gate if it is one of the current checkpoints; otherwise {promote} does"
            yield Finding("it was never judged", where, mend)


def _running(root: Path, registry: Registry) -> Iterator[Finding]:
    """Runs of stages whose process is dead, and of registrations that were killed."""
    client = registry.client

    def kill(run: str) -> None:
        if client.get_run(run).info.status == "RUNNING":
            client.set_terminated(run, "KILLED")

    # It depends on the run's journal, which is the only copy of what its process has not sent yet.
    running = list(registry.runs("attributes.status = 'RUNNING'"))
    abandoned = {run.info.run_id for run in registry.abandoned()}
    journal_of = {journal.path.stem: journal for journal in journals(root)}
    local = registry.tracking.uri.startswith(SQLITE)
    for run in running:
        number, tags = run.info.run_id, run.data.tags
        key = tags.get(JOURNAL_TAG, "")
        safe: Callable[[], object] | None = partial(kill, number)
        journal = journal_of.get(key)
        if number in abandoned:
            what = "a registration was killed and left it RUNNING without a version"
            mend = "end it in MLflow as KILLED; the next `plm run` registers the checkpoint if it is current"
        elif journal and not journal.living and journal.sender != "":
            what = "its process is dead, and it is RUNNING in MLflow"
            mend = "the next `plm run` sends the rest of its journal, and ends it"
            safe = None if journal.damaged else partial(send_leftovers, root)
        elif key and not journal and tags.get("plm.host") == socket.gethostname() and local:
            what = "its process and its journal are gone, and it is RUNNING in MLflow"
            mend = "end it in MLflow as KILLED: what its process did not send is lost"
        else:
            continue
        # The run may have ended, and its journal with it, since the runs were listed.
        if client.get_run(number).info.status == "RUNNING":
            yield Finding(what, f"run {run.info.run_name} ({number})", mend, safe)


def old_versions(root: Path, rules: Retention) -> Found:
    """Versions that the rules do not keep; ended registrations without a version; runs deleted ``days`` ago.

    A version goes first, in one transaction, and then its run, which no version needs any more. A process that dies in
    between leaves a finished registration without a version, or a deleted run: both are found the next time.
    """
    if not store_exists(flow_configs.read_tracking(root)[0].uri):
        return
    with open_registry(root) as registry:
        kept = _kept(root, registry, rules)
        for version in registry.versions():
            if version.number not in kept:
                why = f"older than the newest {rules.versions}, and not among the last {rules.champions} champions"
                delete = partial(_delete_version, root, registry, rules, version)
                what = f"{registry.name} version {version.number}"
                yield unneeded(what, why, _bytes(registry, version.run_id), delete)

        # On a server, only `mlflow gc`, run there, removes deleted runs.
        needed, now = registry.version_runs(), time.time()
        needless = list(registry.runs(f"attributes.status != 'RUNNING' and tags.`{DIGEST_TAG}` != ''"))
        if hasattr(_store(registry), "_hard_delete_run"):
            needless += registry.runs("attributes.status != 'RUNNING'", DELETED)
        for run in needless:
            ended = (run.info.end_time or run.info.start_time) / 1000
            young = ended >= now - (REGISTERING_S if DIGEST_TAG in run.data.tags else rules.days * DAY_S)
            if run.info.run_id in needed or run.data.tags.get(KEEP_TAG, "false") != "false" or young:
                continue
            why = "made no version" if run.info.lifecycle_stage == "active" else "deleted"
            what = f"run {run.info.run_name} ({run.info.run_id})"
            yield unneeded(
                what, why, _bytes(registry, run.info.run_id), partial(_delete_run, registry, run.info.run_id)
            )


def _kept(root: Path, registry: Registry, rules: Retention) -> set[str]:
    """The numbers of the versions that an alias, the ledger, a rule, a person or the checkout needs."""
    present = {sha256(path) for path in (root / paths.MODELS).glob(f"*/{CHECKSUMS}")}
    begun = {decision.version for _, decision in registry.ledger.unfinished() if decision}
    versions = registry.versions()
    kept = {version.number for version in versions[: rules.versions]}
    kept |= {*registry.ledger.champions()[-rules.champions :], *begun, *registry.aliases().values()}
    return kept | {
        version.number
        for version in versions
        if version.tags.get(DIGEST_TAG) in present or version.tags.get(KEEP_TAG, "false") != "false"
    }


def _delete_version(root: Path, registry: Registry, rules: Retention, version: Version) -> None:
    with registry.alone():  # so that nobody makes it the champion in the meantime
        if version.number in _kept(root, registry, rules):
            return
        registry.client.delete_model_version(registry.name, version.number)
    if version.run_id not in registry.version_runs():  # of another registered model, into which it was copied
        _delete_run(registry, version.run_id)


def _delete_run(registry: Registry, run: str) -> None:
    """Delete a run, the models that it logged and their files; on a server, their rows stay, marked as deleted."""
    client = registry.client
    store = _store(registry)
    info = None
    with skip_if_deleted():
        info = client.get_run(run).info
    if info is None:
        return
    for model in _models(registry, run):
        _files(model.artifact_location).delete_artifacts()
        client.delete_logged_model(model.model_id)
        if hasattr(store, "_hard_delete_logged_model"):  # as `mlflow gc` does it
            store._hard_delete_logged_model(model.model_id)
    if info.artifact_uri:
        _files(info.artifact_uri).delete_artifacts()
    if info.lifecycle_stage == "active":
        client.delete_run(run)
    if hasattr(store, "_hard_delete_run"):
        store._hard_delete_run(run)


def _store(registry: Registry) -> Any:
    """MLflow's own store. That of a database deletes rows, that of a server only marks them."""
    return registry.client._tracking_client.store


def _models(registry: Registry, run: str) -> list[Any]:
    about = f"source_run_id = '{run}'"
    search = partial(registry.client.search_logged_models, [registry.experiment()], filter_string=about)
    return list(pages(lambda page: search(page_token=page)))


def _files(uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri)


def _bytes(registry: Registry, run: str) -> int:
    """The size of a run's files and of those of the models that it logged."""

    def size(files: Any, folder: str | None) -> int:
        listed = files.list_artifacts(folder)
        return sum(size(files, file.path) if file.is_dir else file.file_size or 0 for file in listed)

    places = [model.artifact_location for model in _models(registry, run)]
    with skip_if_deleted():
        places.append(registry.client.get_run(run).info.artifact_uri)
    return sum(size(_files(uri), None) for uri in places if uri)
