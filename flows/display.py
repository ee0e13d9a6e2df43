"""What a person sees of a run: at a terminal a live table of its stages, and at the end where the time went.

Used by ``flows/pipeline.py`` and the `plm` command. If output goes to a file or a pipe, Prefect's lines are unchanged.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from flows import timing
from flows.failures import StageError
from flows.outcome import Result
from flows.stages import Stage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PROGRESS = re.compile(r"\S+: (\d+)/(\d+) \(\d+%\), (\d+) s left *(.*)")
"""The format in which ``tasks/runtime/progress.py`` reports progress."""
_ENDED = re.compile("(done|failed|up to date)(?: in |: |$)")
"""The line with which a stage ends."""
WORTH_SAYING_S = 60.0
"""An estimate of less is not shown."""
ENOUGH_S = 12.0
"""How long stages usually take of which enough is known to judge from them how fast this machine is."""


@cache
def console() -> "Console":
    """The terminal, or any other stdout, which then gets room for a wide table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


class Estimate(logging.Handler):
    """Says how long the stages will still take, as soon as that is known, and when it has changed by a third."""

    def __init__(self, stages: Sequence[Stage], took: Mapping[str, float], cores: int) -> None:
        """``stages`` have to run; ``took`` are the seconds of those that have run on this machine before."""
        super().__init__()
        self._stages = {stage.name: stage for stage in stages}
        self._took = took
        self._cores = cores
        self._began: dict[str, float] = {}
        """When a stage began (monotonic)."""
        self._ends: dict[str, float] = {}
        """When a stage that runs will end, as far as is known, or when it ended (monotonic)."""
        self._said = 0.0
        """When the run was said to end."""
        if new := self._stages.keys() - took.keys():
            first = f"{len(new)} of these {len(stages)} stages are new to this machine"
            console().print(f"{first}: how long the run takes is said once a few have ended", highlight=False)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a line of a stage."""
        name = getattr(record, "task_run_name", None)
        text = record.getMessage()
        now = time.monotonic()
        if name not in self._stages:
            return
        if text.startswith("runs: "):
            self._began[name] = now
        elif progress := _PROGRESS.match(text):
            self._ends[name] = now + int(progress[3])
        elif _ENDED.match(text):
            self._ends[name] = now
        else:
            return
        # Stages that are new to this machine are as much longer than usual as those of which more is known by now.
        seen = [name for name in self._ends.keys() & self._began.keys() if name not in self._took]
        usual = sum(timing.UNKNOWN_S[self._stages[name].gpu] for name in seen)
        if usual < ENOUGH_S and self._stages.keys() - self._took.keys() - self._ends.keys():
            return
        slower = sum(self._ends[name] - self._began[name] for name in seen) / usual if usual else 1.0
        ends: dict[str, float] = {}
        own: dict[str, float] = {}
        for stage in self._stages.values():
            begin = max((ends.get(upstream, now) for upstream in stage.upstream), default=now)
            length = self._took.get(stage.name, slower * timing.UNKNOWN_S[stage.gpu])
            known = self._ends.get(stage.name, self._began.get(stage.name, begin) + length)
            ends[stage.name] = max(now, known)
            own[stage.name] = ends[stage.name] - begin
        # The longest path, or, where there are fewer cores than stages, all of them one after another on each core.
        end = max([now + sum(own.values()) / self._cores, *ends.values()])
        if end - now > WORTH_SAYING_S and abs(end - self._said) > (end - now) / 3:
            self._said = end
            longest = max(own, key=lambda name: own[name])
            console().print(
                f"about {(end - now) / 60:.0f} min left, most of it for {longest}", markup=False, highlight=False
            )


class Stages(logging.Handler):
    """Receives what the flow logs about each stage, and shows the running ones as a table."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """``stages`` have to run."""
        super().__init__()
        self._names = {stage.name for stage in stages}
        self._running: dict[str, tuple[float, str]] = {}
        """When it began (monotonic), and its last line."""
        self._ended: dict[str, str] = {}
        """How a stage ended."""

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
        elif found := _ENDED.match(text):
            self._running.pop(name, None)
            self._ended[name] = found[1]
        elif name in self._running:
            self._running[name] = (self._running[name][0], text)

    def __rich__(self) -> "Table":
        """The table of this moment."""
        from rich.table import Table

        how = [how for name, how in self._ended.items() if name in self._names]
        failed = f", {how.count('failed')} failed" if "failed" in how else ""
        title = f"Stages: {len(how) - how.count('failed')} of {len(self._names)} done{failed}"
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
def shown(stages: Sequence[Stage], took: Mapping[str, float], cores: int) -> Iterator[None]:
    """Show the stages that the block runs, and an estimate; at a terminal as a table instead of Prefect's lines.

    ``stages`` have to run; ``took`` are the seconds of those that have run on this machine before.
    """
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler
    from rich.live import Live

    setup_logging()
    log = logging.getLogger("prefect")  # all others pass their lines on to it
    table = Stages(stages) if sys.stdout.isatty() else None
    added: list[logging.Handler] = [Estimate(stages, took, cores), *([table] if table else [])]
    replaced = [each for each in log.handlers if table and isinstance(each, PrefectConsoleHandler)]
    log.handlers = [*(each for each in log.handlers if each not in replaced), *added]
    live = (
        Live(get_renderable=table.__rich__, console=console(), refresh_per_second=2, transient=True) if table else None
    )
    try:
        with live or contextlib.nullcontext():
            yield
    finally:
        log.handlers = [*(each for each in log.handlers if each not in added), *replaced]


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
