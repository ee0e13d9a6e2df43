"""When the schedule's runs are due. Heavy to import, for it knows Prefect; used by ``nights.py`` and ``deploy.py``."""

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
    """A scheduled run's moments, in seconds since 1970."""

    due: float
    next: float | None
    """When the run after it is due."""


def of_this_run() -> Due | None:
    """When the flow run that this is was due; None for one of no deployment, and where the server does not say it."""
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

    # Only the server's classes of the same names can count.
    known = getattr(schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    dates: Any = run_coro_as_sync(known.get_dates(1, start=moment + timedelta(seconds=1)))
    return dates[0].timestamp() if dates else None
