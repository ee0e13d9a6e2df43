"""What the flow and the commands ask of a Prefect server. Prefect is imported by the functions that need it."""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from flows import server
from flows.outcome import UserError
from plm_core.shared.processes import place, started
from plm_core.shared.stores import shown

FLOW = "plm"
"""The flow's name in Prefect."""
TAG = "plm.checkout "
"""The start of the tag that names a deployment's checkout; the rest is as in the label of flow runs."""
CHECKOUT = ".dvc/tmp/plm-checkout"
"""A name that no other checkout has."""


@contextlib.contextmanager
def client(url: str) -> Iterator[Any]:
    """A synchronous client of the server at this address. Raises UserError: a request in the block fails."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    try:
        with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as opened:
            yield opened
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
            raise UserError(
                f"PREFECT_API_AUTH_STRING: {'not accepted' if PREFECT_API_AUTH_STRING.value() else 'not set'}, and the "
                f"Prefect server at {shown(url)} asks for a password; expected its name:password"
            ) from error
        raise UserError(f"Prefect at {shown(url)}: {said(error)}") from error


def of_checkout(found: Any, root: Path) -> bool:
    """Whether a deployment or a flow run is this checkout's: by the checkout's name, or by its path if it has none.

    Checkouts of two machines may have the same path.
    """
    # Deployments have tags, runs have labels.
    names = [tag.removeprefix(TAG) for tag in found.tags if tag.startswith(TAG)]
    if "plm.checkout" in found.labels:
        names.append(found.labels["plm.checkout"])
    given = found.parameters.get("root")
    return checkout_name(root) in names if names else given is not None and Path(given).resolve() == root.resolve()


def said(error: Exception) -> str:
    """The message of an error, in one line and without the password of an address in it."""
    return " ".join(shown(str(error)).split())[:300]


def require(url: str, otherwise: str) -> None:
    """Raise UserError unless a server answers there and lets this user in; ``otherwise`` is what to do if none does."""
    server.reach(url, otherwise)
    with client(url) as opened:
        opened.hello()


def checkout_name(root: Path) -> str:
    """This checkout's own name, which a copy of it does not share. Hold the checkout: the first call creates it."""
    path = root / CHECKOUT
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex)
    return f"{path.read_text()} {root.stat().st_ino}"


def close_dead_runs(root: Path) -> None:
    """Label this flow run with its process, and mark the flow's runs that died silently as crashed: Prefect shows them
    as running forever.

    Those are the runs whose process belongs to this machine and is gone, and all other runs in this checkout, wherever
    their process was: the caller holds the checkout, so they no longer do.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.runtime import flow_run
    from prefect.states import Crashed

    who: dict[str, bool | int | float | str] = {
        "plm.host": socket.gethostname(),
        "plm.pid": os.getpid(),
        "plm.place": place(),
        "plm.started": started(os.getpid()),
        "plm.checkout": checkout_name(root),
    }
    # Not Prefect's heartbeats and an automation: they crash a run whose machine slept.
    unfinished = {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}}
    with get_client(sync_client=True) as opened:
        opened.update_flow_run_labels(uuid.UUID(str(flow_run.get_id())), who)
        running = opened.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": [FLOW]}}),
            flow_run_filter=FlowRunFilter.model_validate(unfinished),
        )
        for run in running:
            its = run.labels
            if "plm.place" not in its:
                continue
            # A process id means something only on its machine and in its container.
            if its["plm.place"] == who["plm.place"]:
                dead = started(int(its["plm.pid"])) != its["plm.started"]
            else:
                dead = its["plm.checkout"] == who["plm.checkout"]
            if dead:
                message = f"its process ({its['plm.pid']} on {its['plm.host']}) died"
                opened.set_flow_run_state(run.id, Crashed(message=message), force=True)


def due_of_this_run() -> dict[str, Any]:
    """When this flow run was ``due``, and when the ``next`` one is, in seconds since 1970, None if never; empty if it
    has no deployment, or the server does not say."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.runtime import deployment, flow_run
    from prefect.types._datetime import now

    if not deployment.id:
        return {}
    due = flow_run.scheduled_start_time
    try:
        with get_client(sync_client=True) as opened:
            schedules = opened.read_deployment(uuid.UUID(str(deployment.id))).schedules
    except httpx.HTTPError as error:
        print(f"warning: Prefect does not say when this run was due: {said(error)}", flush=True)
        return {}
    # A run that is made up for was due long before the next one.
    later = max(due, now("UTC"))
    dates = [found for each in schedules if each.active and (found := next_run(each.schedule, later))]
    return {"due": due.timestamp(), "next": min(dates, default=None)}


def next_run(schedule: Any, moment: datetime) -> float | None:
    """When a schedule's first run after a moment is due, in seconds since 1970."""
    from prefect.server.schemas import schedules
    from prefect.utilities.asyncutils import run_coro_as_sync

    # Only the server's classes of the same names can compute dates.
    known = getattr(schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    dates: Any = run_coro_as_sync(known.get_dates(1, start=moment + timedelta(seconds=1)))
    return dates[0].timestamp() if dates else None
