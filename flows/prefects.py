"""A client of Prefect's configured server. Used by ``plm doctor`` and ``plm gc``; the flow's name also by the flow."""

import contextlib
from collections.abc import Iterator
from typing import Any

from flows.outcome import UserError

FLOW = "plm"
"""The flow's name there."""


@contextlib.contextmanager
def client(url: str) -> Iterator[Any]:
    """A synchronous client of the server at this address.

    Raises:
        UserError: it fails in the block.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL, temporary_settings

    try:
        with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as opened:
            yield opened
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise UserError(f"Prefect at {url}: {' '.join(str(error).split())[:300]}") from error
