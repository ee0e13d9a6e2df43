"""What trainings take of their machine: points for MLflow, a note for the terminal, a file for a page.

Each training keeps ``artifacts/meters/<stage>.json``. It is no output of its stage, for it is not the same on another
machine. ``meters.py`` makes a page of them all.
"""

import json
import sys
from dataclasses import asdict, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from pydantic.dataclasses import dataclass

from plm_core.config import STRICT, UserError, from_dict
from plm_core.files import atomic_text
from plm_core.shared import paths
from plm_core.training.device import Device
from plm_core.training.profiler import Throughput, device_name
from tasks.settings.machine import budget, leads, price

GIB = 1 << 30


@dataclass(config=STRICT)
class Taken:
    """What a training has taken so far: the content of its file, sums over the processes that did it."""

    stage: str
    """Its name in ``dvc.yaml``, with its key."""
    training: str
    """Names all that the training depends on: a process with the same goes on from the one before."""
    device: str
    threads: int
    finished: bool = False
    steps: int = 0
    positions: int = 0
    seconds: float = 0.0
    """Wall clock, all included."""
    timed_positions: int = 0
    timed_seconds: float = 0.0
    """Without first reports, validations and snapshots, as the three below."""
    split: dict[str, float] = field(default_factory=dict)
    """Seconds."""
    mfu_measured: float | None = 0.0
    mfu_datasheet: float | None = 0.0
    """Fractions times seconds: divide by ``timed_seconds``."""
    peak_memory: int = 0
    joules: float | None = 0.0
    cost: float | None = 0.0

    def add(self, meters: Throughput, steps: int, first: bool) -> None:
        """Add the meters of so many steps; one that is not known makes its sum unknown."""
        self.steps += steps
        self.positions += meters.positions
        self.peak_memory = max(self.peak_memory, meters.peak_memory)
        self.joules = _sum(self.joules, meters.joules)
        if first:
            return
        self.timed_positions += meters.positions
        self.timed_seconds += meters.seconds
        for name, seconds in meters.split.items():
            self.split[name] = self.split.get(name, 0.0) + seconds
        self.mfu_measured = _sum(self.mfu_measured, meters.mfu_measured, meters.seconds)
        self.mfu_datasheet = _sum(self.mfu_datasheet, meters.mfu_datasheet, meters.seconds)


class CostReport:
    """Follows the meters of one training: ``add`` each report, then take its ``points`` and its ``note``.

    On leaving the block its file is written; a disk that does not take it is a warning.
    """

    def __init__(self, stage: str, training: str, device: Device, bytes_per_position: float | None = None) -> None:
        """``stage`` and ``training`` are as in ``Taken``; ``bytes_per_position`` is None where it is not known.

        Raises:
            UserError: ``PLM_PRICE_PER_HOUR`` is no price, or ``PLM_BUDGET`` no budget.
        """
        self._price = price()
        self._budget = budget()
        self._per_position = bytes_per_position
        self.taken = Taken(stage, training, device_name(device.device), device.threads)
        before = read(paths.METERS / f"{stage}.json")
        if before is not None and before.training == training and not before.finished:
            before.device, before.threads = self.taken.device, self.taken.threads
            self.taken = before
        self._since = monotonic()
        self._read_so_far = 0
        self._last: tuple[Throughput, int, bool] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pay()
        self.taken.finished = kind is None
        self._keep()

    def add(self, steps: int, read: int, meters: Throughput | None, first: bool) -> None:
        """A report about so many steps, its meters (None for a restored one), and positions read in all until then."""
        self._read_so_far = read
        self._last = None
        if meters is not None:
            self._pay()
            self.taken.add(meters, steps, first)
            self._last = meters, steps, first
            if self._budget:
                self._keep()  # what was spent stays spent, even if this process is killed

    def overspent(self) -> str:
        """That the training has cost what it may by now, as a sentence; empty as long as it may go on."""
        if self._budget is None or self._price is None:
            return ""
        self._pay()
        # Hours of a process that knew no price cost what they do now.
        cost = self.taken.seconds / 3600 * self._price if self.taken.cost is None else self.taken.cost
        said = f"{self.taken.stage} has cost {cost:.4g} of {self._budget:g} (PLM_BUDGET)"
        return said if cost >= self._budget else ""

    def points(self) -> dict[str, float]:
        """The last report for MLflow, by names that say the unit; what is not known is absent.

        ``seconds_<lap>`` are of one step, ``seconds``, ``joules`` and ``cost`` of all that was measured so far,
        ``bytes_seen`` of all steps so far.
        """
        if self._last is None:
            return {}
        meters, steps, first = self._last
        points: dict[str, float | None] = {
            "seconds": self.taken.seconds,
            "peak_memory_gib": meters.peak_memory / GIB,
            "joules": self.taken.joules,
            "cost": self.taken.cost,
            "bytes_seen": None if self._per_position is None else self._read_so_far * self._per_position,
        }
        if not first:
            points |= {
                "tokens_per_second": meters.tokens_per_second,
                "mfu_measured": meters.mfu_measured,
                "mfu_datasheet": meters.mfu_datasheet,
            }
            points |= {f"seconds_{name}": seconds / steps for name, seconds in meters.split.items()}
        return {name: value for name, value in points.items() if value is not None}

    def note(self) -> str:
        """The last report for the terminal: speed, MFU (of the measured rate) and peak memory; "" when restored."""
        if self._last is None:
            return ""
        meters, _, first = self._last
        parts = [] if first else [f"{meters.tokens_per_second:,.0f} tokens/s"]
        if not first and meters.mfu_measured is not None:
            parts.append(f"{meters.mfu_measured:.0%} MFU".replace("%", " %"))
        return ", ".join([*parts, f"{meters.peak_memory / GIB:.1f} GiB"])

    def _keep(self) -> None:
        if not leads():
            return
        try:
            write(self.taken)
        except OSError as failure:
            print(f"warning: {paths.METERS}: {failure}; the meters are not kept", file=sys.stderr, flush=True)

    def _pay(self) -> None:
        """Add the wall clock since the last time, and what it costs."""
        now = monotonic()
        passed = now - self._since
        self._since = now
        self.taken.seconds += passed
        self.taken.cost = _sum(self.taken.cost, self._price, passed / 3600)


def write(taken: Taken) -> None:
    """Write a training's file."""
    atomic_text(paths.METERS / f"{taken.stage}.json", json.dumps(asdict(taken), indent=2) + "\n")


def read(file: Path) -> Taken | None:
    """The content of a training's file; None when there is none, or one of another version."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        return from_dict(Taken, content, file.name)
    except (OSError, ValueError, UserError):
        return None


def _sum(total: float | None, more: float | None, times: float = 1.0) -> float | None:
    """``total`` + ``more`` x ``times``; None when one of them is not known."""
    return None if total is None or more is None else total + more * times
