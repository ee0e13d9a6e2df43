"""Receives MLflow's webhooks on aliases, so that a champion chosen in its UI is in the ledger at once: ``plm listen``.

MLflow delivers webhooks since 3.3, from a server with an SQL store. A server keeps its list of them for a minute
(``MLFLOW_WEBHOOK_CACHE_TTL``), and a delivery may be lost, so the alias is looked at every minute, too.
"""

import base64
import contextlib
import hmac
import secrets
import time
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from flows.registry.mlflow_client import RegistryError, warn
from flows.registry.model_registry import CHAMPION, open_registry
from flows.registry.promotion import VersionOutcome, catch_up
from plm_core.shared.errors import UserError

LOOK_S = 60.0
"""How often the alias is looked at without a webhook."""
OLDEST_S = 300.0
"""The age from which a delivery counts as replayed."""
LARGEST = 100_000
"""Bytes of a delivery; those about aliases have some hundred."""


class Listener(HTTPServer):
    """A server that notes that MLflow has reported something, or that it is time to look."""

    timeout = LOOK_S
    secret = ""
    look = False

    def handle_timeout(self) -> None:
        """There was no request for so long."""
        self.look = True


class Delivery(BaseHTTPRequestHandler):
    """A request; only a recent one with the webhook's signature has an effect."""

    timeout = 10
    server: Listener

    def do_POST(self) -> None:
        """Answer at once: MLflow would repeat a delivery that takes long."""
        body = self.rfile.read(min(int(self.headers["Content-Length"] or 0), LARGEST))
        signed = authentic(self.headers, body, self.server.secret)
        self.server.look |= signed
        self.send_response(204 if signed else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def authentic(headers: Message, body: bytes, secret: str) -> bool:
    """Whether MLflow has signed a delivery (Standard Webhooks: HMAC-SHA256 of id, time and body), and lately."""
    sent = headers.get("X-MLflow-Timestamp", "")
    content = f"{headers.get('X-MLflow-Delivery-Id')}.{sent}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(secret.encode(), content, "sha256"))
    right = hmac.compare_digest(expected, headers.get("X-MLflow-Signature", "").encode())
    return right and abs(time.time() - int(sent)) < OLDEST_S


def listen(root: Path, address: str, port: int | None, tell: Callable[[VersionOutcome], object]) -> None:
    """Register a webhook that calls ``address``, and until Ctrl-C record each champion that a person chooses.

    Args:
        root: The repository.
        address: Where MLflow reaches this machine.
        port: The port to listen on; that of the address if None.
        tell: Called with what is new in the ledger.

    Raises:
        UserError: the address or the port cannot be used.
        RegistryError: MLflow's store is a file, or the server does not accept the webhook.
    """
    url = urlsplit(address)
    host = "127.0.0.1" if url.hostname in ("127.0.0.1", "localhost") else ""  # or all of this machine's addresses
    try:
        server = Listener((host, port or url.port or 80), Delivery)
    except OSError as error:
        raise UserError(f"{address}: cannot listen on its port: {error.strerror}; --port names another") from error
    server.secret = secrets.token_urlsafe()
    with server, contextlib.ExitStack() as stack:
        with open_registry(root) as registry:
            if not registry.tracking.uri.startswith("http"):
                what = "a file has no webhooks; the next command notices a champion chosen in the UI"
                raise RegistryError(f"{registry.tracking.uri}: {what}")
            # One that a killed process has left has another secret.
            for hook in registry.client.list_webhooks():
                if hook.url == address:
                    registry.client.delete_webhook(hook.webhook_id)
            made = registry.client.create_webhook(
                "plm-listen",
                address,
                ["model_version_alias.created", "model_version_alias.deleted"],
                secret=server.secret,
            )
        stack.callback(_delete, root, made.webhook_id)
        print(f"listening: MLflow reports aliases to {address}   (Ctrl-C stops it)", flush=True)

        alias: str | None = ""
        while True:
            try:
                with open_registry(root) as registry:
                    now = registry.alias(CHAMPION)
                    # A command that is deciding at this moment records it itself.
                    if now != alias and not registry.ledger.unfinished():
                        for outcome in catch_up(root, registry):
                            tell(outcome)
                        alias = now
            except UserError as error:
                warn(str(error))
            server.look = False
            while not server.look:
                server.handle_request()


def _delete(root: Path, webhook: str) -> None:
    with contextlib.suppress(RegistryError), open_registry(root) as registry:
        registry.client.delete_webhook(webhook)
