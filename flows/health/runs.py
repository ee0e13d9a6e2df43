"""Runs that MLflow shows as running although their process is dead. Used by ``flows/health/registry.py``."""

import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.health.finding import Finding
from flows.health.versions import Later
from flows.registry import Registry
from flows.tracking import journals, send_leftovers
from plm_core.shared.stores import SQLITE

if TYPE_CHECKING:
    from mlflow.entities import Run

JOURNAL_TAG = "plm.journal"


def check(root: Path, registry: Registry, later: Later) -> Iterator[Finding]:
    """Runs of stages whose process is dead, and of registrations that were killed."""
    running = list(registry.runs("attributes.status = 'RUNNING'"))
    abandoned = {run.info.run_id for run in registry.abandoned()}
    known = {journal["key"]: journal for journal in journals(root)}
    for run in running:
        found = _finding(root, run, run.info.run_id in abandoned, known, registry.tracking.uri, later)
        # The run may have ended, and its journal with it, since the runs were listed.
        if found and _is_running(registry, run.info.run_id):
            yield found


def _finding(
    root: Path, run: "Run", abandoned: bool, known: Mapping[str, dict[str, Any]], uri: str, later: Later
) -> Finding | None:
    where = f"run {run.info.run_name} ({run.info.run_id})"
    ended = later(_killed(run.info.run_id))
    tags = run.data.tags
    if abandoned:
        mend = "end it in MLflow as KILLED; the next `plm run` registers the checkpoint if it is current"
        return Finding("a registration was killed and left it RUNNING without a version", where, mend, ended)
    key = tags.get(JOURNAL_TAG, "")
    if journal := known.get(key):
        if not journal["living"] and journal["sender"] != "":
            mend = "the next `plm run` sends the rest of its journal, and ends it"
            safe = None if journal["damaged"] else partial(send_leftovers, root)
            return Finding("its process is dead, and it is RUNNING in MLflow", where, mend, safe)
    elif key and tags.get("plm.host") == socket.gethostname() and uri.startswith(SQLITE):
        mend = "end it in MLflow as KILLED: what its process did not send is lost"
        return Finding("its process and its journal are gone, and it is RUNNING in MLflow", where, mend, ended)
    return None


def _killed(run: str) -> Callable[[Registry], object]:
    def kill(registry: Registry) -> None:
        if _is_running(registry, run):
            registry.client.set_terminated(run, "KILLED")

    return kill


def _is_running(registry: Registry, run: str) -> bool:
    """Whether the run is still RUNNING in MLflow."""
    return registry.client.get_run(run).info.status == "RUNNING"
