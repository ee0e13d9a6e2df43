"""What training runs cost: points for MLflow, a note for the terminal, a file for a page (``cost_page.py``).

The file, ``artifacts/meters/<stage>.json``, is not an output of its stage, because it differs between machines.
"""

import json
import sys
from dataclasses import asdict, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from pydantic.dataclasses import dataclass

from plm_core.config import STRICT, UserError, from_dict
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.training.callbacks.speed_monitor import Throughput, device_name
from plm_core.training.device import Device
from tasks.parameters.environment_limits import budget, leads, price

GIB = 1 << 30


@dataclass(config=STRICT)
class Taken:
    """What a training run has cost so far: the content of its file, summed over its processes."""

    stage: str
    """Its name in ``dvc.yaml``, with its key."""
    training: str
    """Identifies everything that the training run depends on: a process with the same value continues its sums."""
    device: str
    threads: int
    finished: bool = False
    steps: int = 0
    positions: int = 0
    seconds: float = 0.0
    """Wall-clock time of everything."""
    timed_positions: int = 0
    timed_seconds: float = 0.0
    """Without first reports, validations and snapshots, like the next three."""
    split: dict[str, float] = field(default_factory=dict)
    """Seconds."""
    mfu_measured: float | None = 0.0
    mfu_datasheet: float | None = 0.0
    """Fractions times seconds: divide by ``timed_seconds``."""
    peak_memory: int = 0
    joules: float | None = 0.0
    cost: float | None = 0.0


class CostReport:
    """Collects the costs of one training run: ``add`` each report, then take its ``points`` and ``note``.

    Its file is written when the block is left; a full disk is only a warning.
    """

    def __init__(self, stage: str, training: str, device: Device, bytes_per_position: float | None = None) -> None:
        """``stage`` and ``training`` are as in ``Taken``; ``bytes_per_position`` is None if it is not known.

        Raises:
            UserError: ``PLM_PRICE_PER_HOUR`` is not a price, or ``PLM_BUDGET`` is not a budget.
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
        self.points: dict[str, float] = {}
        """The last report for MLflow, by names that contain the unit; unknown values are absent. ``seconds_<lap>`` are
        per step; ``seconds``, ``joules`` and ``cost`` are totals of what was measured, ``bytes_seen`` of all steps."""
        self.note = ""
        """The last report for the terminal: speed, MFU (of the measured rate) and peak memory; "" when restored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pay()
        self.taken.finished = kind is None
        self._keep()

    def add(self, steps: int, read: int, meters: Throughput | None, first: bool) -> None:
        """Add a report on this many steps: the positions read in total so far, and its meters (None if restored).

        An unknown measurement makes its sum unknown.
        """
        self.points = {}
        self.note = ""
        if meters is None:
            return
        self._pay()
        taken = self.taken
        taken.steps += steps
        taken.positions += meters.positions
        taken.peak_memory = max(taken.peak_memory, meters.peak_memory)
        taken.joules = _sum(taken.joules, meters.joules)
        memory = meters.peak_memory / GIB
        points: dict[str, float | None] = {
            "seconds": taken.seconds,
            "peak_memory_gib": memory,
            "joules": taken.joules,
            "cost": taken.cost,
            "bytes_seen": None if self._per_position is None else read * self._per_position,
        }
        notes = []
        # Speed is that of steps after the first report, which compiles and warms up.
        if not first:
            taken.timed_positions += meters.positions
            taken.timed_seconds += meters.seconds
            for name, seconds in meters.split.items():
                taken.split[name] = taken.split.get(name, 0.0) + seconds
            taken.mfu_measured = _sum(taken.mfu_measured, meters.mfu_measured, meters.seconds)
            taken.mfu_datasheet = _sum(taken.mfu_datasheet, meters.mfu_datasheet, meters.seconds)
            points |= {
                "tokens_per_second": meters.tokens_per_second,
                "mfu_measured": meters.mfu_measured,
                "mfu_datasheet": meters.mfu_datasheet,
            }
            points |= {f"seconds_{name}": seconds / steps for name, seconds in meters.split.items()}
            notes = [f"{meters.tokens_per_second:,.0f} tokens/s"]
            notes += [] if meters.mfu_measured is None else [f"{100 * meters.mfu_measured:.0f} % MFU"]
        self.points = {name: value for name, value in points.items() if value is not None}
        self.note = ", ".join([*notes, f"{memory:.1f} GiB"])
        if self._budget:
            self._keep()  # what was spent stays spent, even if this process is killed

    def overspent(self) -> str:
        """The message that the training run has used up its budget; empty while it may continue."""
        if self._budget is None or self._price is None:
            return ""
        self._pay()
        # Hours of a process without a price are charged at the current one.
        cost = self.taken.seconds / 3600 * self._price if self.taken.cost is None else self.taken.cost
        message = f"{self.taken.stage} has cost {cost:.4g} of {self._budget:g} (PLM_BUDGET)"
        return message if cost >= self._budget else ""

    def _keep(self) -> None:
        if not leads():
            return
        try:
            write(self.taken)
        except OSError as failure:
            print(f"warning: {paths.METERS}: {failure}; the meters are not kept", file=sys.stderr, flush=True)

    def _pay(self) -> None:
        """Add the wall-clock time since the last call, and its cost."""
        now = monotonic()
        passed = now - self._since
        self._since = now
        self.taken.seconds += passed
        self.taken.cost = _sum(self.taken.cost, self._price, passed / 3600)


def write(taken: Taken) -> None:
    """Write the file of a training run."""
    atomic_text(paths.METERS / f"{taken.stage}.json", json.dumps(asdict(taken), indent=2) + "\n")


def read(file: Path) -> Taken | None:
    """The content of a training run's file; None if there is none, or it is from another version."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        return from_dict(Taken, content, file.name)
    except (OSError, ValueError, UserError):
        return None


def _sum(total: float | None, more: float | None, times: float = 1.0) -> float | None:
    """``total`` + ``more`` x ``times``; None if either is unknown."""
    return None if total is None or more is None else total + more * times
