"""A version on its way from one registry to another, such as from a team's staging to its production.

Within one server the copy shares the run and the files of its source, as with MLflow's ``copy_model_version``, which
cannot reach another server: there the run, with its evidence, and the model are logged again. A copy gets a verdict of
its own; its tags keep that of its source.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.registry.ledger import TABLE_TAG
from flows.registry.mlflow_client import RegistryError
from flows.registry.model_registry import DIGEST_TAG, LIMIT, PAGE, Registry, Version, open_registry
from tasks.tracking.mlflow_stores import absolute, without_credentials

if TYPE_CHECKING:
    from mlflow.entities import Run

MODELS = "models:/"
"""The prefix of the name of a registered model on the same server."""
VERDICT = ("gate", "gate.reasons", TABLE_TAG)
"""The tags of a verdict; those of the source begin with ``source.``, and the tag ``source`` names it."""


@contextlib.contextmanager
def copied(root: Path, registry: Registry, version: Version, to: str) -> Iterator[tuple[Registry, Version]]:
    """The registry ``to``, the address of another MLflow or ``models:/NAME`` on the same one, open during the block,
    and the copy of the version in it, which may exist already.

    Raises:
        RegistryError: ``to`` is no such address.
        RegistrationFailed: one of them cannot be reached or fails; a version that was made is complete.
    """
    uri, name = (registry.tracking.uri, to.removeprefix(MODELS)) if to.startswith(MODELS) else (to, registry.name)
    uri = absolute(uri, root)
    if ":/" not in to or (uri, name) == (registry.tracking.uri, registry.name):
        raise RegistryError(f"--to {to}: expected the address of another MLflow, or {MODELS}NAME of another model here")
    with open_registry(root, uri, name) as there:
        from mlflow.exceptions import MlflowException

        present = {held.tags.get(DIGEST_TAG): held for held in there.versions()}
        copy = present.get(version.tags.get(DIGEST_TAG, ""))
        if copy is None:
            made = registry.client.get_model_version(registry.name, version.number)
            source = f"{MODELS}{registry.name}/{version.number}"
            origin = f"{source} of {without_credentials(registry.tracking.uri)}"
            tags = {f"source.{tag}" if tag in VERDICT else tag: value for tag, value in version.tags.items()}
            run, model = version.run_id, made.model_id
            if uri != registry.tracking.uri:
                run, model = _logged_again(registry, there, registry.client.get_run(run))
                source = f"{MODELS}{model}"
            with contextlib.suppress(MlflowException):  # it exists, as a rule
                there.client.create_registered_model(there.name)
            text = f"Copied from {origin}\n\n{made.description or ''}"[:LIMIT]
            tags |= {"source": origin}
            copied = there.client.create_model_version(there.name, source, run, tags, description=text, model_id=model)
            copy = there.get(str(copied.version))
        yield there, copy


def _logged_again(registry: Registry, there: Registry, run: "Run") -> tuple[str, str]:
    """Log a run and its model in another MLflow; returns their ids there."""
    from mlflow.artifacts import download_artifacts
    from mlflow.entities import LoggedModelOutput, Metric, Param

    assert run.outputs, "registration logs it with its model"
    model = registry.client.get_logged_model(run.outputs.model_outputs[0].model_id)
    client = there.client
    with tempfile.TemporaryDirectory() as folder:
        (files := Path(folder, "run")).mkdir()
        files = Path(registry.client.download_artifacts(run.info.run_id, "", str(files)))
        if (files / PAGE).exists():
            (files / PAGE).rename(files / f"source-{PAGE}")
        tags = {tag: value for tag, value in run.data.tags.items() if tag not in ("gate", "mlflow.parentRunId")}
        copy = client.create_run(there.experiment(), tags=tags, run_name=run.info.run_name).info.run_id
        client.log_artifacts(copy, str(files))
        client.log_inputs(copy, run.inputs.dataset_inputs if run.inputs else [])
        params = [Param(name, value) for name, value in run.data.params.items()]
        for first in range(0, len(params), 100):  # MLflow takes at most 100 at once
            client.log_batch(copy, params=params[first : first + 100])
        logged = client.create_logged_model(there.experiment(), model.name, copy, model.tags, model.params)
        place = download_artifacts(
            model.artifact_location, dst_path=f"{folder}/model", tracking_uri=registry.tracking.uri
        )
        client.log_model_artifacts(logged.model_id, place)
        client.finalize_logged_model(logged.model_id, "READY")
        client.log_outputs(copy, [LoggedModelOutput(logged.model_id, 0)])
        metrics = [
            Metric(m.key, m.value, m.timestamp, m.step, logged.model_id, m.dataset_name, m.dataset_digest)
            for m in model.metrics or ()
        ]
        client.log_batch(copy, metrics)
        client.set_terminated(copy)
    return copy, logged.model_id
