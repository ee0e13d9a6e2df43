"""The model registry in MLflow and the ledger of its decisions. Used by ``flows/promotion.py``; the flow's only MLflow.

MLflow keeps no history of aliases (mlflow#2169), hence the ledger: every decision is a run of the experiment
``<experiment>-decisions``, begun before the alias moves and FINISHED after.
"""

import contextlib
import fcntl
import getpass
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows import settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION = "champion"
CHALLENGER = "challenger"
DIGEST_TAG = "checkpoint.sha256"

Action = Literal["promoted", "refused", "promoted by hand", "rolled back"]

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # With MLflow's defaults a dead server blocks a call for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}


class RegistryError(Exception):
    """The registry cannot do what was asked; the message says why."""


class RegistrationFailed(RegistryError):
    """MLflow cannot be reached or fails. The files of the pipeline are safe, a later run registers them."""


@dataclass(frozen=True)
class Version:
    """A version of the registered model."""

    number: str
    run_id: str
    tags: Mapping[str, str]
    """Among them ``checkpoint.sha256``, ``plm.model``, ``dvc.stage``, ``gate`` and ``gate.reasons``."""
    metrics: Mapping[str, float]
    aliases: list[str] = field(default_factory=list)
    created: float = 0.0
    """Seconds since 1970."""


@contextlib.contextmanager
def opened(root: Path) -> Iterator["Registry"]:
    """The registry of the pipeline in ``root``; failures of MLflow inside the block become ``RegistrationFailed``.

    Raises:
        SettingsError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    tracking, promotion = settings.read(root)
    with _environment():
        import mlflow
        import mlflow.store.db.utils
        from sqlalchemy.exc import SQLAlchemyError

        # A database that does not answer would otherwise be tried for 100 s.
        mlflow.store.db.utils.MAX_RETRY_COUNT = 2
        mlflow.set_tracking_uri(tracking.uri)
        mlflow.set_registry_uri(tracking.uri)
        try:
            with _alone(tracking.uri):
                registry = Registry(tracking, promotion.registered_model, mlflow.MlflowClient())
                registry.experiment()
            yield registry
        except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
            reason = " ".join(str(error).split())[:400]
            raise RegistrationFailed(f"MLflow at {tracking.uri}: {reason}") from error


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """One process at a time opens a SQLite file, as in ``tasks/seam/store.py``: two that create its tables fail."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    lock = Path(uri.removeprefix("sqlite:///") + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """MLflow reads its environment at every call; what starts later must not inherit what is set here, or by MLflow
    itself, which makes the store of ``set_tracking_uri`` everybody's."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("MLFLOW_") or name in ENVIRONMENT]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


class Registry:
    """Versions, aliases and the ledger of one registered model."""

    def __init__(self, tracking: settings.Tracking, name: str, client: "MlflowClient") -> None:
        self.tracking = tracking
        self.name = name
        self.client = client

    def versions(self) -> list[Version]:
        """All versions, the newest first."""
        aliases = self._aliases()
        found = []
        for version in self.client.search_model_versions(f"name = '{self.name}'"):
            assert version.run_id is not None  # log_model registers from a run
            metrics = self.client.get_run(version.run_id).data.metrics
            mine = sorted(alias for alias, number in aliases.items() if number == str(version.version))
            found.append(
                Version(
                    number=str(version.version),
                    run_id=version.run_id,
                    tags=version.tags,
                    metrics=metrics,
                    aliases=mine,
                    created=version.creation_timestamp / 1000,
                )
            )
        return sorted(found, key=lambda version: -int(version.number))

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
        """Download the evidence that a version was registered with."""
        return Path(self.client.download_artifacts(version.run_id, "evidence", str(target)))

    def checkpoint(self, version: Version, target: Path) -> Path:
        """Download the checkpoint inside a version."""
        import mlflow
        import yaml

        uri = f"models:/{self.name}/{version.number}"
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(target)))
        flavors = yaml.safe_load((folder / "MLmodel").read_text(encoding="utf-8"))["flavors"]
        return folder / flavors["python_function"]["artifacts"]["checkpoint"]["path"]

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
        runs: list[Any] = []
        page: str | None = ""
        while page is not None:
            found = self.client.search_runs(
                [self.experiment("-decisions")],
                f"params.model = '{self.name}' and attributes.status = 'FINISHED'",
                order_by=["attributes.start_time ASC"],
                page_token=page or None,
            )
            runs.extend(found)
            page = found.token or None
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
        tags = {"mlflow.experimentKind": "custom_model_development"}
        return self.client.create_experiment(name, settings.artifact_location(self.tracking), tags)

    def _aliases(self) -> dict[str, str]:
        from mlflow.exceptions import MlflowException

        try:
            aliases = self.client.get_registered_model(self.name).aliases
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}
        return {alias: str(number) for alias, number in aliases.items()}
