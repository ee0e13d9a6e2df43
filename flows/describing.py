"""The description of a version in MLflow: its decision record. Used by judging and promotion.

The gate writes the text (``tasks/reporting/record.py``); this module collects the registry's facts and stores the text.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from flows.ledger import Decision
from flows.registry import Registry, Version
from flows.store import unless_gone

PAGE = "decision.html"
"""The artifact of a version's run that holds the full record, because the length of a description is limited."""

LIMIT = 5_000
"""Characters of a description that every database of MLflow keeps."""


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


def describe(registry: Registry, version: Version, decision: Decision) -> None:
    """Show the decision on the pages of a version and its run; without a record, the gate was not asked."""
    gate = decision.tags["gate"]
    details = decision.details or {}
    known = registry.client.get_model_version(registry.name, version.number).description or ""
    text = details.get("description") or (known.partition("\n\n")[2] if known.startswith("Overruled") else known)
    if gate == "overruled":
        text = f"Overruled, {decision.action}: {' '.join(decision.reasons[0].split())}\n\n{text}"[:LIMIT]
    if text != known:
        registry.client.update_model_version(registry.name, version.number, text)
    with unless_gone():
        registry.client.set_tag(version.run_id, "gate", gate)
        if "page" in details:
            registry.client.log_text(version.run_id, details["page"], PAGE)
