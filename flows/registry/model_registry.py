"""The model registry in MLflow: versions with their tags and files, aliases, and decisions, made one at a time.

The alias ``champion`` says who is champion, because people promote in MLflow's UI too; the ledger is the history.

MLflow's API has neither locks nor compare-and-set. Processes on one machine exclude each other with a lock. If two
machines decide on one server within the same second, the later alias wins: both decisions are in the ledger, and the
next command finds that the ledger and the alias disagree, and says so.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows import flow_configs
from flows.registry.ledger import Decision, Ledger
from flows.registry.mlflow_client import (
    RegistrationFailed,
    RegistryError,
    environment,
    evidence_digest,
    pages,
    skip_if_deleted,
    warn,
)
from plm_core.shared.files import CHECKSUMS, locked, sha256
from tasks.tracking import mlflow_stores
from tasks.tracking.mlflow_stores import SQLITE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CHAMPION = "champion"
CHALLENGER = "challenger"
DIGEST_TAG = "checkpoint.sha256"
EVIDENCE_TAG = "evidence.sha256"
AGAIN_TAG = "evidence.again.sha256"
"""The digest of the evidence that the gate made last, if it is not what the version was registered with."""
ABANDONED_S = 2 * 3600.0
"""A registration that has taken this long is dead: logging may take half of it."""
NO_RUN = "none"
"""The run id of a version that was created without a run: MLflow knows no such run, as if it had been deleted."""
SERVERS = Path("/dev/shm")
"""Locked while deciding on a server's models: every user can lock this folder, unlike a file made by the first."""
PAGE = "decision.html"
"""The artifact of a version's run that holds the full record, because the length of a description is limited."""
LIMIT = 5_000
"""Characters of a description that every database of MLflow keeps."""
SETS_IT = "`plm promote VERSION --reason ...` or `plm rollback --reason ...` sets it"
"""What to do if the alias ``champion`` names nothing."""


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

    @property
    def settled(self) -> bool:
        """Whether it has a verdict or needs none."""
        return "gate" in self.tags or CHAMPION in self.aliases


@contextlib.contextmanager
def open_registry(root: Path, uri: str | None = None, name: str | None = None) -> Iterator["Registry"]:
    """The registry of the pipeline in ``root``, or one at another address or with another name; failures of MLflow
    inside the block become ``RegistrationFailed``.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    tracking, promotion = flow_configs.read_tracking(root)
    tracking = replace(tracking, uri=uri or tracking.uri)
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
            with mlflow_stores.exclusive(tracking.uri, SqlAlchemyStore):
                registry = Registry(tracking, name or promotion.registered_model, mlflow.MlflowClient())
                registry.experiment()
            yield registry
        except (mlflow.MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
            reason = " ".join(str(error).split())[:400]
            # Without the error itself, whose text may contain a password.
            raise RegistrationFailed(f"MLflow at {tracking.uri}: {reason}") from None


class Registry:
    """Versions and aliases of one registered model, and its ledger."""

    def __init__(self, tracking: flow_configs.Tracking, name: str, client: "MlflowClient") -> None:
        self.tracking = tracking
        self.name = name
        self.client = client
        self.ledger = Ledger(client, self.experiment("-decisions"), name)

    def experiment(self, suffix: str = "") -> str:
        """The id of the pipeline's experiment, or of the one with this suffix; created if it is missing."""
        name = self.tracking.experiment + suffix
        return mlflow_stores.experiment(self.client, self.tracking.uri, name, mlflow_stores.LEDGER if suffix else "")[0]

    # Runs: each version has one, with its evidence. A registration that was killed leaves a run without a version.

    def runs(self, which: str, view: int = 1) -> "Iterator[Run]":
        """The runs of the experiment for which ``which``, MLflow's filter, holds; ``view``: its ``ViewType``."""
        experiment = self.experiment()
        return pages(lambda page: self.client.search_runs([experiment], which, view, page_token=page))

    def version_runs(self) -> set[str]:
        """The runs of all versions, including those of other models, which may share the experiment."""
        versions = pages(lambda page: self.client.search_model_versions(None, 1000, None, page))
        return {version.run_id for version in versions}

    def abandoned(self) -> "list[Run]":
        """The runs of registrations that were killed before they had made a version: nobody continues them."""
        registered = self.version_runs()
        latest = (time.time() - ABANDONED_S) * 1000
        running = self.runs(f"tags.`{DIGEST_TAG}` != '' and attributes.status = 'RUNNING'")
        return [run for run in running if run.info.run_id not in registered and run.info.start_time < latest]

    # Versions and aliases.

    def versions(self) -> list[Version]:
        """All versions, the newest first."""
        aliases = self.aliases()
        versions = [
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
        return sorted(versions, key=lambda version: -int(version.number))

    def get(self, name: str) -> Version:
        """The version with this number or alias. Raises RegistryError: there is none."""
        versions = self.versions()
        for version in versions:
            if name == version.number or name in version.aliases:
                return version
        numbers = ", ".join(version.number for version in reversed(versions)) or "none yet"
        raise RegistryError(f"{self.name}: no version or alias {name!r}; versions are: {numbers}")

    def champions(self, *but: str) -> list[Version]:
        """The champions in the ledger that still exist, the latest first, except the versions ``but``."""
        by_number = {version.number: version for version in self.versions() if version.number not in but}
        return [by_number[number] for number in reversed(self.ledger.champions()) if number in by_number]

    def champion(self, *but: str) -> Version | None:
        """The latest of the ``champions``; the alias names it, too, unless a person has moved or deleted the alias.
        ``commit`` looks at the alias itself."""
        return next(iter(self.champions(*but)), None)

    def tag(self, number: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for key, value in tags.items():
            self.client.set_model_version_tag(self.name, number, key, value)

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

    def alias(self, alias: str) -> str | None:
        """The number of the version that the alias names."""
        return self.aliases().get(alias)

    def set_alias(self, alias: str, number: str) -> None:
        """Point the alias to this version."""
        self.client.set_registered_model_alias(self.name, alias, number)

    def delete_alias(self, alias: str) -> None:
        """Delete the alias."""
        self.client.delete_registered_model_alias(self.name, alias)

    # What a version holds: the evidence in its run, its checkpoint in a model that the run has logged.

    def stored_evidence(self, version: Version, target: Path, again: bool = True) -> tuple[Path, str]:
        """Download the latest evidence of a version, or without ``again`` that which it was registered with, into
        ``target``, a new folder.

        Returns:
            The folder with it, and what is wrong with it, empty for nothing.
        """
        digest = version.tags.get(AGAIN_TAG) if again else None
        expected = digest or version.tags.get(EVIDENCE_TAG)
        target.mkdir()
        with skip_if_deleted():
            folder = Path(self.client.download_artifacts(version.run_id, _evidence_path(digest), str(target)))
            whole = expected in (None, evidence_digest(sorted(folder.iterdir())))
            return folder, "" if whole else "is damaged"
        return target, "has been deleted"

    def evidence(self, version: Version, target: Path) -> Path:
        """The folder with a version's latest evidence. If it is deleted or damaged, a warning says so, and the folder
        is empty; the gate then re-evaluates a champion."""
        folder, wrong = self.stored_evidence(version, target)
        if wrong:
            warn(f"{self.name} version {version.number}: its stored evidence {wrong}")
            (folder := target / "none").mkdir()
        return folder

    def keep_evidence(self, version: Version, folder: Path) -> None:
        """Make the files in ``folder`` the evidence of a version from now on."""
        digest = evidence_digest(sorted(folder.iterdir()))
        with skip_if_deleted():  # if its run was deleted, it is re-evaluated each time
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
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=wanted, dst_path=str(target)))
        folder = folder.parent if only else folder
        if (digest := sha256(folder / CHECKSUMS)) != version.tags.get(DIGEST_TAG, digest):
            raise RegistryError(
                f"{self.name}: the checkpoint of version {version.number} is damaged: {CHECKSUMS} has the sha256 "
                f"{digest[:12]}, but {version.tags[DIGEST_TAG][:12]} was registered; "
                "`plm restore` restores the registry from a backup"
            )
        return folder

    # Decisions: recorded in the ledger, then carried out, then closed. Whoever finds one open completes it.

    def commit(self, decision: Decision) -> None:
        """Record a decision and carry it out, if the champion is still the one that it was made against.

        Raises:
            RegistrationFailed: the champion is another one now; nothing was done.
        """
        with self.alone():
            self.recover()
            if not self._holds(decision):
                now = f"version {self.alias(CHAMPION)} became the champion in the meantime"
                raise RegistrationFailed(f"{self.name}: {now}; check `plm status`, then run again")
            run = self.ledger.begin(decision)
            self._carry_out(decision)
            self.ledger.end(run, carried_out=True)

    def recover(self) -> list[Decision]:
        """Complete the decisions that a dead process had begun, or discard them; the caller holds the lock.

        A decision is discarded if it was not recorded completely, its version is gone, or a person has moved the alias.

        Returns:
            What was completed.
        """
        done: list[Decision] = []
        for run, decision in self.ledger.unfinished():
            what = f"{self.name}: a decision that was interrupted"
            exists = decision and any(version.number == decision.version for version in self.versions())
            if decision and exists and self._holds(decision):
                self._carry_out(decision)
                self.ledger.end(run, carried_out=True)
                warn(f"{what} has been completed: {decision}")
                done.append(decision)
            else:
                self.ledger.end(run, carried_out=False)
                warn(f"{what} has been discarded" + (f": {decision}" if decision else ""))
        return done

    def _holds(self, decision: Decision) -> bool:
        """Whether nobody has made a third version the champion since the decision was made, or carried out in part."""
        return self.alias(CHAMPION) in (None, decision.previous, decision.version)

    def disagreement(self) -> tuple[str, str] | None:
        """How the alias ``champion`` and the ledger disagree, and what fixes that; None if they agree."""
        alias = self.alias(CHAMPION)
        recorded = next(reversed(self.ledger.champions()), None)
        if alias == recorded:
            return None
        if alias is None:
            return f"no version is the champion, although version {recorded} was", SETS_IT
        what = f"somebody has made version {alias} the champion, but the ledger has {recorded or 'none'}"
        return what, "the next `plm run` asks the gate about it, and records it"

    def _carry_out(self, decision: Decision) -> None:
        """Move the alias, then describe and tag the version; idempotent."""
        if decision.moves:
            self.set_alias(CHAMPION, decision.version)
            if self.alias(CHALLENGER) == decision.version:
                self.delete_alias(CHALLENGER)
        if not decision.gate:
            return
        # Show the decision on the pages of the version and of its run; without details, the gate was not asked.
        version = self.get(decision.version)
        details = decision.details or {}
        old = self.client.get_model_version(self.name, version.number).description or ""
        text = details.get("description") or (old.partition("\n\n")[2] if old.startswith("Overruled") else old)
        if decision.gate == "overruled":
            text = f"Overruled, {decision.action}: {' '.join(decision.reasons[0].split())}\n\n{text}"[:LIMIT]
        if text != old:
            self.client.update_model_version(self.name, version.number, text)
        with skip_if_deleted():
            self.client.set_tag(version.run_id, "gate", decision.gate)
            if "page" in details:
                self.client.log_text(version.run_id, details["page"], PAGE)
        self.tag(version.number, decision.tags)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the registry's lock on this machine; if another process is deciding, say so and wait."""
        uri = self.tracking.uri
        place = Path(f"{uri.removeprefix(SQLITE)}.decisions.lock") if uri.startswith(SQLITE) else SERVERS
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(place, wait=False))
            except BlockingIOError:
                warn(f"{self.name}: another process on this machine is deciding; waiting for it ({place} is locked)")
                stack.enter_context(locked(place))
            yield


def _evidence_path(digest: str | None) -> str:
    return f"evidence-{digest[:12]}" if digest else "evidence"
