"""Notifies people, by e-mail, Slack or any webhook, and Prefect's automations, by its events.

Used by the flow, ``history.py`` and the `plm` command. The addresses are secrets: they stay in the environment, and
what apprise logs is discarded, because it may show them.
"""

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from flows import flow_configs
from flows.registry.ledger import ROLLED_BACK
from flows.run.run_result import Result
from flows.schedule import prefect_server
from plm_core.shared import paths
from plm_core.shared.errors import BUDGET_SPENT, UserError
from plm_core.shared.options import Event

LIMIT_S = 60.0
"""How long sending may take before the pipeline continues without it."""

RUNS = f"See {paths.REPORT}/report.html, `plm status`, `plm ui prefect` (logs) and `plm ui mlflow` (curves)."
MODELS = "See `plm status`; `plm rollback --reason ...` makes the previous champion the champion again."
BUDGET = "Raise PLM_BUDGET and call `plm run`: training resumes from its snapshot."
EVENTS: dict[str, tuple[Event, str]] = {
    "promoted": ("promotion", "Version {} was promoted"),
    "promoted by hand": ("promotion", "Version {} was promoted by hand"),
    "moved in the UI": ("promotion", "Version {} was made the champion in MLflow"),
    "refused": ("refusal", "Version {} was refused"),
    ROLLED_BACK: ("rollback", "Rolled back to version {}"),
}
"""The event of each action, and the message about the version."""
EMITTED = {"promotion": "champion.promoted", "refusal": "champion.refused", "rollback": "champion.rolled-back"}
EMITTED |= {"missed": "night.missed"}
"""What Prefect's automations can react to, whichever events people want messages of."""


def notify(root: Path, event: Event, what: str, look: str = RUNS, version: str = "") -> bool:
    """Send a message of what happened, to which version, and where to look; if it cannot be sent, print a warning on
    stderr.

    Returns:
        Whether there is nothing left to try: an address accepted it, or nobody wants it.
    """
    if event in EMITTED:
        _emit(root, f"plm.{EMITTED[event]}", what, version)
    if event not in flow_configs.read_notify(root).events:
        return True
    sent, problem = send(root, event, f"{what}\n\n{look}")
    if problem:
        what = f"the {event} message may not have been delivered: {problem}"
        print(f"warning: notify: {what}", file=sys.stderr, flush=True)
    return sent


def test(root: Path) -> None:
    """Send a test message. Raises UserError: there is no address, or one of them does not accept it."""
    name = flow_configs.read_notify(root).urls_from
    if not os.environ.get(name):
        raise UserError(f"{name}: not set here, so nobody is notified; expected addresses in apprise's format")
    _, problem = send(root, "test", "This is a test: notifications reach this address.")
    if problem:
        raise UserError(problem)
    print(f"sent to the addresses in {name}")


def notify_result(root: Path, result: Result) -> None:
    """Send what is worth a message about a run: that it failed, whose budget is spent, which models were judged."""
    # A spent budget is no failure: the run resumes as soon as there is more.
    failed = [stage for stage in result.stages if stage.outcome == "failed"]
    spent = [stage for stage in failed if stage.status == BUDGET_SPENT]
    others = [f"{stage.name}: {stage.reason}" for stage in failed if stage.status != BUDGET_SPENT]
    for stage in spent:
        notify(root, "budget", f"{stage.reason}.", BUDGET)
    if result.error and (others or not spent):
        notify(root, "failure", f"The run failed. {'; '.join(others) or result.error}")
    notify_models(root, result.models)


def notify_models(root: Path, outcomes: Iterable[Any]) -> None:
    """Send what became of model versions, each a ``VersionOutcome`` of ``promotion.py``."""
    for outcome in outcomes:
        if outcome.action in EVENTS:
            event, message = EVENTS[outcome.action]
            what = message.format(f"{outcome.version} ({outcome.stage})")
            notify(root, event, f"{what}: {'; '.join(outcome.reasons)}", MODELS, outcome.version)


def _emit(root: Path, event: str, what: str, version: str) -> None:
    """Emit an event about a version, or else about the checkout, if a Prefect server is configured; a warning if it
    fails."""
    if not (url := prefect_server.configured_url()):
        return
    try:
        prefect_server.require_answer(url)
        from prefect.events import emit_event

        checkout = f"{socket.gethostname()}{root.resolve()}"
        resource = f"plm.checkout.{checkout}"
        if version:
            resource = f"plm.model.{flow_configs.read_tracking(root)[1].registered_model}.{version}"
        emit_event(event, {"prefect.resource.id": resource, "plm.checkout": checkout}, payload={"message": what})
    except Exception as error:  # noqa: BLE001 the decision has been made, whatever Prefect raises
        print(f"warning: {event} may not have reached Prefect: {prefect_server.error_text(error)}", file=sys.stderr)


def send(root: Path, subject: str, text: str) -> tuple[bool, str]:
    """Send a message to all addresses.

    Returns:
        Whether one of them accepted it or there is none; and what went wrong, without naming an address.
    """
    name = flow_configs.read_notify(root).urls_from
    if not os.environ.get(name):
        return True, ""
    where = f"{root.resolve()} on {socket.gethostname()}"
    failed: list[str] = []
    answer: Future[bool] = Future()

    def deliver() -> None:
        try:
            import apprise
            from apprise.utils.parse import parse_urls

            logging.getLogger("apprise").disabled = True
            addresses = parse_urls(os.environ[name])
            for number, address in enumerate(addresses, start=1):
                channel = apprise.Apprise()
                if not channel.add(address):
                    failed.append(f"address {number} is not one that apprise recognises")
                elif not channel.notify(title=f"plm: {subject} in {where}", body=f"{text}\n\n{where}"):
                    failed.append(
                        f"address {number} did not accept it (is the address correct, and reachable from here?)"
                    )
            if not addresses:
                failed.append("it contains no address")
            answer.set_result(len(failed) < len(addresses))
        except Exception as error:  # noqa: BLE001 whatever apprise raises, the pipeline continues
            answer.set_exception(error)

    # A daemon, because nobody can end a thread that waits for a server.
    threading.Thread(target=deliver, daemon=True).start()
    try:
        return answer.result(LIMIT_S), f"{name}: {'; '.join(failed)}" if failed else ""
    except TimeoutError:
        return False, f"{name}: sending took longer than {LIMIT_S:g} s"
    except Exception as error:  # noqa: BLE001 without its text, which may contain an address
        return False, f"{name}: apprise failed with {type(error).__name__}"
