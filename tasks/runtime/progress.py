"""Progress of long work: a line every few seconds."""

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

from tasks.parameters.machine_limits import leads

Item = TypeVar("Item")

LINE_EVERY_S = 5.0
"""Seconds between two lines."""


class Progress:
    """Says how much of ``total`` is done."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._start = self._last = monotonic()
        self._before = 0

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
        """Say, unless that was just done, that ``done`` of the total is done, with a note."""
        now = monotonic()
        if leads() and (done == self._total or now - self._last >= LINE_EVERY_S):
            self._last = now
            left = (now - self._start) * (self._total - done) / max(1, done - self._before)
            share = f"{done}/{self._total} ({done / self._total:.0%})"
            print(f"{self._what}: {share}, {left:.0f} s left  {note}", flush=True)
