"""The description of a version in MLflow: its decision record. Used by judging and promotion.

The gate writes the text (``tasks/reporting/record.py``); this module collects the registry's facts and stores the text.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.registry import Registry, Version
from flows.store import unless_gone

PAGE = "decision.html"
"""The artifact of a version's run that holds the full record, because the length of a description is limited."""


def about(registry: Registry, version: Version) -> dict[str, Any]:
    """What the registry knows about a version; only its tags if its run was deleted."""
    known: dict[str, Any] = {"version": version.number, "run": "", "tags": dict(version.tags)}
    known |= {"params": {}, "metrics": {}, "samples": []}
    with unless_gone():
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
    """Show the decision on the pages of a version and its run; without a record, the gate was not asked."""
    if decision and "description" in decision:
        registry.client.update_model_version(registry.name, version.number, decision["description"])
    with unless_gone():
        registry.client.set_tag(version.run_id, "gate", gate)
        if decision and "page" in decision:
            registry.client.log_text(version.run_id, decision["page"], PAGE)
