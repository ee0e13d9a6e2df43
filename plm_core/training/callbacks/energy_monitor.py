"""The energy that a training run uses, by the machine's own counters. Used by the speed monitor.

On a GPU it is NVML's counter of the board; on a CPU, the RAPL counters of the packages (Intel SDM, volume 3, "Platform
specific power management support"; AMD has the same) through Linux's powercap files, which only root can read on many
systems. Both count everything that runs there, not just this process. Without a counter there is no number.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

POWERCAP = Path("/sys/class/powercap")


class Counter(NamedTuple):
    """One of the machine's counters."""

    read: Callable[[], float | None]
    """Joules since some point in time; None if they cannot be read."""
    around: float | None
    """The number of joules at which it wraps around to zero; None if it does not."""


class Energy:
    """Counts the joules of a GPU, or of all CPU packages of the machine."""

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        self._counters = _gpu(device) if device.type == "cuda" else _packages(powercap)
        self._before = [counter.read() for counter in self._counters]

    def joules(self) -> float | None:
        """Joules since the last call, or since creation; None if a counter is missing or cannot be read.

        A RAPL counter wraps around after a few minutes of full load at the earliest; a second time between two calls
        goes unnoticed.
        """
        before = self._before
        self._before = [counter.read() for counter in self._counters]
        total = 0.0
        for old, new, (_, around) in zip(before, self._before, self._counters, strict=True):
            if old is None or new is None or (new < old and around is None):
                return None
            total += new - old if around is None else (new - old) % around
        return total if self._counters else None


def _packages(root: Path) -> list[Counter]:
    """One counter for each CPU package; the domains within a package, and of the whole platform, are left out."""
    counters = []
    for domain in sorted(root.glob("intel-rapl:*")):
        try:
            if (domain / "name").read_text().startswith("package"):
                around = int((domain / "max_energy_range_uj").read_text()) / 1e6
                counters.append(Counter(partial(_microjoules, domain / "energy_uj"), around))
        except (OSError, ValueError):
            return []  # not all packages can be read, and a part of them would mislead
    return counters


def _microjoules(file: Path) -> float | None:
    """The content of a counter's file, in joules."""
    try:
        return int(file.read_text()) / 1e6
    except (OSError, ValueError):
        return None


def _gpu(device: torch.device) -> list[Counter]:
    """The counter of a GPU."""
    # By its UUID, because CUDA and NVML may number GPUs differently.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return [Counter(partial(_board, uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"), None)]


def _board(uuid: str) -> float | None:
    """NVML's counter of the GPU with this UUID, in joules since its driver was loaded.

    None without NVML or its Python package, for GPUs older than Volta, and for parts of a GPU, which have no counter.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(uuid))) / 1e3
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
