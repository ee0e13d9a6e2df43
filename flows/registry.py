"""The model registry in MLflow and the ledger of its decisions. Used by what registers, judges and shows models.

MLflow keeps no history of aliases (mlflow#2169), hence the ledger: every decision is a run of the experiment
``<experiment>-decisions``, begun before the alias moves and FINISHED after.
"""

import contextlib
import getpass
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows import settings
from flows.store import GONE, RegistrationFailed, RegistryError, environment, evidence_digest, pages, sha256
from plm_core.shared.stores import BY_JOURNAL, KIND, LEDGER, alone, artifacts_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION = "champion"
CHALLENGER = "challenger"
CHECKSUMS = "SHA256SUMS"
DIGEST_TAG = "checkpoint.sha256"
EVIDENCE_TAG = "evidence.sha256"
AGAIN_TAG = "evidence.again.sha256"
"""The digest of the evidence that the gate made last, where it is not what the version was registered with."""
TABLE_TAG = "gate.table"
"""What the gate compared, as JSON."""

Action = Literal["promoted", "refused", "promoted by hand", "rolled back"]


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
        from sqlalchemy.exc import SQLAlchemyError

        # A database that does not answer would otherwise be tried for 100 s.
        mlflow.store.db.utils.MAX_RETRY_COUNT = 2
        mlflow.set_tracking_uri(tracking.uri)
        mlflow.set_registry_uri(tracking.uri)
        try:
            with alone(tracking.uri):
                registry = Registry(tracking, promotion.registered_model, mlflow.MlflowClient())
                registry.experiment()
            yield registry
        except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
            reason = " ".join(str(error).split())[:400]
            raise RegistrationFailed(f"MLflow at {tracking.uri}: {reason}") from error


class Registry:
    """Versions, aliases and the ledger of one registered model."""

    def __init__(self, tracking: settings.Tracking, name: str, client: "MlflowClient") -> None:
        self.tracking = tracking
        self.name = name
        self.client = client

    def versions(self) -> list[Version]:
        """All versions, the newest first."""
        aliases = self._aliases()
        found = [
            Version(
                number=str(version.version),
                run_id=version.run_id or "",
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
        """The metrics of all versions by their runs' ids; of a run that was deleted there are none."""
        experiment = self.experiment()
        registered = f"tags.`{DIGEST_TAG}` != ''"
        runs = pages(lambda page: self.client.search_runs([experiment], registered, page_token=page))
        return {run.info.run_id: run.data.metrics for run in runs}

    def run_of(self, parent: str | None) -> str:
        """The id of the run that ``journal:<key>`` names; empty when MLflow does not have it."""
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

    def champion(self) -> Version | None:
        """The version that the alias ``champion`` names."""
        return next((version for version in self.versions() if CHAMPION in version.aliases), None)

    def tag(self, version: Version, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for key, value in tags.items():
            self.client.set_model_version_tag(self.name, version.number, key, value)

    def set_alias(self, alias: str, version: Version) -> None:
        """Let the alias name this version."""
        self.client.set_registered_model_alias(self.name, alias, version.number)

    def make_champion(self, version: Version) -> None:
        """Move the alias ``champion``; a version that was the challenger no longer is."""
        self.set_alias(CHAMPION, version)
        if self._aliases().get(CHALLENGER) == version.number:
            self.client.delete_registered_model_alias(self.name, CHALLENGER)

    def evidence(self, version: Version, target: Path) -> Path:
        """Download the evidence that a version was last measured with into ``target``, a new folder.

        Where it is deleted or damaged, a warning says so, and the folder is empty: the gate measures a champion again.
        """
        from mlflow.exceptions import MlflowException

        again = version.tags.get(AGAIN_TAG)
        expected = again or version.tags.get(EVIDENCE_TAG)
        target.mkdir()
        try:
            found = Path(self.client.download_artifacts(version.run_id, _evidence_path(again), str(target)))
            what = "is damaged" if expected not in (None, evidence_digest(sorted(found.iterdir()))) else ""
        except (MlflowException, FileNotFoundError) as error:
            if isinstance(error, MlflowException) and error.error_code not in GONE:
                raise
            what = "has been deleted"
        if not what:
            return found
        print(f"warning: {self.name} version {version.number}: its stored evidence {what}", file=sys.stderr, flush=True)
        (empty := target / "none").mkdir()
        return empty

    def keep_evidence(self, version: Version, folder: Path) -> None:
        """Let the files in ``folder`` be the evidence of a version from now on."""
        from mlflow.exceptions import MlflowException

        digest = evidence_digest(sorted(folder.iterdir()))
        try:
            self.client.log_artifacts(version.run_id, str(folder), _evidence_path(digest))
        except MlflowException as error:
            if error.error_code not in GONE:
                raise
            return  # its run was deleted: it is measured again each time
        self.tag(version, {AGAIN_TAG: digest})

    def checkpoint(self, version: Version, target: Path) -> Path:
        """Download the checkpoint inside a version; whoever loads it compares its files with its checksums.

        Raises:
            RegistryError: its checksums are not those that were registered.
        """
        import mlflow
        import yaml

        uri = f"models:/{self.name}/{version.number}"
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(target)))
        flavors = yaml.safe_load((folder / "MLmodel").read_text(encoding="utf-8"))["flavors"]
        found = folder / flavors["python_function"]["artifacts"]["checkpoint"]["path"]
        if (digest := sha256(found / CHECKSUMS)) != version.tags.get(DIGEST_TAG, digest):
            raise RegistryError(
                f"{self.name}: the checkpoint of version {version.number} is damaged: {CHECKSUMS} has the sha256 "
                f"{digest[:12]}, registered was {version.tags[DIGEST_TAG][:12]}; restore MLflow's artifacts"
            )
        return found

    @contextlib.contextmanager
    def decision(self, action: Action, version: Version, reasons: list[str], details: object) -> Iterator[None]:
        """Keep a decision in the ledger; the block does what was decided."""
        from mlflow.entities import Param

        previous = self.champion()
        entry = {
            "model": self.name,
            "action": action,
            "version": version.number,
            "previous": previous.number if previous else "",
            "who": os.environ.get("MLFLOW_TRACKING_USERNAME") or getpass.getuser(),
            "reasons": "; ".join(reasons)[:6000],
        }
        run = self.client.create_run(self.experiment("-decisions"), run_name=f"{version.number} {action}").info.run_id
        self.client.log_batch(run, params=[Param(key, value) for key, value in entry.items()], synchronous=True)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "decision.json").write_text(json.dumps(entry | {"details": details}, indent=2) + "\n")
            self.client.log_artifacts(run, folder)
        yield
        self.client.set_terminated(run, "FINISHED")

    def champions(self) -> list[str]:
        """The numbers of past champions and the present one, the oldest first, without those rolled back."""
        experiment = self.experiment("-decisions")
        finished = f"params.model = '{self.name}' and attributes.status = 'FINISHED'"
        runs = pages(lambda page: self.client.search_runs([experiment], finished, page_token=page))
        stack: list[str] = []
        for run in sorted(runs, key=lambda run: (run.info.start_time, run.info.end_time)):
            action, number = run.data.params["action"], run.data.params["version"]
            if action in ("promoted", "promoted by hand"):
                stack.append(number)
            elif action == "rolled back":
                while stack and stack[-1] != number:
                    stack.pop()
        return stack

    def experiment(self, suffix: str = "") -> str:
        """The id of the pipeline's experiment, or of one beside it; made when it is missing."""
        name = self.tracking.experiment + suffix
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        tags = KIND | (LEDGER if suffix else {})
        return self.client.create_experiment(name, artifacts_of(self.tracking.uri), tags)

    def _aliases(self) -> dict[str, str]:
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
