"""Screenshots of this checkout's MLflow, Prefect, report and terminal: ``make screenshots``.

Those of the documentation are written here; the report on every screen and the terminal into ``artifacts/screenshots``.
It needs Chromium, and a pipeline that has run here (``make demo``).
"""

import contextlib
import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
from browser import BINARY, Browser
from rich.console import Console
from rich.text import Text

from flows import flow_configs
from plm_core.shared import paths

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCREENS = ROOT / paths.ARTIFACTS / "screenshots"
START_S = 120.0
"""How long a server may take to respond."""
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""Keeps MLflow's page from opening its assistant."""


def main() -> None:
    """Take all screenshots."""
    if BINARY is None:
        sys.exit("error: no Chromium on this machine; expected chromium or google-chrome on the PATH")
    tracking, promotion = flow_configs.read_tracking(ROOT)
    client = mlflow.MlflowClient(tracking.uri)
    experiment = client.get_experiment_by_name(tracking.experiment)
    versions = client.search_model_versions(f"name = '{promotion.registered_model}'")
    if experiment is None or not versions:
        sys.exit(f"error: {tracking.uri} has no registered model; expected a pipeline that has run here (`make demo`)")
    newest = max(versions, key=lambda version: int(version.version))
    compared = json.dumps([version.run_id for version in versions[:3]])
    model = f"/models/{promotion.registered_model}"
    views = f"/experiments/{experiment.experiment_id}/runs"
    with served("mlflow", "/version") as address, Browser() as browser:
        browser.open(f"{address}/version", mlflow.__version__)
        browser.run(NO_ASSISTANT)
        compare = f'/compare-runs?runs={compared}&experiments=["{experiment.experiment_id}"]&'
        for name, height, place, shown in (
            ("mlflow-runs", 620, f"{views}?", "Open a view:"),
            ("mlflow-models", 600, f"{views}?viewStateShareKey=models&", "register-"),
            ("mlflow-compare", 1500, compare, "Parameters"),
            ("mlflow-model", 900, f"{model}?", "Version 1"),
            ("mlflow-version", 1700, f"{model}/versions/{newest.version}?", "What the gate compared"),
        ):
            browser.open(f"{address}/#{place}workflowType=machine_learning", shown)
            take(browser, name, height)
        browser.open((ROOT / paths.REPORT / "report.html").as_uri(), "Fine-tuning")
        take(browser, "report", 1900)
        SCREENS.mkdir(exist_ok=True)
        for width, dark in itertools.product((1280, 390), (False, True)):
            browser.picture(SCREENS / f"report-{width}-{'dark' if dark else 'light'}.png", width, 1900, dark)
        for words in ([], ["status"], ["run"]):
            terminal(browser, words)
        print(SCREENS)
    with served("prefect", "/api/health") as address, Browser() as browser:
        # The database is the user's, for all checkouts.
        done = {"sort": "START_TIME_DESC", "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        runs = answer_to(f"{address}/api/flow_runs/filter", done)
        if run := next((run for run in runs if run["parameters"].get("root") == str(ROOT)), None):
            browser.open(f"{address}/runs/flow-run/{run['id']}", run["name"])
            take(browser, "prefect-run", 950)


def take(browser: Browser, name: str, height: int) -> None:
    """Write a screenshot with this name."""
    browser.picture(HERE / f"{name}.png", 1500, height)
    print(HERE / f"{name}.png")


def terminal(browser: Browser, words: list[str]) -> None:
    """Write a screenshot of what ``plm`` with these words prints at a terminal."""
    command = [sys.executable, "-m", "flows.cli", *words]
    colored = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    printed = subprocess.run(command, cwd=ROOT, env=colored, capture_output=True, text=True, check=True).stdout
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(Text.from_ansi(printed))
    picture = SCREENS / f"{'-'.join(['terminal', *words])}.svg"
    # Without fonts from another host.
    svg = re.sub("@font-face {.*?}", "", console.export_svg(title=" ".join(["plm", *words])), flags=re.DOTALL)
    picture.write_text(svg, encoding="utf-8")
    browser.open(picture.as_uri())
    browser.picture(picture.with_suffix(".png"), 1280, 70 + 18 * printed.count("\n"))


@contextlib.contextmanager
def served(which: str, health: str) -> Iterator[str]:
    """The address of a user interface that ``plm ui`` serves during the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "flows.cli", "ui", which, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while not _answers(address + health):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"error: {' '.join(command)} does not respond")
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answer_to(address: str, question: dict[str, Any]) -> Any:
    """The answer to a question in JSON."""
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(question).encode(), headers)) as answer:
        return json.load(answer)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
