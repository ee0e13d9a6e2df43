"""``plm deploy``: the flow on a schedule, for as long as this process runs.

``infra/systemd`` keeps this process alive; ``infra/work-pools/process.yaml`` does the same with a work pool.
"""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.checkout import pipeline_is_running
from flows.run.pipeline import prepare_environment
from flows.schedule import history, prefect_server
from flows.schedule.prefect_server import FLOW
from plm_core.shared.errors import UserError
from tasks.tracking.mlflow_stores import without_credentials

if TYPE_CHECKING:
    from prefect.schedules import Schedule

AGAIN_S = 5.0
"""How often to look for a server that has gone away."""


AUTOMATIONS = "infra/automations.yaml"
"""Automations as for ``prefect automation create --from-file``, but for names in place of the ids of what is yours."""


def serve(root: Path, cron: str, name: str = "scheduled", automations: bool = False) -> None:
    """Run the flow of this checkout on a cron schedule (UTC) until interrupted, after ``deploy_automations`` if wanted.

    A run that is due while another one uses the checkout is skipped. Of the runs that were due while this command was
    not running, only the newest is started; if the last run was killed, a new one starts. Raises UserError: the cron
    line is wrong, no Prefect server is configured or answers, or as ``serve_schedule``.
    """
    url = prefect_server.configured_url()
    if url is None:
        raise UserError(
            "PREFECT_API_URL: not set, and a schedule needs a server; start one with `plm ui prefect`"
            " and set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    prepare_environment(root)
    deadline = time.monotonic() + prefect_server.START_S  # it may be starting, too
    if not prefect_server.answers(url):
        print(
            f"waiting up to {prefect_server.START_S:.0f} s for the Prefect server at {without_credentials(url)}",
            flush=True,
        )
    while not prefect_server.answers(url) and time.monotonic() < deadline:
        time.sleep(1)
    prefect_server.require_access(url, "is `plm ui prefect` running?")
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.schedules import Cron

    try:
        first = prefect_server.next_run(CronSchedule(cron=cron, timezone="UTC"), datetime.now(UTC))
        if len(cron.split()) > 5:
            raise ValueError("the sixth is taken as seconds")
    except ValueError as error:  # also if it is never due, such as on 31 February
        raise UserError(
            f"cron: {cron!r}; expected five fields: minute hour day month weekday, such as '0 3 * * *'"
        ) from error
    if automations:
        deploy_automations(root, url)
    history.record_schedule(root, first)
    serve_schedule(root, Cron(cron), name, url)


def deploy_automations(root: Path, url: str) -> None:
    """Create the automations of ``AUTOMATIONS``, or update those of the same name; prints a line for each. What needs a
    deployment or a block that the server lacks is left out. Raises UserError: the file cannot be used."""
    import yaml
    from prefect.events.schemas.automations import AutomationCore
    from prefect.exceptions import ObjectNotFound

    path = root / AUTOMATIONS
    with prefect_server.client(url) as client:
        find = {
            "deployment_id": client.read_deployment_by_name,
            "block_document_id": lambda name: client.read_block_document_by_name(*reversed(name.split("/"))),
        }
        try:
            for given in yaml.safe_load(path.read_text(encoding="utf-8"))["automations"]:
                try:
                    for action, field in [(of, field) for of in given["actions"] for field in find if field in of]:
                        action[field] = find[field](action[field]).id
                except ObjectNotFound:
                    print(f"automation {given['name']}: left out until the server has {action[field]}", flush=True)
                    continue
                automation = AutomationCore.model_validate(given)
                earlier = client.read_automations_by_name(automation.name)
                if earlier:
                    client.update_automation(earlier[0].id, automation)
                else:
                    client.create_automation(automation)
                print(f"automation {automation.name}: {'updated' if earlier else 'created'}", flush=True)
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            expected = "expected automations as `prefect automation create --from-file` takes them"
            raise UserError(f"{path}: {prefect_server.error_text(error)}; {expected}") from error


def serve_schedule(root: Path, schedule: "Schedule", name: str, url: str) -> None:
    """Like ``serve``, with any Prefect schedule, against the server at ``url``; waits for a server that is away. Raises
    UserError: another checkout's schedule has this name."""
    import httpx
    from prefect.types.entrypoint import EntrypointType

    from flows.run.flow import plm

    try:
        _tidy(root, name)
        plm.serve(
            name=name,
            schedule=schedule,
            paused=False,  # an earlier version of this command may have left it paused
            # A run that is due while this command is not running waits until it runs again.
            pause_on_shutdown=False,
            parameters={"root": str(root.resolve())},
            tags=[f"{prefect_server.TAG}{prefect_server.checkout_name(root)}", root.resolve().name],
            # Not the file's path, which would be relative to the folder in which this process started.
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
    except (RuntimeError, OSError, httpx.HTTPError, ExceptionGroup) as error:
        if prefect_server.answers(url):
            why = f"Prefect at {without_credentials(url)}: {prefect_server.error_text(error)}; trying again"
        else:
            why = f"no Prefect server answers at {without_credentials(url)}; the schedule waits for it"
        print(f"warning: {why}", flush=True)
        time.sleep(AGAIN_S)
        while not prefect_server.answers(url):
            time.sleep(AGAIN_S)
        # As a new process: what Prefect leaves in this one would accept runs and never start them.
        os.execv(sys.executable, sys.orig_argv)


def _tidy(root: Path, name: str) -> None:
    """Delete all but the newest of the waiting runs of this schedule, because each run covers everything.

    If none waits and the last run was killed, have one start now. Raises UserError: the schedule of this name belongs
    to another checkout, which would never run again.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"{FLOW}/{name}")
        except ObjectNotFound:
            return
        if not prefect_server.belongs_to_checkout(deployment, root):
            raise UserError(
                f"the schedule {FLOW}/{name} of this Prefect server belongs to another checkout,"
                f" {deployment.parameters.get('root')}; expected another --name,"
                f" or, if that one is no longer used, `prefect deployment delete {FLOW}/{name}` first"
            )
        waiting = {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": datetime.now(UTC)}}
        late = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
            flow_run_filter=FlowRunFilter.model_validate(waiting),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        )
        for run in late[1:]:
            client.delete_flow_run(run.id)
        last = history.ScheduleHistory.read(root)
        if not late and last.begun and not last.ended and not pipeline_is_running(root):
            client.create_flow_run_from_deployment(deployment.id)
            print(f"the run that began at {history.format_time(last.begun)} was killed: another starts now", flush=True)
