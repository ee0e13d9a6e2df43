"""What people read of a version in MLflow: the decision paper as its description. Used by judging and promotion.

The words are the gate's (``tasks/reporting/paper.py``); here is what the registry knows for them, and where they go.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.registry import Registry, Version
from flows.store import GONE

PAGE = "decision.html"
"""The artifact of a version's run that holds all of the paper: a description is not as long as one likes."""


def about(registry: Registry, version: Version) -> dict[str, Any]:
    """What the registry knows of a version; of one whose run was deleted, its tags."""
    known: dict[str, Any] = {"version": version.number, "run": "", "tags": dict(version.tags)}
    known |= {"params": {}, "metrics": {}, "samples": []}
    with _unless_gone():
        run = registry.client.get_run(version.run_id)
        known |= {"run": version.run_id, "tags": {**run.data.tags, **version.tags}}
        known |= {"params": run.data.params, "metrics": run.data.metrics}
        with tempfile.TemporaryDirectory() as folder:
            if registry.client.list_artifacts(version.run_id, "samples"):
                try:
                    (found,) = Path(registry.client.download_artifacts(version.run_id, "samples", folder)).iterdir()
                    known["samples"] = json.loads(found.read_text(encoding="utf-8"))
                except ValueError as error:
                    said = f"{registry.name} version {version.number}: its samples are left out"
                    print(f"warning: {said}: {error}", file=sys.stderr, flush=True)
    return known


def describe(registry: Registry, version: Version, gate: str, decision: Mapping[str, Any] | None) -> None:
    """Show what was decided on the page of a version and of its run; the gate was not asked where there is no paper."""
    if decision and "description" in decision:
        registry.client.update_model_version(registry.name, version.number, decision["description"])
    with _unless_gone():
        registry.client.set_tag(version.run_id, "gate", gate)
        if decision and "page" in decision:
            registry.client.log_text(version.run_id, decision["page"], PAGE)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Leave out what cannot be done because a run, or what it held, was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except FileNotFoundError:
        return
    except MlflowException as error:
        if error.error_code not in GONE:
            raise
