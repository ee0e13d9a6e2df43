"""``plm deploy``: the flow on a schedule, run by this process as long as it lives.

For a service that outlives a terminal use the work pool of ``infra/prefect.yaml``, or run this under systemd.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from flows import server
from flows.outcome import UserError
from flows.pipeline import prepare_environment

if TYPE_CHECKING:
    from prefect.schedules import Schedule


def serve(root: Path, cron: str, name: str = "scheduled") -> None:
    """Run the flow of this checkout on a cron schedule (UTC) until interrupted.

    A run that is due while another one is at work in the checkout is skipped.

    Raises:
        UserError: the cron line is wrong, or no Prefect server is configured or answers.
    """
    url = server.configured_url()
    if url is None:
        raise UserError(
            "PREFECT_API_URL: not set, and a schedule needs a server; start one with `prefect server start`"
            " and set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    if not server.answers(url):
        raise UserError(f"PREFECT_API_URL: no Prefect server answers at {url}; is `prefect server start` up?")
    prepare_environment()
    serve_schedule(root, _schedule(cron), name)


def serve_schedule(root: Path, schedule: "Schedule", name: str) -> None:
    """Like ``serve``, on any schedule of Prefect's, against the configured server."""
    from prefect.types.entrypoint import EntrypointType

    from flows.flow import plm

    plm.serve(
        name=name,
        schedule=schedule,
        # Stopping this process pauses the deployment, so that no runs pile up; starting it again resumes.
        paused=False,
        parameters={"root": str(root.resolve())},
        # Not the file's path: that would be taken from whatever folder this process started in.
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _schedule(cron: str) -> "Schedule":
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.schedules import Cron
    from pydantic import ValidationError

    try:
        CronSchedule(cron=cron)
    except ValidationError as error:
        raise UserError(
            f"cron: {cron!r}; expected five fields: minute hour day month weekday, such as '0 3 * * *'"
        ) from error
    return Cron(cron)
