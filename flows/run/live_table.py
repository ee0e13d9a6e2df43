"""What a person sees of a run: at a terminal a live table of its stages, and at the end where the time went.

Used by ``pipeline.py`` and the `plm` command. If output goes to a file or a pipe, Prefect's lines are unchanged.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from flows.processes.process import StageError
from flows.run import timing
from flows.run.graph import Stage
from flows.run.run_result import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PROGRESS = re.compile(r"\S+: (\d+)/(\d+) \(\d+%\), (\d+) s left *(.*)")
"""The format in which ``tasks/runtime/stage.py`` reports progress."""
WORTH_SAYING_S = 60.0
"""Shorter estimates are not shown."""
ENOUGH_S = 12.0
"""This machine's speed is judged once it has begun new stages that together usually take this long."""


@cache
def console() -> "Console":
    """The terminal, or any other stdout, which then gets room for a wide table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


class Stages(logging.Handler):
    """Follows the stages of a run: says how long they will still take, and shows those that run as a table.

    ``stage_event`` marks the lines with which a stage begins or ends: ``began``, ``done``, ``failed``, ``up to date``.
    """

    def __init__(self, stages: Sequence[Stage], took: Mapping[str, float], cores: int, table: bool) -> None:
        """``stages`` have to run; ``took`` are the seconds of those that have run on this machine before. With
        ``table``, warnings are printed above the table."""
        super().__init__()
        self._stages = {stage.name: stage for stage in stages}
        self._took, self._cores, self._table = took, cores, table
        self._began: dict[str, float] = {}
        """When a stage began (monotonic)."""
        self._lines: dict[str, str] = {}
        """The last line of each stage that runs."""
        self._ends: dict[str, float] = {}
        """When a stage that runs will end, as far as is known, or when it ended (monotonic)."""
        self._ended: dict[str, str] = {}
        """How a stage ended."""
        self._said = 0.0
        """When the run will end, by the last estimate that was shown."""
        if new := self._stages.keys() - took.keys():
            first = f"{len(new)} of these {len(stages)} stages are new to this machine"
            console().print(f"{first}: the time left is estimated once a few have ended", highlight=False)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a line of a stage, or a warning."""
        now = time.monotonic()
        text = record.getMessage()
        name = getattr(record, "task_run_name", None)
        event = getattr(record, "stage_event", "")
        if self._table and (record.levelno >= logging.WARNING or text.startswith("warning: ")):
            console().print(f"{name}: {text}" if name else text, style="yellow", markup=False, highlight=False)
        if name is None:
            return
        progress = PROGRESS.match(text)
        if event == "began":
            self._began[name], self._lines[name] = now, text
        elif event:
            self._lines.pop(name, None)
            self._ended[name], self._ends[name] = event, now
        elif name in self._lines:
            self._lines[name] = text
            if progress:
                self._ends[name] = now + int(progress[3])
        if name in self._stages and (event or progress):
            self._estimate(now)

    def _estimate(self, now: float) -> None:
        """Say how long the stages will still take once that is known, and again when it has changed by a third."""
        # Stages that are new to this machine are taken to be as much slower than usual as the new ones seen so far.
        seen = self._ends.keys() & self._began.keys() & self._stages.keys() - self._took.keys()
        usual = sum(timing.UNKNOWN_S[self._stages[name].gpu] for name in seen)
        if usual < ENOUGH_S and self._stages.keys() - self._took.keys() - self._ends.keys():
            return
        slower = sum(self._ends[name] - self._began[name] for name in seen) / usual if usual else 1.0
        ends: dict[str, float] = {}
        own: dict[str, float] = {}
        for stage in self._stages.values():
            begin = max((ends.get(upstream, now) for upstream in stage.upstream), default=now)
            length = self._took.get(stage.name, slower * timing.UNKNOWN_S[stage.gpu])
            estimate = self._ends.get(stage.name, self._began.get(stage.name, begin) + length)
            ends[stage.name] = max(now, estimate)
            own[stage.name] = ends[stage.name] - begin
        # The longest path, or, if there are fewer cores than stages, the work of all stages divided by the cores.
        end = max([now + sum(own.values()) / self._cores, *ends.values()])
        if end - now > WORTH_SAYING_S and abs(end - self._said) > (end - now) / 3:
            self._said = end
            longest = max(own, key=lambda name: round(own[name]))  # of equally long ones the first
            console().print(
                f"about {(end - now) / 60:.0f} min left, most of it for {longest}", markup=False, highlight=False
            )

    def __rich__(self) -> "Table":
        """The table of this moment."""
        from rich.table import Table

        how = [how for name, how in self._ended.items() if name in self._stages]
        failed = f", {how.count('failed')} failed" if "failed" in how else ""
        title = f"Stages: {len(how) - how.count('failed')} of {len(self._stages)} done{failed}"
        table = Table("stage", "for", "progress", "left", "", title=title, expand=True)
        for name, line in list(self._lines.items()):
            cells = ["", "", line]
            if progress := PROGRESS.match(line):
                cells = [f"{int(progress[1]) / int(progress[2]):.0%}", f"{progress[3]} s", progress[4]]
            cells[2] = cells[2].replace("[", "\\[")[:100]
            table.add_row(name, f"{time.monotonic() - self._began[name]:.0f} s", *cells)
        return table


def is_news(record: logging.LogRecord) -> bool:
    """Whether a line of Prefect's is news: the flow itself reports errors, and when a run or a stage begins or ends."""
    repeated = record.getMessage().startswith(("Finished in state", "Task run", "Beginning flow run", "View at"))
    return not repeated and not (record.exc_info and isinstance(record.exc_info[1], StageError))


@contextlib.contextmanager
def show_stages(stages: Sequence[Stage], took: Mapping[str, float], cores: int) -> Iterator[None]:
    """Show the stages that the block runs, and an estimate; at a terminal as a table instead of Prefect's lines.

    ``stages`` have to run; ``took`` are the seconds of those that have run on this machine before.
    """
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler
    from rich.live import Live

    setup_logging()
    log = logging.getLogger("prefect")  # all others pass their lines on to it
    table = sys.stdout.isatty()
    handler = Stages(stages, took, cores, table)
    replaced = [other for other in log.handlers if table and isinstance(other, PrefectConsoleHandler)]
    log.handlers = [*(other for other in log.handlers if other not in replaced), handler]
    live = Live(get_renderable=handler.__rich__, console=console(), refresh_per_second=2, transient=True)
    try:
        with live if table else contextlib.nullcontext():
            yield
    finally:
        log.handlers = [*(other for other in log.handlers if other is not handler), *replaced]


def show_summary(result: Result, whole: float, cores: int) -> None:
    """Say what ran, what did not and why, and where ``whole`` seconds went."""
    from rich.table import Table

    bad = [stage for stage in result.stages if not stage.ok]
    if bad:
        table = Table("stage", "outcome", "why")
        for stage in bad:
            table.add_row(stage.name, stage.outcome, stage.reason.replace("[", "\\["), style="red")
        console().print(table)
    current = len(result.stages) - len(result.ran) - len(bad)
    counts = [f"{len(result.ran)} ran"] * bool(result.ran) + [f"{current} up to date"] * bool(current)
    console().print(f"stages         {', '.join([*counts, *([f'{len(bad)} failed or not run'] if bad else [])])}")
    for what, how_long in timing.summary(result, whole, cores):
        console().print(f"{what:<15}{how_long}", highlight=False)
