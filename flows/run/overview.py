"""Where a checkout stands and what to do next: what `plm` alone shows, and the end of ``plm run``. It reads what the
last runs have left: DVC is not asked, nor, while a local registry is unchanged, MLflow."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.registry import registry_status
from flows.run.checkout import pipeline_is_running
from flows.run.live_table import console
from flows.schedule.history import ScheduleHistory, history_lines
from plm_core.shared import paths


def verdicts(root: Path) -> list[dict[str, Any]]:
    """What the report says of each quantity (``tasks/reporting/verdict.py``); empty without a report."""
    file = root / paths.REPORT / "verdict.json"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else []


def show(root: Path) -> None:
    """Print the last run, the verdicts on versions and quantities, a line each, and what to do next. Raises what
    ``registry_status`` raises."""
    line = partial(console().print, highlight=False, no_wrap=True, overflow="ellipsis")
    last = ScheduleHistory.read(root)
    reported = verdicts(root)
    line(escape(next(history_lines(root))))
    further = {"plm status": "stages to run, what the gate compared", "plm ui mlflow": "runs, curves, registry"}
    if pipeline_is_running(root):
        further = {"plm ui prefect": "its stages and their logs", "plm ui mlflow": "its curves"}
    elif last.begun is None and not reported:
        further = {"plm init FOLDER": "propose parameters for your own text", "plm run": "run the pipeline"}
        further["plm --help"] = "all commands"
    else:
        registry = registry_status.registry_status(root)
        for sentence in registry_status.sentences(registry):
            line(sentence)
        for of in reported[:4]:  # what the report says first
            line(f"[bold]{escape(of['headline'])}[/bold], {escape(of['figures'])}")
        newest = registry["versions"][:1]
        refused = [of["version"] for of in newest if of["gate"] == "refused" and "champion" not in of["aliases"]]
        if last.error:
            further = {"plm run": "run what is left", "plm doctor": "find problems", "plm ui prefect": "logs"}
        elif registry["unsettled"]:
            further = {"plm run": "complete the decision"} | further
        elif refused:
            further = {f"plm compare {refused[0]} champion": "what the gate refused"} | further
        else:
            further["plm ui prefect"] = "flow runs, schedules, logs"
        if reported:
            line(f"report         {paths.REPORT}/report.html")
    for command, why in further.items():
        line(f"[bold]{command:<24}[/bold]{why}")
