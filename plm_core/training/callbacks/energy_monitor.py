"""The energy that a training run uses, by the machine's own counters. Used by the speed monitor.

On a GPU it is NVML's counter of the board; on a CPU, the RAPL counters of the packages (Intel SDM, volume 3, "Platform
specific power management support"; AMD has the same) through Linux's powercap files, which only root can read on many
systems. Both count everything that runs there, not just this process. Without a counter there is no number.
"""

from functools import partial
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")
Reading = list[tuple[float, float | None]]
"""Of each counter the joules since some point in time, and the number at which it wraps around to zero, if it does."""


class Energy:
    """Counts the joules of a GPU, or of all CPU packages of the machine."""

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        self._read = partial(_packages, powercap)
        if device.type == "cuda":
            # By its UUID, because CUDA and NVML may number GPUs differently.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._read = partial(_board, uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        self._before = self._read()

    def joules(self) -> float | None:
        """Joules since the last call, or since creation; None if a counter is missing or cannot be read.

        A RAPL counter wraps around after a few minutes of full load at the earliest; a second time between two calls
        goes unnoticed.
        """
        before = self._before
        self._before = self._read()
        if not before or len(before) != len(self._before):
            return None
        total = 0.0
        for (old, _), (new, around) in zip(before, self._before, strict=True):
            if new < old and around is None:
                return None
            total += new - old if around is None else (new - old) % around
        return total


def _packages(root: Path) -> Reading:
    """The counter of each CPU package; the domains within a package, and of the whole platform, are left out.

    Nothing if one cannot be read: a part of them would mislead.
    """
    try:
        domains = [d for d in sorted(root.glob("intel-rapl:*")) if (d / "name").read_text().startswith("package")]
        files = [(d / "energy_uj", d / "max_energy_range_uj") for d in domains]
        return [(int(now.read_text()) / 1e6, int(around.read_text()) / 1e6) for now, around in files]
    except (OSError, ValueError):
        return []


def _board(uuid: str) -> Reading:
    """NVML's counter of the GPU with this UUID, since its driver was loaded.

    Nothing without NVML or its package, for GPUs older than Volta, and for parts of a GPU, which have no counter.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        try:
            board = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return [(int(pynvml.nvmlDeviceGetTotalEnergyConsumption(board)) / 1e3, None)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
