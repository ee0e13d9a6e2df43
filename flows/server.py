"""The Prefect server that a run reports to: the configured one, or one of its own for as long as it lasts.

Prefect would start a temporary server by itself: too late (6 s during which nothing else happens), in the terminal's
process group (Ctrl-C kills it before the last states are written), and running on if the flow is killed.
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
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Self

from flows import supervisor
from flows.outcome import UserError
from plm_core.shared import stores

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
        reach(url)
    except UserError:
        return False
    return True


def reach(url: str, otherwise: str = "start one with `plm ui prefect`") -> None:
    """Make sure that a Prefect server answers, if only to ask for credentials. Raises UserError: none answers, and
    ``otherwise`` says what to do; or its certificate is not trusted."""
    authority = os.environ.get("PREFECT_API_SSL_CERT_FILE")
    if url.startswith("https:") and authority and not Path(authority).is_file():
        raise UserError(
            f"PREFECT_API_SSL_CERT_FILE: no file {authority}; expected the certificate that signs a server's"
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
                f"PREFECT_API_SSL_CERT_FILE: {authority or 'not set'}, and {stores.shown(url)} is not trusted: {reason}"
            ) from error
    raise UserError(f"PREFECT_API_URL: no Prefect server answers at {stores.shown(url)}; {otherwise}")


class LocalServer:
    """A Prefect server on loopback for the time of a ``with`` block, or until this process dies."""

    def __init__(self, log: Path) -> None:
        # The server gets the socket itself: a free port that is only looked up could be taken before it is opened.
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        # Uvicorn takes it for a Unix socket, and would not set TCP_NODELAY.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = contextlib.ExitStack()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/api"

    def __enter__(self) -> Self:
        """Start it without waiting, so that other things can be prepared while it boots.

        First waits until another one of this user has started: two that create the tables of one database both fail.
        """
        self._starting.enter_context(stores.alone(f"{stores.SQLITE}{home() / 'prefect.db'}"))
        uvicorn = [sys.executable, "-m", "uvicorn", "--app-dir", str(distribution("prefect").locate_file(""))]
        uvicorn += ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on"]
        uvicorn += ["--fd", str(self._socket.fileno()), "--log-level", "error"]
        # The variables of Prefect's own temporary server: no scheduler, no user interface.
        marks = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1", "PREFECT_UI_ENABLED": "0"}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log, self._socket:
            output = {"stdout": log, "stderr": subprocess.STDOUT, "pass_fds": [self._socket.fileno()]}
            self._process = supervisor.started(STOP_S, uvicorn, env={**os.environ, **marks}, **output)
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
    """Empty Prefect's queues while the server is running: at exit they would wait a minute for one that is gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for queue in (APILogWorker, EventsWorker):
        queue.drain_all(timeout=STOP_S, at_exit=False)
