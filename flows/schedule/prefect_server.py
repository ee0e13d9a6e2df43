"""The Prefect server that a run reports to, and what the flow and the commands ask of it.

The server is the configured one, or one that belongs to the run and ends with it. Prefect would start a temporary
server by itself, but too late (6 s during which nothing else happens) and in the terminal's process group (Ctrl-C kills
it before the last states are written), and that server would survive the flow if the flow is killed. Prefect is
imported by the functions that need it.
"""

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Self

from flows.processes import supervisor
from plm_core.shared.environment import pid_scope, process_start
from plm_core.shared.errors import UserError
from tasks.tracking import mlflow_stores
from tasks.tracking.mlflow_stores import without_credentials

START_S = 120.0
"""How long the server may take to answer; 6 s on an idle machine, twice that if it creates its database."""

ANSWER_S = 5.0
"""How long a running server may take to answer."""

STOP_S = 10.0
"""How long it may take to store what it has received."""


def configured_url() -> str | None:
    """The server that the user has configured in ``PREFECT_API_URL`` or Prefect's active profile, if any."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", home() / "profiles.toml"))
    if not path.exists():
        return None
    profiles = tomllib.loads(path.read_text())
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    return profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL") or None


def home() -> Path:
    """The folder with Prefect's database and profiles."""
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def answers(url: str) -> bool:
    """Whether a Prefect server answers there, if only to ask for credentials. Also used by ``infra/team/ready.py``."""
    try:
        require_answer(url)
    except UserError:
        return False
    return True


def require_answer(url: str, otherwise: str = "start one with `plm ui prefect`") -> None:
    """Make sure that a Prefect server answers, if only to ask for credentials. Raises UserError: none answers, and
    ``otherwise`` says what to do; or its certificate is not trusted."""
    authority = os.environ.get("PREFECT_API_SSL_CERT_FILE")
    if url.startswith("https:") and authority and not Path(authority).is_file():
        raise UserError(
            f"PREFECT_API_SSL_CERT_FILE: no file {authority}; expected the certificate that signed the server's"
        )
    try:
        trusted = None
        if url.startswith("https:"):  # as in Prefect's client: a team's servers may have their own certificates
            trusted = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=ANSWER_S, context=trusted) as response:
            if response.status == 200:
                return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLError):
            raise UserError(
                f"PREFECT_API_SSL_CERT_FILE: {authority or 'not set'}, and {without_credentials(url)} is not trusted: "
                f"{reason}"
            ) from error
    raise UserError(f"PREFECT_API_URL: no Prefect server answers at {without_credentials(url)}; {otherwise}")


class LocalServer:
    """A Prefect server on loopback for the time of a ``with`` block, or until this process dies."""

    def __init__(self, log: Path) -> None:
        # The server gets the socket itself: a free port that is only looked up could be taken before it is opened.
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        # Uvicorn mistakes it for a Unix socket, and would not set TCP_NODELAY.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = contextlib.ExitStack()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/api"

    def __enter__(self) -> Self:
        """Start it without waiting, so that other things can be prepared while it boots.

        First waits until another one of this user has started: two that create the tables of one database both fail.
        """
        self._starting.enter_context(mlflow_stores.exclusive(f"{mlflow_stores.SQLITE}{home() / 'prefect.db'}"))
        uvicorn = [sys.executable, "-m", "uvicorn", "--app-dir", str(distribution("prefect").locate_file(""))]
        uvicorn += ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on"]
        uvicorn += ["--fd", str(self._socket.fileno()), "--log-level", "error"]
        # The variables of Prefect's own temporary server: no scheduler, no user interface.
        marks = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1", "PREFECT_UI_ENABLED": "0"}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log, self._socket:
            output = {"stdout": log, "stderr": subprocess.STDOUT, "pass_fds": [self._socket.fileno()]}
            self._process = supervisor.start_supervisor(STOP_S, uvicorn, env={**os.environ, **marks}, **output)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it and wait until it has."""
        self._starting.close()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Make it the server of this process. Imports Prefect while the server boots. Raises UserError: it does not
        answer; the message names its log."""
        os.environ["PREFECT_API_URL"] = self.url
        try:
            import prefect.main  # noqa: F401
            from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

            assert self._process is not None
            deadline = time.monotonic() + START_S
            with self._starting:
                while not answers(self.url):
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise UserError(f"Prefect's server did not start; see {self._log}")
                    time.sleep(0.05)
            # Nobody needs heartbeats here, and each flow waits a second for their thread to end.
            with temporary_settings({PREFECT_API_URL: self.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                yield
        finally:
            send_what_is_left()
            del os.environ["PREFECT_API_URL"]


def send_what_is_left() -> None:
    """Empty Prefect's queues while the server runs: at exit they would wait a minute for a server that is gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for queue in (APILogWorker, EventsWorker):
        queue.drain_all(timeout=STOP_S, at_exit=False)


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
                f"Prefect server at {without_credentials(url)} asks for a password; expected its name:password"
            ) from error
        raise UserError(f"Prefect at {without_credentials(url)}: {error_text(error)}") from error


def belongs_to_checkout(run: Any, root: Path) -> bool:
    """Whether a deployment or a flow run is this checkout's: by the checkout's name, or by its path if it has none.

    Checkouts of two machines may have the same path.
    """
    # Deployments have tags, runs have labels.
    names = [tag.removeprefix(TAG) for tag in run.tags if tag.startswith(TAG)]
    if "plm.checkout" in run.labels:
        names.append(run.labels["plm.checkout"])
    given = run.parameters.get("root")
    return checkout_name(root) in names if names else given is not None and Path(given).resolve() == root.resolve()


def error_text(error: Exception) -> str:
    """The message of an error, in one line and without the password of an address in it."""
    return " ".join(without_credentials(str(error)).split())[:300]


def require_access(url: str, otherwise: str) -> None:
    """Raise UserError unless a server answers there and lets this user in; ``otherwise`` is what to do if none does."""
    require_answer(url, otherwise)
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

    These are the runs whose process belongs to this machine and is gone, and all other runs in this checkout, wherever
    their process was: as the caller holds the checkout, none of them can still be running.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.runtime import flow_run
    from prefect.states import Crashed

    who: dict[str, bool | int | float | str] = {
        "plm.host": socket.gethostname(),
        "plm.pid": os.getpid(),
        "plm.place": pid_scope(),
        "plm.started": process_start(os.getpid()),
        "plm.checkout": checkout_name(root),
    }
    # Prefect's own way, heartbeats and an automation, would also crash a run whose machine has only been asleep.
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
                dead = process_start(int(its["plm.pid"])) != its["plm.started"]
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
        print(f"warning: Prefect does not say when this run was due: {error_text(error)}", flush=True)
        return {}
    # A run that starts late may have been due long before the next one.
    later = max(due, now("UTC"))
    dates = [date for entry in schedules if entry.active and (date := next_run(entry.schedule, later))]
    return {"due": due.timestamp(), "next": min(dates, default=None)}


def next_run(schedule: Any, moment: datetime) -> float | None:
    """When a schedule's first run after a moment is due, in seconds since 1970."""
    from prefect.server.schemas import schedules
    from prefect.utilities.asyncutils import run_coro_as_sync

    # Only the server's classes of the same names can compute dates.
    recurrence = getattr(schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    dates: Any = run_coro_as_sync(recurrence.get_dates(1, start=moment + timedelta(seconds=1)))
    return dates[0].timestamp() if dates else None
