"""Tells people what happened, by e-mail, Slack or any webhook. Used by the flow, ``nights.py`` and the `plm` command.

The addresses are secrets and stay in the environment. Only a process of its own, ``python -m flows.notify``, reads
them; it knows apprise, which sends, and what the two print is thrown away, for it may show an address.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows import settings
from flows.outcome import Result, UserError
from plm_core.shared import paths
from plm_core.shared.notices import Event
from plm_core.shared.statuses import BUDGET_SPENT

LIMIT_S = 60.0
"""How long sending may take before the pipeline goes on without it."""

RUNS = f"See {paths.REPORT}/report.html, `plm status`, `plm ui prefect` (logs) and `plm ui mlflow` (curves)."
MODELS = "See `plm status`; `plm rollback --reason ...` makes the champion before it the champion again."
BUDGET = "Set a higher PLM_BUDGET and `plm run`: it goes on from its snapshot."
EVENTS: dict[str, Event] = {
    "promoted": "promotion",
    "promoted by hand": "promotion",
    "moved in the UI": "promotion",
    "refused": "refusal",
    "rolled back": "rollback",
}
"""What became of a model version, as an event."""


def tell(root: Path, event: Event, what: str, look: str = RUNS) -> None:
    """Send a message of what happened and where to look; one that cannot be sent is a warning on stderr."""
    config = settings.notify(root)
    if event in config.events and (problem := send(root, event, f"{what}\n\n{look}")):
        print(f"warning: notify: the {event} may have reached nobody: {problem}", file=sys.stderr, flush=True)


def test(root: Path) -> None:
    """Send a message that says that it is a test.

    Raises:
        UserError: there is no address, or one of them does not take it.
    """
    name = settings.notify(root).urls_from
    if not os.environ.get(name):
        raise UserError(f"{name}: not set here, so nobody is told; expected addresses as apprise writes them")
    if problem := send(root, "test", "This is a test: whoever reads it is told."):
        raise UserError(problem)
    print(f"sent to the addresses in {name}")


def tell_result(root: Path, result: Result) -> None:
    """Tell of a run what is worth a message: that it failed, whose budget is spent, which models were judged."""
    failed = [stage for stage in result.stages if stage.outcome == "failed"]
    spent = [stage for stage in failed if stage.status == BUDGET_SPENT]
    others = [f"{stage.name}: {stage.reason}" for stage in failed if stage.status != BUDGET_SPENT]
    for stage in spent:
        tell(root, "budget", f"{stage.reason}.", BUDGET)
    if result.error and (others or not spent):
        tell(root, "failure", f"The run failed. {'; '.join(others) or result.error}")
    tell_models(root, result.models)


def tell_models(root: Path, outcomes: Iterable[Any]) -> None:
    """Tell what became of model versions, each an ``Outcome`` of ``promotion.py``."""
    for each in outcomes:
        if event := EVENTS.get(each.action):
            what = f"Version {each.version} ({each.stage}) was {each.action}: {'; '.join(each.reasons)}"
            tell(root, event, what, MODELS)


def send(root: Path, subject: str, text: str) -> str:
    """Send a message to all addresses; returns what went wrong, without any of them, or nothing."""
    name = settings.notify(root).urls_from
    if not os.environ.get(name):
        return ""
    where = f"{root.resolve()} on {socket.gethostname()}"
    message = json.dumps({"from": name, "title": f"plm: {subject} in {where}", "body": f"{text}\n\n{where}"})
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(command, input=message, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # not the errors' words: they hold the message
        return f"{name}: sending took longer than {LIMIT_S:g} s"
    return done.stdout.strip() if done.returncode == 0 else f"{name}: apprise ended with {done.returncode}"


def _send(message: dict[str, str]) -> str:
    """Send it to each address that the environment holds; returns which of them did not take it, by their number."""
    import apprise
    from apprise.utils.parse import parse_urls

    name = message["from"]
    addresses = parse_urls(os.environ[name])
    failed = []
    for number, address in enumerate(addresses, start=1):
        one = apprise.Apprise()
        if not one.add(address):
            failed.append(f"address {number} is none that apprise knows")
        elif not one.notify(title=message["title"], body=message["body"]):
            failed.append(f"address {number} did not take it (is it right, and reachable from here?)")
    if not addresses:
        failed.append("it holds no address")
    return f"{name}: {'; '.join(failed)}" if failed else ""


if __name__ == "__main__":
    print(_send(json.load(sys.stdin)))
