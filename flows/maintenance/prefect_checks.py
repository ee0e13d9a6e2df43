"""Prefect: whether a server runs this checkout, when it last did and when it will next; old flow runs."""

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flows.flow_configs import Retention
from flows.maintenance.findings import Finding, Found, unneeded
from flows.schedule import history, prefect_server
from flows.schedule.prefect_server import FLOW, belongs_to_checkout, client
from tasks.tracking.mlflow_stores import without_credentials

LATE = timedelta(minutes=10)
"""A run that has not begun this long after its time is overdue: a worker polls every 15 s."""
ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
PAGE = 200
"""The most runs that Prefect returns at once."""


def schedule(root: Path, _everything: bool) -> Found:
    """Scheduled runs that are overdue, schedules that are paused or have nothing to run, a last run that failed. Raises
    UserError: the configured server does not answer."""
    url = prefect_server.configured_url()
    if url is None:
        yield "schedule: not checked, because PREFECT_API_URL is not set; set it if a server runs this checkout"
        return
    prefect_server.require_answer(url)
    from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    now = datetime.now(UTC)
    scheduled = FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    with client(url) as opened:
        ours = FlowFilter.model_validate({"name": {"any_": [FLOW]}})
        deployments = [d for d in opened.read_deployments(flow_filter=ours) if belongs_to_checkout(d, root)]
        if not deployments:
            yield f"schedule: {without_credentials(url)} has no deployment of this checkout; `plm deploy` makes one"
        for deployment in deployments:
            where = f"deployment {FLOW}/{deployment.name} at {without_credentials(url)}"

            # Runs that wait: the first may be overdue, or there is none.
            runs = opened.read_flow_runs(
                deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [str(deployment.id)]}}),
                flow_run_filter=scheduled,
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
                limit=10,
            )
            waiting = sorted(run.next_scheduled_start_time or run.expected_start_time for run in runs)
            if waiting and waiting[0] < now - LATE:
                what = f"a run has been due since {_at(waiting[0])} and has not begun"
                yield Finding(what, where, "start `plm deploy` again, or the worker (docs/how-to/schedule.md)")
            if deployment.paused:
                yield Finding("the schedule is paused", where, "start `plm deploy` again, or resume it in Prefect's UI")
            elif not waiting:
                yield Finding("no run is scheduled", where, "`plm deploy --cron ...` sets the schedule")

            coming = [at for at in waiting if at >= now]
            yield f"schedule: the next run of {deployment.name}: {_at(coming[0]) if coming else 'not scheduled'}"
    # How the last run ended is recorded in the checkout, whoever started it.
    last = history.ScheduleHistory.read(root)
    if last.error and last.ended:
        mend = "read the log of the run in Prefect's UI, fix the cause, and call `plm run`"
        yield Finding(f"the last run failed: {last.error}", f"the run of {history.format_time(last.ended)}", mend)


def _at(when: datetime) -> str:
    return history.format_time(when.timestamp())


def old_runs(root: Path, rules: Retention) -> Found:
    """Flow runs that ended longer ago than the rules' ``days``, with their logs."""
    url = prefect_server.configured_url()
    if url is None:
        return
    prefect_server.require_answer(url)
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.exceptions import ObjectNotFound

    # A server may serve many checkouts; the runs of each have a label that names it.
    before = (datetime.now(UTC) - timedelta(days=rules.days)).isoformat()
    with client(url) as opened:
        runs: list[Any] = []
        while page := opened.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": [FLOW]}}),
            flow_run_filter=FlowRunFilter.model_validate(
                {"state": {"type": {"any_": ENDED}}, "end_time": {"before_": before}}
            ),
            limit=PAGE,
            offset=len(runs),
        ):
            runs += page
        ours = [run.id for run in runs if belongs_to_checkout(run, root)]

        def delete() -> None:
            for run in ours:
                with contextlib.suppress(ObjectNotFound):
                    opened.delete_flow_run(run)

        if ours:
            what = f"{len(ours):,} flow runs at {without_credentials(url)}, with their logs"
            yield unneeded(what, f"ended more than {rules.days} days ago", None, delete)
