"""Prefect: flow runs of this checkout that ended long ago, with their logs. Only on a configured server."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from flows import server
from flows.prefects import FLOW, client, of_checkout
from flows.settings import Retention
from flows.waste.waste import Waste
from plm_core.shared.stores import shown

PAGE = 200
"""The most runs that Prefect returns at once."""


def flow_runs(root: Path, rules: Retention) -> Iterator[Waste]:
    """Flow runs that ended longer ago than the rules' ``days``."""
    url = server.configured_url()
    if url is None:
        return
    server.reach(url)
    with client(url) as opened:
        found = _old(opened, root, rules)
    if found:
        what = f"{len(found):,} flow runs at {shown(url)}, with their logs"
        yield Waste(what, f"ended more than {rules.days} days ago", None, partial(_delete, url, found))


def _old(opened: Any, root: Path, rules: Retention) -> list[Any]:
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter

    before = (datetime.now(UTC) - timedelta(days=rules.days)).isoformat()
    ended = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}}
    found: list[Any] = []
    while page := opened.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": [FLOW]}}),
        flow_run_filter=FlowRunFilter.model_validate({**ended, "end_time": {"before_": before}}),
        limit=PAGE,
        offset=len(found),
    ):
        found += page
    return [run.id for run in found if of_checkout(run, root)]


def _delete(url: str, runs: list[Any]) -> None:
    from prefect.exceptions import ObjectNotFound

    with client(url) as opened:
        for run in runs:
            with contextlib.suppress(ObjectNotFound):
                opened.delete_flow_run(run)
