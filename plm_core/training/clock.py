"""A stopwatch with laps, on the clock of the device that does the work. Used by the speed monitor.

On a GPU the laps are events in its stream: work is queued there faster than it is done, so the host's clock would
attribute the time of one lap to another. A lap does not wait for the device.
"""

from itertools import pairwise
from time import perf_counter
from typing import Any

import torch


class Clock:
    """Adds up the seconds of laps by their names; it starts when it is created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.start()

    def start(self) -> None:
        """Start again: time since the last split is not counted."""
        self._marks: list[tuple[str, Any]] = [("", self._now())]

    def lap(self, name: str) -> None:
        """End the lap that began at the previous lap or at the start; its time counts for ``name``."""
        self._marks.append((name, self._now()))

    def split(self) -> dict[str, float]:
        """Seconds by name since the last split or start, adding up to the time from there to the last lap.

        On a GPU it waits for the last lap's event: call it right after another wait for the device.
        """
        marks = self._marks
        self._marks = self._marks[-1:]
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            marks[-1][1].synchronize()
        parts: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(marks):
            seconds = begin.elapsed_time(end) / 1000 if on_gpu else end - begin
            parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def _now(self) -> Any:
        """A time in seconds, or on a GPU an event."""
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
