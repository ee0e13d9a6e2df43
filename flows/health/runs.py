"""Runs that MLflow shows as running though nobody works on them any more. Used by ``flows/health/registry.py``."""

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from flows.health.finding import Finding
from flows.health.versions import Later
from flows.registry import Registry
from flows.store import pages
from flows.tracking import journals, send_leftovers
from plm_core.shared.stores import SQLITE

JOURNAL_TAG = "plm.journal"


def check(root: Path, registry: Registry, later: Later) -> Iterator[Finding]:
    """Runs of stages whose process is dead, and those of registrations that were killed."""
    experiment = registry.experiment()
    running = list(
        pages(lambda page: registry.client.search_runs([experiment], "attributes.status = 'RUNNING'", page_token=page))
    )
    abandoned = {run.info.run_id for run in registry.abandoned()}
    known = {journal["key"]: journal for journal in journals(root)}
    for run in running:
        where = f"run {run.info.run_name} ({run.info.run_id})"
        ended = later(_killed(run.info.run_id))
        tags = run.data.tags
        if run.info.run_id in abandoned:
            mend = "end it in MLflow as KILLED; the next `plm run` registers the checkpoint, if it is today's"
            yield Finding("a registration was killed and left it RUNNING without a version", where, mend, ended)
        elif (key := tags.get(JOURNAL_TAG)) in known:
            journal = known[key]
            if not journal["living"] and journal["sender"] != "":
                mend = "the next `plm run` sends what waits in its journal, and ends it"
                safe = None if journal["damaged"] else partial(send_leftovers, root)
                yield Finding("its process is dead, and it is RUNNING in MLflow", where, mend, safe)
        elif key and tags.get("plm.host") == socket.gethostname() and registry.tracking.uri.startswith(SQLITE):
            mend = "end it in MLflow as KILLED: what its process did not send is lost"
            yield Finding("its process and its journal are gone, and it is RUNNING in MLflow", where, mend, ended)


def _killed(run: str) -> Callable[[Registry], object]:
    return lambda registry: registry.client.set_terminated(run, "KILLED")
