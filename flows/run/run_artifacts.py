"""What Prefect shows of a run besides its log: artifacts, under keys whose history it keeps. Used by ``flow.py``.

A key begins with the name of the checkout's folder, because a server may serve several checkouts.
"""

import contextlib
import contextvars
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import artifacts
from prefect.logging import get_run_logger

from flows.registry import registry_status
from flows.run.live_table import PROGRESS
from flows.run.overview import verdicts
from flows.run.run_result import Result
from plm_core.shared import paths
from plm_core.shared.errors import UserError

EVERY_S = 10.0
"""How often progress is sent; also how long a server that is away may delay the end of the stages."""


def publish(root: Path, result: Result, reason: str) -> None:
    """Show why each stage ran, the corpus, and the verdict; nothing if the run had nothing to do."""
    if result.ok and not result.ran and not result.models:
        return
    try:
        rows = [
            {"stage": of.name, "outcome": of.outcome, "seconds": round(of.spent.seconds, 1), "why": of.reason}
            for of in result.stages
        ]
        artifacts.create_table_artifact(rows, _key(root, "stages"), f"Why each stage ran. {reason}".strip())
        card = root / paths.CARD / "card.json"
        if result.ok and card.exists():
            text = _corpus(json.loads(card.read_text(encoding="utf-8")))
            artifacts.create_markdown_artifact(text, _key(root, "corpus"), "The key figures of the dataset card.")
        if result.ok:
            champion, text = _verdict(root, result, reason)
            artifacts.create_markdown_artifact(text, _key(root, "verdict"), champion)
    except Exception as error:  # noqa: BLE001 the run has ended well, whatever Prefect and MLflow raise
        get_run_logger().warning("not all artifacts are shown: %s", error)


@contextlib.contextmanager
def progress(root: Path) -> Iterator[None]:
    """Within the block, show how far each stage is that says so; a server that is away delays no stage."""
    log = logging.getLogger("prefect.task_runs")
    latest: dict[str, tuple[float, contextvars.Context]] = {}
    ended = threading.Event()

    def watch(record: logging.LogRecord) -> bool:
        if done := PROGRESS.match(record.getMessage()):
            # The context is that of the stage's task run, to which the artifact belongs.
            at = 100 * int(done[1]) / int(done[2])
            latest[getattr(record, "task_run_name", "")] = (at, contextvars.copy_context())
        return True

    def send() -> None:
        sent: dict[str, Any] = {}
        last = False
        while not last:
            last = ended.wait(EVERY_S)
            while latest:
                name, (percent, context) = latest.popitem()
                with contextlib.suppress(Exception):  # its next line is sent again
                    if name in sent:
                        artifacts.update_progress_artifact(sent[name], percent)
                    else:
                        made = (percent, _key(root, name), f"How far {name} is.")
                        sent[name] = context.run(artifacts.create_progress_artifact, *made)

    log.addFilter(watch)
    # With this context, because it has the address of the server.
    thread = threading.Thread(target=contextvars.copy_context().run, args=[send], daemon=True)
    thread.start()
    try:
        yield
    finally:
        log.removeFilter(watch)
        ended.set()
        thread.join(EVERY_S)


def _key(root: Path, what: str) -> str:
    """The key of an artifact, in the characters that Prefect allows."""
    return re.sub(r"[^a-z0-9]+", "-", f"{root.resolve().name}-{what}".lower()).strip("-")


def _verdict(root: Path, result: Result, reason: str) -> tuple[str, str]:
    """Who is champion; and why, the decisions of this run, the head of the report, and where to look next."""
    lines = [f"Reason of this run: {reason}"] * bool(reason)
    headline = "No champion yet"
    look: list[str] = []
    with contextlib.suppress(UserError):  # a graph without models has no registry
        registry = registry_status.registry_status(root)
        name = registry["model"]
        if champion := next((of for of in registry["versions"] if "champion" in of["aliases"]), None):
            headline = f"Champion: {name} version {champion['version']}"
            lines.append(f"**{headline}** ({champion['stage']}): {champion['reasons']}")
        served = registry["tracking_uri"].startswith("http")
        address = f"{registry['tracking_uri'] if served else 'http://127.0.0.1:5000'}/#/models/{name}"
        look = [f"MLflow: [{address}]({address}){'' if served else ', while `plm ui mlflow` runs'}"]
    lines += ["### This run"] * bool(result.models)
    lines += [f"- version {of.version} ({of.stage}) **{of.action}**: {'; '.join(of.reasons)}" for of in result.models]
    report = (root / paths.REPORT).resolve() / "report.html"
    # A run of some models leaves out the stage of the report.
    if "report" in {of.name for of in result.stages} and (sentences := verdicts(root)):
        lines += ["### The report", *(f"- **{of['headline']}**, {of['figures']}" for of in sentences)]
        look.insert(0, f"Report: [{report}]({report.as_uri()}) on {socket.gethostname()}")
    return headline, "\n\n".join(filter(None, [*lines, *look]))


def _corpus(card: dict[str, Any]) -> str:
    """The sizes of the splits, and what was removed from the sources or occurs in evaluations."""
    lines = ["| split | documents | bytes |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {of['documents']:,} | {of['bytes']:,} |" for name, of in card["splits"].items()]
    counts = {
        "Languages": card["languages"],
        "Removed": {f"{of['rule']} ({of['level']}s)": of["texts"] for of in card["removed"]},
        "Overlap with": card["contamination"]["found"],
    }
    lines.append(f"\n**Sources**: {', '.join(card['sources'])}")
    lines += [
        f"\n**{what}**: {', '.join(f'{k} {n:,}' for k, n in of.items()) or 'none'}" for what, of in counts.items()
    ]
    return "\n".join(lines)
