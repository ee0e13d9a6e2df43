"""A stopwatch with laps, on the clock of the device that does the work. Used by the loop's profiler.

On a GPU the laps are events in its stream: work is queued there faster than it is done, so that the host's clock would
give the time of one lap to another. Nobody waits for the device at a lap.
"""

from itertools import pairwise
from time import perf_counter

import torch


class Clock:
    """Adds up the seconds between laps, by the names of the laps; started when it is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.start()

    def start(self) -> None:
        """Begin anew: what has passed since the last split counts for nothing."""
        self._marks: list[tuple[str, float | torch.cuda.Event]] = [("", self._now())]

    def lap(self, name: str) -> None:
        """End the lap that began at the lap before, or at the start; its time is ``name``'s."""
        self._marks.append((name, self._now()))

    def split(self) -> dict[str, float]:
        """Seconds by name since the last split or start, adding up to the time from there to the last lap.

        Waits for the last lap's event on a GPU: call it where the device was waited for anyway.
        """
        marks, self._marks = self._marks, self._marks[-1:]
        last = marks[-1][1]
        if isinstance(last, torch.cuda.Event):
            last.synchronize()
        parts: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(marks):
            parts[name] = parts.get(name, 0.0) + _seconds(begin, end)
        return parts

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return begin.elapsed_time(end) / 1000
    assert isinstance(begin, float)
    assert isinstance(end, float)
    return end - begin
