"""MLflow's webhooks on aliases: a champion chosen in its UI is in the ledger at once. For ``plm listen``.

A server keeps its list of webhooks for a minute, and a delivery may be lost: the alias is looked at every minute, too.
"""

import base64
import contextlib
import hmac
import secrets
import threading
import time
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from flows.registry.mlflow_client import RegistryError, warn
from flows.registry.model_registry import CHAMPION, open_registry
from flows.registry.promotion import VersionOutcome, catch_up
from plm_core.shared.errors import UserError

LARGEST = 100_000
"""Bytes of a delivery that are read; one about an alias has some hundred."""
LOOK_S = 60.0
OLDEST_S = 300.0
"""The age from which a delivery counts as replayed."""


def authentic(headers: Message, body: bytes, secret: str) -> bool:
    """Whether MLflow has lately signed a delivery (Standard Webhooks: HMAC-SHA256 of id, time and body)."""
    sent = headers.get("X-MLflow-Timestamp", "")
    content = f"{headers.get('X-MLflow-Delivery-Id')}.{sent}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(secret.encode(), content, "sha256"))
    right = hmac.compare_digest(expected, headers.get("X-MLflow-Signature", "").encode())
    return right and abs(time.time() - int(sent)) < OLDEST_S


def moves(root: Path, address: str, port: int | None) -> Iterator[VersionOutcome]:
    """What is new in the ledger because a person chose a champion, until Ctrl-C. MLflow reports to ``address``; this
    process listens on ``port`` or that of the address.

    Raises:
        UserError: the port cannot be used, MLflow's store is a file, or the server does not accept the webhook.
    """
    url = urlsplit(address)
    secret = secrets.token_urlsafe()
    due = threading.Event()

    class Delivery(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers["Content-Length"] or 0), LARGEST))
            signed = authentic(self.headers, body, secret)
            self.send_response(204 if signed else 401)  # at once: MLflow repeats a delivery that takes long
            self.end_headers()
            if signed:
                due.set()

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = HTTPServer(("127.0.0.1" if url.hostname == "127.0.0.1" else "", port or url.port or 80), Delivery)
    except OSError as error:
        raise UserError(f"{address}: cannot listen on its port: {error.strerror}; --port names another") from error
    server.timeout = LOOK_S
    server.handle_timeout = due.set  # type: ignore[method-assign]
    with server, contextlib.ExitStack() as stack:
        with open_registry(root) as registry:
            if not registry.tracking.uri.startswith("http"):
                raise RegistryError(f"{registry.tracking.uri}: is a file; expected a server, which has webhooks")
            for hook in registry.client.list_webhooks():
                if hook.url == address:  # a killed process has left it, and its secret is lost
                    registry.client.delete_webhook(hook.webhook_id)
            made = registry.client.create_webhook(
                "plm-listen", address, ["model_version_alias.created", "model_version_alias.deleted"], secret=secret
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
                        yield from catch_up(root, registry)
                        alias = now
            except UserError as error:
                warn(str(error))
            due.clear()
            while not due.is_set():
                server.handle_request()


def _delete(root: Path, webhook: str) -> None:
    with contextlib.suppress(RegistryError), open_registry(root) as registry:
        registry.client.delete_webhook(webhook)
