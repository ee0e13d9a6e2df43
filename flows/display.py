"""What a person sees of a run: at a terminal a live table of its stages, and at the end where the time went.

Used by ``flows/pipeline.py`` and the `plm` command. If output goes to a file or a pipe, Prefect's lines are unchanged.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from flows import timing
from flows.failures import StageError
from flows.outcome import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PROGRESS = re.compile(r"\S+: (\d+)/(\d+) \(\d+%\), (\d+) s left +(.*)")
"""The format in which ``tasks/runtime/progress.py`` reports progress."""


@cache
def console() -> "Console":
    """The terminal, or any other stdout, which then gets room for a wide table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


class Stages(logging.Handler):
    """Receives what the flow logs about each stage, and shows the running ones as a table."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[str, tuple[float, str]] = {}
        """When it began (monotonic), and its last line."""
        self._ended: dict[str, int] = {}
        """How many stages ended how."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a line; what is wrong is also printed above the table."""
        name = getattr(record, "task_run_name", None)
        text = record.getMessage()
        if record.levelno >= logging.WARNING or text.startswith("warning: "):
            console().print(f"{name}: {text}" if name else text, style="yellow", markup=False, highlight=False)
        if name is None:
            return
        if text.startswith("runs: "):
            self._running[name] = (time.monotonic(), text)
        elif text == "up to date" or re.match(r"done in |failed: ", text):
            self._running.pop(name, None)
            how = text.split(":")[0].split(" in ")[0]
            self._ended[how] = self._ended.get(how, 0) + 1
        elif name in self._running:
            self._running[name] = (self._running[name][0], text)

    def __rich__(self) -> "Table":
        """The table of this moment."""
        from rich.table import Table

        ended = ", ".join(f"{number} {how}" for how, number in self._ended.items())
        title = f"Stages: {ended}" if ended else "Stages"
        table = Table("stage", "for", "progress", "left", "", title=title, expand=True)
        for name, (begun, line) in list(self._running.items()):
            found = _PROGRESS.match(line)
            share = ""
            left = ""
            note = line
            if found:
                share = f"{int(found[1]) / int(found[2]):.0%}"
                left = f"{found[3]} s"
                note = found[4]
            table.add_row(name, f"{time.monotonic() - begun:.0f} s", share, left, note.replace("[", "\\[")[:100])
        return table


def not_said_yet(record: logging.LogRecord) -> bool:
    """Whether a line of Prefect's is news: the flow itself reports errors, and when a run or a stage begins or ends."""
    known = record.getMessage().startswith(("Finished in state", "Task run", "Beginning flow run", "View at"))
    return not known and not (record.exc_info and isinstance(record.exc_info[1], StageError))


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show the stages that the block runs; at a terminal as a table instead of Prefect's lines."""
    if not sys.stdout.isatty():
        yield
        return
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler
    from rich.live import Live

    setup_logging()
    stages = Stages()
    replaced = []
    for logger in (logging.getLogger(name) for name in ("prefect", "prefect.flow_runs", "prefect.task_runs")):
        for handler in [each for each in logger.handlers if isinstance(each, PrefectConsoleHandler)]:
            logger.removeHandler(handler)
            replaced.append((logger, handler))
        logger.addHandler(stages)
    try:
        with Live(get_renderable=stages.__rich__, console=console(), refresh_per_second=2, transient=True):
            yield
    finally:
        for logger, handler in replaced:
            logger.removeHandler(stages)
            logger.addHandler(handler)


def show_end(result: Result, whole: float, cores: int) -> None:
    """Say what ran, what did not and why, and where ``whole`` seconds went."""
    from rich.table import Table

    bad = [stage for stage in result.stages if not stage.ok]
    if bad:
        table = Table("stage", "outcome", "why")
        for stage in bad:
            table.add_row(stage.name, stage.outcome, stage.reason.replace("[", "\\["), style="red")
        console().print(table)
    current = len(result.stages) - len(result.ran) - len(bad)
    said = [f"{len(result.ran)} ran"] * bool(result.ran) + [f"{current} up to date"] * bool(current)
    console().print(f"stages         {', '.join([*said, *([f'{len(bad)} failed or not run'] if bad else [])])}")
    for what, how_long in timing.summary(result, whole, cores):
        console().print(f"{what:<15}{how_long}", highlight=False)
