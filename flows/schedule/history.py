"""The history of the schedule: when a run was due, began and ended, when the next is due, how full the disk was.

A small file records it, so that the next process can notify people of what has gone unreported: a run that did not
happen, one that was killed, a disk that fills up. Used by the flow, by ``plm deploy`` and by ``plm nights``.
"""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from flows.flow_configs import DAY_S
from flows.run.checkout import pipeline_began, pipeline_is_running
from flows.run.run_result import Result
from flows.schedule import notifications, prefect_server
from plm_core.shared.files import atomic_text, locked

REMEMBERED = ".dvc/tmp/plm-nights.json"
LATE_S = 900.0
"""How long after it was due a run may begin, unless the next one is due sooner."""
KEPT = 30
"""The number of runs whose free space is recorded."""
FULL_DAYS = 7.0
"""People are notified if the disk will be full within this many days."""
CLOCK = "was the clock changed? Then restart `plm deploy` or deploy again, or the schedule may wait until that time"


@dataclass
class ScheduleHistory:
    """The content of the file; times are seconds since 1970."""

    due: float = 0.0
    """When the last scheduled run was due, or when the schedule began."""
    next: float | None = None
    """When the next run is due; None without a schedule."""
    reported: float | None = None
    """When the last missed run that people were notified of was due."""
    killed: float | None = None
    """When the last killed run began, until people have been notified of it."""
    begun: float | None = None
    """When the last run began, on a schedule or not."""
    ended: float | None = None
    """When it ended; None while it runs, and if it was killed."""
    error: str = ""
    """Why it failed."""
    free: list[tuple[float, int]] = field(default_factory=list)
    """When runs ended, and the bytes that were left on the disk."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Read the file of a checkout; a file that is missing or cannot be read counts as empty."""
        try:
            return cls(**json.loads((root / REMEMBERED).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    def missed(self, now: float) -> str:
        """Which run did not happen, as a sentence; empty if none was missed."""
        if self.next is None:
            return ""
        if self.begun is not None and self.begun > now + LATE_S:
            return f"The last run began at {format_time(self.begun)}, which is in the future: {CLOCK}."
        # If runs are minutes apart, one is missed as soon as the next is due.
        if now - self.next > min(LATE_S, self.next - self.due):
            return f"The scheduled run that was due at {format_time(self.next)} did not begin."
        return ""

    def days_left(self) -> float | None:
        """In how many days the disk will be full, by a linear fit of its free space; None if it is not filling up.

        Also None before there are three runs over at least a day.
        """
        import statistics

        times = [at for at, _ in self.free]
        if len(times) < 3 or max(times) - min(times) < DAY_S:
            return None
        slope = statistics.linear_regression(times, [left for _, left in self.free]).slope
        return self.free[-1][1] / -slope / DAY_S if slope < 0 else None


def update(root: Path, **values: Any) -> ScheduleHistory:
    """Record these fields and return all; if the disk is full, this is only a warning."""
    path = root / REMEMBERED
    try:
        with locked(path.with_suffix(".lock")):
            nights = replace(ScheduleHistory.read(root), **values)
            atomic_text(path, json.dumps(asdict(nights)))
            return nights
    except OSError as error:
        print(f"warning: {path}: {error}; this run is not recorded", file=sys.stderr, flush=True)
        return replace(ScheduleHistory.read(root), **values)


@contextlib.contextmanager
def recorded_run(root: Path) -> Iterator[Callable[[Result], None]]:
    """Record the block as a run and notify people; the block passes its result to the function that is yielded."""
    # The previous run may have had no time to report how it ended.
    last = ScheduleHistory.read(root)
    if last.begun and not last.ended:
        update(root, killed=last.begun)
    notify_missed(root)
    # Until it ends, this run counts as interrupted: a killed process cannot correct that.
    error = "interrupted"
    update(root, begun=time.time(), ended=None, error=error, **prefect_server.due_of_this_run())

    def say(result: Result) -> None:
        nonlocal error
        error = result.error
        notifications.notify_result(root, result)

    try:
        yield say
    except Exception as raised:
        error = str(raised)
        notifications.notify(root, "failure", f"The run failed. {raised}")
        raise
    finally:
        now = time.time()
        left = shutil.disk_usage(root).free
        days = update(root, ended=now, error=error, free=[*last.free, (now, left)][-KEPT:]).days_left()
        if days is not None and days < FULL_DAYS:
            what = f"The disk has {left / 1e9:,.1f} GB left and will be full in {days:.1f} days"
            look = f"See `du -sh {root}/.dvc/cache {root}/artifacts/*`."
            notifications.notify(root, "disk", f"{what} at the rate of the last runs.", look)


def record_failure(root: Path, error: str) -> None:
    """Record that a scheduled run could not begin, and notify people."""
    now = time.time()
    update(root, begun=now, ended=now, error=error, **prefect_server.due_of_this_run())
    notifications.notify(root, "failure", f"The scheduled run could not begin. {error}")


def record_skip(root: Path, why: str) -> None:
    """Record that a scheduled run was skipped, and notify people unless a run has just begun in its place."""
    dates = prefect_server.due_of_this_run()
    update(root, **dates)
    # A run that has just begun also does this one's work; one that began long ago is holding up the schedule.
    if dates.get("next") and time.time() - pipeline_began(root) > (dates["next"] - dates["due"]) / 2:
        notifications.notify(root, "missed", f"The run that was due at {format_time(dates['due'])} was skipped: {why}.")


def record_schedule(root: Path, next_due: float | None) -> None:
    """Record that a schedule begins now, and when its first run is due; first report what was missed before."""
    notify_missed(root)
    update(root, due=time.time(), next=next_due)


def notify_missed(root: Path) -> str:
    """Notify people, once, of a scheduled run that did not happen, or of a run that was killed.

    The next call tries again if no address accepted the message. Returns the sentence on the missed run, or "".
    """
    nights = ScheduleHistory.read(root)
    missed = nights.missed(time.time())
    # A power failure also ends the process that would have reported it, so the next one does.
    if nights.killed:
        what = f"The run that began at {format_time(nights.killed)} was killed, or its machine went down."
        if notifications.notify(root, "failure", f"{what} The next one resumes its work."):
            update(root, killed=None)
    if missed and nights.reported != nights.next:
        look = "See `plm nights`; check that `plm deploy` and its server are running."
        update(root, reported=nights.next)  # before notifying, which takes a while: others may look meanwhile
        if not notifications.notify(root, "missed", missed, look):
            update(root, reported=nights.reported)
    return missed


def history_lines(root: Path) -> Iterator[str]:
    """What ``plm nights`` shows."""
    nights = ScheduleHistory.read(root)
    if nights.begun is None:
        yield "last run       none yet"
    else:
        how = f"failed: {nights.error}" if nights.error else "all well"
        ended = (
            f"ended {format_time(nights.ended)}, {how}"
            if nights.ended
            else "still running"
            if pipeline_is_running(root)
            else "killed"
        )
        yield f"last run       began {format_time(nights.begun)}, {ended}"
    yield f"next run       {'no schedule' if nights.next is None else f'due {format_time(nights.next)}'}"
    days = nights.days_left()
    yield f"disk           {'not known to be filling up' if days is None else f'full in {days:.1f} days'}"


def format_time(seconds: float) -> str:
    """A time in UTC, as schedules are written."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
