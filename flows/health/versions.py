"""Versions: their runs, files and evidence. Used by ``flows/health/registry.py``."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from flows.health.finding import Finding
from flows.registry import CHALLENGER, CHAMPION, CHECKSUMS, DIGEST_TAG, Registry, Version
from flows.store import RegistryError, sha256, unless_gone

Later = Callable[[Callable[[Registry], object]], Callable[[], None]]
"""Turns a change of a registry into a call that makes it later."""


def check(registry: Registry, everything: bool, later: Later) -> Iterator[Finding]:
    """Versions without a run, without files, or with damaged ones."""
    living = _runs(registry)
    for version in registry.versions():
        where = f"{registry.name} version {version.number}"
        again = "restore the registry from a backup with `plm restore`, or " + _instead(version)
        if version.run_id not in living:
            mend = f"{_instead(version)}; until then the gate re-evaluates it whenever it has to"
            yield Finding("its run is gone from MLflow, and its evidence with it", where, mend)
        elif not living[version.run_id]:
            mend = f"`mlflow runs restore --run-id {version.run_id}`"
            yield Finding("its run was deleted", where, mend, later(_restore(version.run_id)))
        with tempfile.TemporaryDirectory() as folder:
            whole = everything or bool({CHAMPION, CHALLENGER} & set(version.aliases))
            if problem := _checkpoint(registry, version, Path(folder) / "checkpoint", whole):
                yield Finding(problem, where, again)
            if version.run_id in living:
                _, wrong = registry.stored_evidence(version, Path(folder) / "evidence")
                if wrong:
                    yield Finding(f"its evidence {wrong}", where, f"{again}; a champion is re-evaluated automatically")


def _runs(registry: Registry) -> dict[str, bool]:
    """The ids of the runs of all registrations, and whether each is active, not deleted."""
    from mlflow.entities import ViewType

    found = registry.runs(f"tags.`{DIGEST_TAG}` != ''", ViewType.ALL)
    return {run.info.run_id: run.info.lifecycle_stage == "active" for run in found}


def _restore(run: str) -> Callable[[Registry], object]:
    return lambda registry: registry.client.restore_run(run)


def _instead(version: Version) -> str:
    if CHAMPION in version.aliases:
        return "make another version the champion with `plm rollback --reason ...` or `plm promote`"
    return f"delete version {version.number} in MLflow, if nobody needs it"


def _checkpoint(registry: Registry, version: Version, target: Path, whole: bool) -> str:
    """What is wrong with the checkpoint of a version, empty for nothing; reads all its bytes if ``whole``."""
    target.mkdir()
    try:
        with unless_gone():
            found = registry.checkpoint(version, target, "" if whole else CHECKSUMS)
            return _damage(found) if whole else ""
        return "its files are gone"
    except RegistryError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        return f"its file MLmodel is damaged ({type(error).__name__})"


def _damage(checkpoint: Path) -> str:
    """Which files do not match the list of checksums."""
    bad = []
    for line in (checkpoint / CHECKSUMS).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        path = checkpoint / name
        if not path.is_file():
            bad.append(f"{name} is missing")
        elif sha256(path) != expected:
            bad.append(f"{name} is damaged")
    return f"its checkpoint is damaged: {', '.join(bad)}" if bad else ""
