"""The model registry in MLflow: versions, their tags and files, aliases. Used to register and to show models."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flows import settings
from flows.ledger import Ledger
from flows.store import (
    RegistrationFailed,
    RegistryError,
    environment,
    evidence_digest,
    pages,
    sha256,
    unless_gone,
    warn,
)
from plm_core.shared.stores import BY_JOURNAL, LEDGER, alone, artifacts_of, experiment_tags, require_active

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CHAMPION = "champion"
CHALLENGER = "challenger"
CHECKSUMS = "SHA256SUMS"
DIGEST_TAG = "checkpoint.sha256"
EVIDENCE_TAG = "evidence.sha256"
AGAIN_TAG = "evidence.again.sha256"
"""The digest of the evidence that the gate made last, if it is not what the version was registered with."""
ABANDONED_S = 2 * 3600.0
"""A registration that has taken this long is dead: logging may take half of it."""
NO_RUN = "none"
"""The run id of a version that was created without a run: MLflow knows no such run, as if it had been deleted."""


@dataclass(frozen=True)
class Version:
    """A version of the registered model."""

    number: str
    run_id: str
    tags: Mapping[str, str]
    """Among them ``checkpoint.sha256``, ``plm.model``, ``dvc.stage``, ``gate`` and ``gate.reasons``."""
    aliases: list[str] = field(default_factory=list)
    created: float = 0.0
    """Seconds since 1970."""


@contextlib.contextmanager
def opened(root: Path) -> Iterator["Registry"]:
    """The registry of the pipeline in ``root``; failures of MLflow inside the block become ``RegistrationFailed``.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    tracking, promotion = settings.read(root)
    with environment():
        import mlflow
        import mlflow.store.db.utils
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from sqlalchemy.exc import SQLAlchemyError

        # Otherwise a database that does not answer would be retried for 100 s.
        mlflow.store.db.utils.MAX_RETRY_COUNT = 2
        mlflow.set_tracking_uri(tracking.uri)
        mlflow.set_registry_uri(tracking.uri)
        try:
            with alone(tracking.uri, SqlAlchemyStore):
                registry = Registry(tracking, promotion.registered_model, mlflow.MlflowClient())
                registry.experiment()
            yield registry
        except (mlflow.MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
            reason = " ".join(str(error).split())[:400]
            # Without the error itself, whose text may contain a password.
            raise RegistrationFailed(f"MLflow at {tracking.uri}: {reason}") from None


class Registry:
    """Versions and aliases of one registered model, and its ledger."""

    def __init__(self, tracking: settings.Tracking, name: str, client: "MlflowClient") -> None:
        self.tracking = tracking
        self.name = name
        self.client = client
        self.ledger = Ledger(client, self.experiment("-decisions"), name)

    def versions(self) -> list[Version]:
        """All versions, the newest first."""
        aliases = self.aliases()
        found = [
            Version(
                number=str(version.version),
                run_id=version.run_id or NO_RUN,
                tags=version.tags,
                aliases=sorted(alias for alias, number in aliases.items() if number == str(version.version)),
                created=version.creation_timestamp / 1000,
            )
            for version in pages(
                lambda page: self.client.search_model_versions(f"name = '{self.name}'", 1000, None, page)
            )
        ]
        return sorted(found, key=lambda version: -int(version.number))

    def metrics(self) -> dict[str, Mapping[str, float]]:
        """The metrics of all versions by their runs' ids; deleted runs are left out."""
        return {run.info.run_id: run.data.metrics for run in self.runs(f"tags.`{DIGEST_TAG}` != ''")}

    def runs(self, which: str, view: int = 1) -> "Iterator[Run]":
        """The runs of the experiment for which ``which``, MLflow's filter, holds; ``view``: its ``ViewType``."""
        experiment = self.experiment()
        return pages(lambda page: self.client.search_runs([experiment], which, view, page_token=page))

    def version_runs(self) -> set[str]:
        """The runs of all versions, including those of other models, which may share the experiment."""
        found = pages(lambda page: self.client.search_model_versions(None, 1000, None, page))
        return {version.run_id for version in found}

    def abandoned(self) -> "list[Run]":
        """The runs of registrations that were killed before they had made a version: nobody continues them."""
        known = self.version_runs()
        latest = (time.time() - ABANDONED_S) * 1000
        running = self.runs(f"tags.`{DIGEST_TAG}` != '' and attributes.status = 'RUNNING'")
        return [run for run in running if run.info.run_id not in known and run.info.start_time < latest]

    def run_of(self, parent: str | None) -> str:
        """The id of the run that ``journal:<key>`` names; empty if MLflow does not have it."""
        if not parent or not parent.startswith(BY_JOURNAL):
            return ""
        key = parent.removeprefix(BY_JOURNAL)
        found = self.client.search_runs([self.experiment()], f"tags.`plm.journal` = '{key}'", max_results=1)
        return found[0].info.run_id if found else ""

    def get(self, name: str) -> Version:
        """The version with this number or alias.

        Raises:
            RegistryError: there is none.
        """
        versions = self.versions()
        for version in versions:
            if name == version.number or name in version.aliases:
                return version
        known = ", ".join(version.number for version in reversed(versions)) or "none yet"
        raise RegistryError(f"{self.name}: no version or alias {name!r}; versions are: {known}")

    def exists(self, number: str) -> bool:
        """Whether there is a version with this number."""
        return any(version.number == number for version in self.versions())

    def champion(self) -> Version | None:
        """The version that the alias ``champion`` names; also None if there is no version of that number."""
        return next((version for version in self.versions() if CHAMPION in version.aliases), None)

    def former(self, but: str | None = None) -> Version | None:
        """The latest champion in the ledger that still exists, except the version ``but``."""
        known = {version.number: version for version in self.versions() if version.number != but}
        return next((known[number] for number in reversed(self.ledger.champions()) if number in known), None)

    def tag(self, number: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version, in the given order."""
        for key, value in tags.items():
            self.client.set_model_version_tag(self.name, number, key, value)

    def alias(self, alias: str) -> str | None:
        """The number of the version that the alias names."""
        return self.aliases().get(alias)

    def set_alias(self, alias: str, number: str) -> None:
        """Point the alias to this version."""
        self.client.set_registered_model_alias(self.name, alias, number)

    def delete_alias(self, alias: str) -> None:
        """Delete the alias."""
        self.client.delete_registered_model_alias(self.name, alias)

    def evidence(self, version: Version, target: Path) -> Path:
        """Download the latest evidence of a version into ``target``, a new folder.

        If it is deleted or damaged, a warning says so, and the folder is empty: the gate re-evaluates a champion.
        """
        found, wrong = self.stored_evidence(version, target)
        if not wrong:
            return found
        warn(f"{self.name} version {version.number}: its stored evidence {wrong}")
        (empty := target / "none").mkdir()
        return empty

    def stored_evidence(self, version: Version, target: Path) -> tuple[Path, str]:
        """Download the evidence like ``evidence``; returns its folder and what is wrong with it, empty for nothing."""
        again = version.tags.get(AGAIN_TAG)
        expected = again or version.tags.get(EVIDENCE_TAG)
        target.mkdir()
        with unless_gone():
            found = Path(self.client.download_artifacts(version.run_id, _evidence_path(again), str(target)))
            whole = expected in (None, evidence_digest(sorted(found.iterdir())))
            return found, "" if whole else "is damaged"
        return target, "has been deleted"

    def keep_evidence(self, version: Version, folder: Path) -> None:
        """Make the files in ``folder`` the evidence of a version from now on."""
        digest = evidence_digest(sorted(folder.iterdir()))
        with unless_gone():  # if its run was deleted, it is re-evaluated each time
            self.client.log_artifacts(version.run_id, str(folder), _evidence_path(digest))
            self.tag(version.number, {AGAIN_TAG: digest})

    def checkpoint(self, version: Version, target: Path, only: str = "") -> Path:
        """Download the checkpoint inside a version, or ``only`` this file of it; returns the checkpoint's folder.

        The files are compared with their checksums when the checkpoint is loaded.

        Raises:
            RegistryError: its checksums are not those that were registered.
        """
        import mlflow
        import yaml

        uri = f"models:/{self.name}/{version.number}"
        model = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/MLmodel", dst_path=str(target)))
        flavors = yaml.safe_load(model.read_text(encoding="utf-8"))["flavors"]
        inside = flavors["python_function"]["artifacts"]["checkpoint"]["path"]
        wanted = f"{uri}/{inside}/{only}".rstrip("/")
        found = Path(mlflow.artifacts.download_artifacts(artifact_uri=wanted, dst_path=str(target)))
        found = found.parent if only else found
        if (digest := sha256(found / CHECKSUMS)) != version.tags.get(DIGEST_TAG, digest):
            raise RegistryError(
                f"{self.name}: the checkpoint of version {version.number} is damaged: {CHECKSUMS} has the sha256 "
                f"{digest[:12]}, registered was {version.tags[DIGEST_TAG][:12]}; "
                "`plm restore` restores the registry from a backup"
            )
        return found

    def experiment(self, suffix: str = "") -> str:
        """The id of the pipeline's experiment, or of the one with this suffix; created if it is missing."""
        name = self.tracking.experiment + suffix
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            require_active(found, self.tracking.uri)
            return found.experiment_id
        uri = self.tracking.uri
        tags = experiment_tags(uri) | (LEDGER if suffix else {})
        return self.client.create_experiment(name, artifacts_of(uri), tags)

    def aliases(self) -> dict[str, str]:
        """The version numbers by alias; a version with such a number need not exist."""
        from mlflow.exceptions import MlflowException

        try:
            aliases = self.client.get_registered_model(self.name).aliases
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}
        return {alias: str(number) for alias, number in aliases.items()}


def _evidence_path(digest: str | None) -> str:
    return f"evidence-{digest[:12]}" if digest else "evidence"
