"""MLflow: old versions, registrations that made no version, deleted runs.

A version is deleted first, in one MLflow transaction, and then its run, which no version needs any more: its models,
its files, the run itself. A process that dies in between leaves a finished registration without a version, or a deleted
run: both are harmless, and found the next time.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import settings
from flows.cache import DAY_S
from flows.registry import CHECKSUMS, DIGEST_TAG, Registry, opened
from flows.settings import Retention
from flows.store import pages, sha256, unless_gone
from flows.transaction import alone
from flows.waste.waste import Waste
from plm_core.shared import paths
from plm_core.shared.stores import made

if TYPE_CHECKING:
    from mlflow.entities import Run

KEEP_TAG = "keep"
"""A version or run with this tag is kept, unless its value is ``false``."""
ENDED_S = 3600.0
"""A registration whose run ended less than this ago may still be about to make the version."""


def registered(root: Path, rules: Retention) -> Iterator[Waste]:
    """Versions and runs that are not kept."""
    if not made(settings.read(root)[0].uri):
        return
    with opened(root) as registry:
        kept = _kept(root, registry, rules)
        for version in registry.versions():
            if version.number not in kept:
                why = f"older than the newest {rules.versions}, and not among the last {rules.champions} champions"
                delete = partial(_delete_version, root, rules, version.number)
                what = f"{registry.name} version {version.number}"
                yield Waste(what, why, _bytes(registry, version.run_id), delete)
        for run in _needless(registry, rules):
            why = "made no version" if run.info.lifecycle_stage == "active" else "deleted"
            delete = partial(_delete_needless, root, rules, run.info.run_id)
            what = f"run {run.info.run_name} ({run.info.run_id})"
            yield Waste(what, why, _bytes(registry, run.info.run_id), delete)


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


def _needless(registry: Registry, rules: Retention) -> "list[Run]":
    """Ended registrations without a version, and runs that were deleted longer ago than the rules' ``days``.

    On a server, only `mlflow gc`, run there, removes deleted runs.
    """
    from mlflow.entities import ViewType

    needed = registry.version_runs()
    ended = "attributes.status != 'RUNNING'"
    found = list(registry.runs(f"{ended} and tags.`{DIGEST_TAG}` != ''"))
    if hasattr(_store(registry), "_hard_delete_run"):
        found += registry.runs(ended, ViewType.DELETED_ONLY)
    return [
        run
        for run in found
        if run.info.run_id not in needed
        and run.data.tags.get(KEEP_TAG, "false") == "false"
        and _ended(run) < time.time() - (ENDED_S if DIGEST_TAG in run.data.tags else rules.days * DAY_S)
    ]


def _ended(run: "Run") -> float:
    return (run.info.end_time or run.info.start_time) / 1000


def _delete_version(root: Path, rules: Retention, number: str) -> None:
    with opened(root) as registry:
        with alone(registry):  # so that nobody makes it the champion in the meantime
            if number in _kept(root, registry, rules) or not registry.exists(number):
                return
            run = registry.get(number).run_id
            registry.client.delete_model_version(registry.name, number)
        _delete_run(registry, run)


def _delete_needless(root: Path, rules: Retention, run: str) -> None:
    with opened(root) as registry:
        if run in {each.info.run_id for each in _needless(registry, rules)}:
            _delete_run(registry, run)


def _delete_run(registry: Registry, run: str) -> None:
    """Delete a run, the models that it logged and their files; on a server, their rows stay, marked as deleted."""
    client = registry.client
    found = None
    with unless_gone():
        found = client.get_run(run)
    if found is None:
        return
    store = _store(registry)
    for model in _models(registry, run):
        _files(model.artifact_location).delete_artifacts()
        client.delete_logged_model(model.model_id)
        if hasattr(store, "_hard_delete_logged_model"):  # as `mlflow gc` does it
            store._hard_delete_logged_model(model.model_id)
    if found.info.artifact_uri:
        _files(found.info.artifact_uri).delete_artifacts()
    if found.info.lifecycle_stage == "active":
        client.delete_run(run)
    if hasattr(store, "_hard_delete_run"):
        store._hard_delete_run(run)


def _store(registry: Registry) -> Any:
    """MLflow's own store. That of a database deletes rows, that of a server only marks them."""
    return registry.client._tracking_client.store


def _models(registry: Registry, run: str) -> list[Any]:
    about = f"source_run_id = '{run}'"
    experiment = registry.experiment()
    return list(
        pages(lambda page: registry.client.search_logged_models([experiment], filter_string=about, page_token=page))
    )


def _files(uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri)


def _bytes(registry: Registry, run: str) -> int:
    """The size of a run's files and of those of the models that it logged."""
    places = []
    with unless_gone():
        places = [registry.client.get_run(run).info.artifact_uri]
    places += [model.artifact_location for model in _models(registry, run)]
    return sum(_size(_files(uri), None) for uri in places if uri)


def _size(files: Any, folder: str | None) -> int:
    return sum(_size(files, each.path) if each.is_dir else each.file_size or 0 for each in files.list_artifacts(folder))
