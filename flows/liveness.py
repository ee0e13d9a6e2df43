"""Which flow runs are alive: Prefect shows a killed one as running for ever. Used by ``flows/flow.py``."""

import os
import socket
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.runtime import flow_run
from prefect.states import Crashed


def close_dead_runs(name: str) -> None:
    """Say who runs this flow run, and mark as crashed those of the flow that died on this machine without a word."""
    host = socket.gethostname()
    who: dict[str, bool | int | float | str] = {
        "plm.host": host,
        "plm.pid": os.getpid(),
        "plm.started": _started(),
    }
    unfinished = {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}}
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(str(flow_run.get_id())), who)
        running = client.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": [name]}}),
            flow_run_filter=FlowRunFilter.model_validate(unfinished),
        )
        for run in running:
            if run.labels.get("plm.host") == host and not _alive(run.labels):
                message = f"its process ({run.labels['plm.pid']} on {host}) died"
                client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def _started(pid: int | None = None) -> str:
    # As text: a label that is a float loses digits on its way.
    return str(psutil.Process(pid).create_time())


def _alive(labels: Mapping[str, Any]) -> bool:
    try:
        return _started(int(labels["plm.pid"])) == labels["plm.started"]
    except psutil.NoSuchProcess:
        return False
