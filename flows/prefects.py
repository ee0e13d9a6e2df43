"""A client of Prefect's configured server, for the commands, and the name of the flow."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows import server
from flows.outcome import UserError
from plm_core.shared.stores import shown

FLOW = "plm"
"""The flow's name in Prefect."""
TAG = "plm.checkout "
"""The start of the tag that names a deployment's checkout; the rest is as in the label of flow runs."""


@contextlib.contextmanager
def client(url: str) -> Iterator[Any]:
    """A synchronous client of the server at this address.

    Raises:
        UserError: a request in the block fails.
    """
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
                f"Prefect server at {shown(url)} asks for a password; expected its name:password"
            ) from error
        raise UserError(f"Prefect at {shown(url)}: {said(error)}") from error


def of_checkout(found: Any, root: Path) -> bool:
    """Whether a deployment or a flow run is this checkout's: by the checkout's name, or by its path if it has none.

    Checkouts of two machines may have the same path.
    """
    from flows.liveness import checkout_name

    names = [tag.removeprefix(TAG) for tag in found.tags if tag.startswith(TAG)]
    if "plm.checkout" in found.labels:
        names.append(found.labels["plm.checkout"])
    given = found.parameters.get("root")
    return checkout_name(root) in names if names else given is not None and Path(given).resolve() == root.resolve()


def said(error: Exception) -> str:
    """The message of an error, in one line and without the password of an address in it."""
    return " ".join(shown(str(error)).split())[:300]


def require(url: str, otherwise: str) -> None:
    """Raise UserError unless a server answers there and lets this user in; ``otherwise`` is what to do if none does."""
    server.reach(url, otherwise)
    with client(url) as opened:
        opened.hello()
