"""Which flow runs are alive: Prefect shows a killed one as running forever. Used by ``flows/flow.py``."""

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.runtime import flow_run
from prefect.states import Crashed

from plm_core.shared.processes import place, started

CHECKOUT = ".dvc/tmp/plm-checkout"
"""A name that no other checkout has."""


def close_dead_runs(name: str, root: Path) -> None:
    """Label this flow run with its process, and mark the flow's runs that died silently as crashed.

    Those are the runs whose process belongs to this machine and is gone, and all other runs in this checkout, wherever
    their process was: the caller holds the checkout, so they no longer do.
    """
    who: dict[str, bool | int | float | str] = {
        "plm.host": socket.gethostname(),
        "plm.pid": os.getpid(),
        "plm.place": place(),
        "plm.started": started(os.getpid()),
        "plm.checkout": checkout_name(root),
    }
    unfinished = {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}}
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(str(flow_run.get_id())), who)
        running = client.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": [name]}}),
            flow_run_filter=FlowRunFilter.model_validate(unfinished),
        )
        for run in running:
            if "plm.place" in run.labels and _dead(run.labels, who):
                message = f"its process ({run.labels['plm.pid']} on {run.labels['plm.host']}) died"
                client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def _dead(run: Mapping[str, Any], me: Mapping[str, Any]) -> bool:
    if run["plm.place"] == me["plm.place"]:
        return started(int(run["plm.pid"])) != run["plm.started"]
    return bool(run["plm.checkout"] == me["plm.checkout"])


def checkout_name(root: Path) -> str:
    """This checkout's own name, which a copy of it does not share. Hold the checkout: the first call creates it."""
    path = root / CHECKOUT
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex)
    return f"{path.read_text()} {root.stat().st_ino}"
