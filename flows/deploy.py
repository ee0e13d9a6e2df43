"""``plm deploy``: the flow on a schedule, run by this process as long as it lives.

``infra/systemd`` keeps this process alive, and ``infra/work-pools/process.yaml`` is the same for a work pool.
"""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flows import nights, prefects, server
from flows.outcome import UserError
from flows.pipeline import prepare_environment
from flows.prefects import FLOW
from plm_core.shared.stores import shown

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.schedules import Schedule

AGAIN_S = 5.0
"""How often a server that has gone away is looked for."""


def serve(root: Path, cron: str, name: str = "scheduled") -> None:
    """Run the flow of this checkout on a cron schedule (UTC) until interrupted.

    A run that is due while another one is at work in the checkout is skipped. The newest of those that were due while
    nobody served them is made up for.

    Raises:
        UserError: the cron line is wrong, no Prefect server is configured or answers, or as ``serve_schedule``.
    """
    url = server.configured_url()
    if url is None:
        raise UserError(
            "PREFECT_API_URL: not set, and a schedule needs a server; start one with `prefect server start`"
            " and set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    prepare_environment()
    prefects.require(url, "is `prefect server start` up?")
    counted = _schedule(cron)
    from prefect.schedules import Cron

    from flows import due

    nights.expect(root, due.after(counted, datetime.now(UTC)))
    serve_schedule(root, Cron(cron), name, url)


def serve_schedule(root: Path, schedule: "Schedule", name: str, url: str) -> None:
    """Like ``serve``, on any schedule of Prefect's, against the server at ``url``, for as long as that may be away.

    Raises:
        UserError: another checkout's schedule has this name.
    """
    import httpx
    from prefect.types.entrypoint import EntrypointType

    from flows.flow import plm

    try:
        _tidy(root, name)
        plm.serve(
            name=name,
            schedule=schedule,
            paused=False,  # as another version of this command has left it
            # A run that was due while nobody served it waits, and is made up for.
            pause_on_shutdown=False,
            parameters={"root": str(root.resolve())},
            # Not the file's path: that would be taken from whatever folder this process started in.
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
    except (RuntimeError, OSError, httpx.HTTPError, ExceptionGroup) as error:
        if server.answers(url):
            why = f"Prefect at {shown(url)}: {prefects.said(error)}; the schedule tries again"
        else:
            why = f"no Prefect server answers at {shown(url)}; the schedule waits for it"
        print(f"warning: {why}", flush=True)
        time.sleep(AGAIN_S)
        while not server.answers(url):
            time.sleep(AGAIN_S)
        # As a new process, for Prefect's remains of this one would take runs and never start them.
        os.execv(sys.executable, sys.orig_argv)


def _tidy(root: Path, name: str) -> None:
    """Leave of the runs that waited for this schedule the newest: each looks at everything there is.

    Raises:
        UserError: the schedule of this name is another checkout's, which would never run again.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            known = client.read_deployment_by_name(f"{FLOW}/{name}")
        except ObjectNotFound:
            return
        other = known.parameters.get("root")
        if other != str(root.resolve()):
            raise UserError(
                f"the schedule {FLOW}/{name} of this Prefect server is that of {other}; expected another --name,"
                f" or, if that one is used no more, `prefect deployment delete {FLOW}/{name}` first"
            )
        waiting = {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": datetime.now(UTC)}}
        late = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [known.id]}}),
            flow_run_filter=FlowRunFilter.model_validate(waiting),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        )
        for run in late[1:]:
            client.delete_flow_run(run.id)


def _schedule(cron: str) -> "CronSchedule":
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        return CronSchedule(cron=cron, timezone="UTC")
    except ValidationError as error:
        raise UserError(
            f"cron: {cron!r}; expected five fields: minute hour day month weekday, such as '0 3 * * *'"
        ) from error
