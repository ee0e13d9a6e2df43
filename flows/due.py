"""When the schedule's runs are due. Imports Prefect, so it is slow to import; used by ``nights.py``, ``deploy.py``."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.runtime import deployment, flow_run
from prefect.types._datetime import now
from prefect.utilities.asyncutils import run_coro_as_sync

from flows import prefects


@dataclass(frozen=True)
class Due:
    """The times of a scheduled run, in seconds since 1970."""

    due: float
    next: float | None
    """When the next run after it is due."""


def of_this_run() -> Due | None:
    """When this flow run was due; None if it has no deployment, or the server does not say."""
    if not deployment.id:
        return None
    due = flow_run.scheduled_start_time
    try:
        with get_client(sync_client=True) as client:
            schedules = client.read_deployment(UUID(str(deployment.id))).schedules
    except httpx.HTTPError as error:
        print(f"warning: Prefect does not say when this run was due: {prefects.said(error)}", flush=True)
        return None
    later = max(due, now("UTC"))
    dates = [found for each in schedules if each.active and (found := after(each.schedule, later))]
    return Due(due.timestamp(), min(dates, default=None))


def after(schedule: Any, moment: datetime) -> float | None:
    """When a schedule's first run after a moment is due, in seconds since 1970."""
    from prefect.server.schemas import schedules

    # Only the server's classes of the same names can compute dates.
    known = getattr(schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    dates: Any = run_coro_as_sync(known.get_dates(1, start=moment + timedelta(seconds=1)))
    return dates[0].timestamp() if dates else None
