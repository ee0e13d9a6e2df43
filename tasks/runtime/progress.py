"""Progress of long work: a live bar on a terminal, a plain line every few seconds in a log."""

import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tasks.settings.machine import leads

Item = TypeVar("Item")

LINE_EVERY_S = 5.0
"""Seconds between two lines in a log."""


class ProgressBar:
    """Shows how much of ``total`` is done."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._start = self._last = monotonic()
        self._before = 0
        self._bar: Progress | None = None
        if leads() and sys.stdout.isatty():
            columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total}", TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"))
            self._task = self._bar.add_task(what, total=total, note="")

    def __enter__(self) -> "ProgressBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Count the items, which may come in groups: the first took as long as its group, and does not count in the
        estimate of the time left."""
        for done, item in enumerate(items, 1):
            if done == 1:
                self.resume(1)
            self.update(done)
            yield item

    def resume(self, done: int) -> None:
        """``done`` of the total were done before now, and do not count in the estimate of the time left."""
        self._start = self._last = monotonic()
        self._before = done

    def update(self, done: int, note: str = "") -> None:
        """Show that ``done`` of the total is done, with a note."""
        now = monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
        elif not leads():
            return
        elif done == self._total or now - self._last >= LINE_EVERY_S:
            self._last = now
            left = (now - self._start) * (self._total - done) / max(1, done - self._before)
            share = f"{done}/{self._total} ({done / self._total:.0%})"
            print(f"{self._what}: {share}, {left:.0f} s left  {note}", flush=True)
