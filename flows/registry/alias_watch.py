"""Watches the alias ``champion``: one that a person moves in MLflow's UI is in the ledger at once. For ``plm watch``.

MLflow's webhooks would report the move, too, but only by HTTPS to a public address, not from a SQLite store, and up to
a minute late, because a server keeps its list of webhooks for so long. A look costs one request.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from flows.registry.mlflow_client import RegistryError, warn
from flows.registry.model_registry import CHAMPION, open_registry
from flows.registry.promotion import VersionOutcome, catch_up

EVERY_S = 2.0
AGAIN_S = 30.0
"""How long to wait for a server that has failed."""


def moves(root: Path) -> Iterator[VersionOutcome]:
    """What is new in the ledger because a person chose a champion, without end. Raises UserError: ``params.yaml``
    cannot be used."""
    alias: str | None = ""
    while True:
        try:
            with open_registry(root) as registry:
                while True:
                    now = registry.alias(CHAMPION)
                    # A command that is deciding at this moment records it itself.
                    if now != alias and not registry.ledger.unfinished():
                        yield from catch_up(root, registry)
                        alias = now
                    time.sleep(EVERY_S)
        except RegistryError as error:
            warn(f"{error}; looking again in {AGAIN_S:.0f} s")
            time.sleep(AGAIN_S)
