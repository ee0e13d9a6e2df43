"""The meters of a training run: speed, utilisation, memory and energy. They never change its results.

Energy comes from hardware counters: on a GPU, NVML's counter of the board; on a CPU, the RAPL counters of the packages
(Intel SDM, volume 3, "Platform specific power management support"; AMD has the same) through Linux's powercap files,
which only root can read on many systems. Both count everything that runs there. Without a counter, no energy is
reported.
"""

import os
import platform
import resource
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from plm_core.objectives.objective import Batch, Batches
from plm_core.text.token_store import TokenStore
from plm_core.training.device import Clock, Device
from plm_core.training.flops import datasheet_flops, measured_flops, step_flops
from plm_core.training.parallelize import LossOf

T = TypeVar("T")
POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Throughput:
    """The cost of the steps since the last report."""

    seconds: float
    """Wall-clock time of these steps, without validation and snapshots."""
    positions: int
    """Positions read in these steps, each counted once, padding included."""
    split: dict[str, float]
    """``seconds`` by activity: data, forward, backward, optimizer, other."""
    tokens_per_second: float
    """Positions per second."""
    mfu_measured: float | None
    """Model FLOPs utilisation, as a fraction of the measured rate of this device in dense matrix products of the run's
    precision; None if the operations could not be counted."""
    mfu_datasheet: float | None
    """The same, as a fraction of the dense bfloat16 rate in the GPU's datasheet; None for other precisions and
    devices."""
    peak_memory: int
    """The most bytes that this process has held so far."""
    joules: float | None
    """Energy since the last report, validation and snapshots included; None without a counter."""


class SpeedMonitor(Clock):
    """Measures a training run: ``calibrate`` once, ``start`` before steps, ``lap`` in them, ``read`` after them."""

    def __init__(self, model: nn.Module, loss_of: LossOf, device: Device, precision: str, ranks: int = 1) -> None:
        """``model`` and ``loss_of`` must be neither wrapped nor compiled.

        ``ranks`` processes, each with a device like this one, share the positions that are read.
        """
        super().__init__(device.device)
        self._model, self._loss_of, self._ranks = model, loss_of, ranks
        self._precision: str = precision if device.bfloat16 else "float32"
        self._energy = Energy(device.device)
        self.reads = 0
        """How many times the meters were read."""
        self._flops: float | None = None
        self._measured: float | None = None
        self._datasheet = datasheet_flops(device_name(device.device)) if self._precision == "bfloat16" else None

    def calibrate(self, rows: Batch) -> None:
        """Count the operations per position on the rows of one micro-batch, and measure the speed of the device.

        Rows of other lengths are assumed to need as many per position, which holds except for attention, whose share is
        small in short rows. Call it before the first step, and before the weights are sharded.
        """
        self._flops = _known("the operations of a step", lambda: step_flops(self._model, self._loss_of, rows))
        if self._flops is not None:
            self._flops /= rows.inputs.numel()
        self._measured = _known("the speed of this device", lambda: measured_flops(self.device, self._precision))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        self.start()

    def read(self, positions: int) -> Throughput:
        """The meters of the steps since ``start``, in which all ranks together read this many positions.

        Waits for the device, and ends a lap ``other``.
        """
        self.lap("other")
        self.reads += 1
        split = self.split()
        speed = positions / (seconds := sum(split.values()))
        needed = None if self._flops is None else self._flops * speed / self._ranks
        joules = self._energy.joules()
        # A CPU's counter covers the whole machine: only the first process on it reads the counter.
        if joules is not None and self.device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") != "0":
            joules = 0.0
        return Throughput(
            seconds=seconds,
            positions=positions,
            split=split,
            tokens_per_second=speed,
            mfu_measured=None if needed is None or self._measured is None else needed / self._measured,
            mfu_datasheet=None if needed is None or self._datasheet is None else needed / self._datasheet,
            peak_memory=peak_memory(self.device),
            joules=joules,
        )


def _known(what: str, find: Callable[[], T]) -> T | None:
    """The result of ``find``; None, with a warning, if it fails: a meter never ends a run."""
    try:
        return find()
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"meters: no MFU: cannot determine {what}: {reason}", stacklevel=3)
        return None


class Energy:
    """Counts the joules of a GPU, or of all CPU packages of the machine."""

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._board = ""
        if device.type == "cuda":
            # By its UUID, because CUDA and NVML may number GPUs differently.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._board = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._before = self._counters()

    def joules(self) -> float | None:
        """Joules since the last call, or since creation; None if a counter is missing or cannot be read.

        A RAPL counter wraps around after a few minutes of full load at the earliest; a second wrap between two calls
        goes unnoticed.
        """
        before = self._before
        self._before = self._counters()
        if not before or len(before) != len(self._before):
            return None
        total = 0.0
        for (old, _), (new, around) in zip(before, self._before, strict=True):
            if new < old and around is None:
                return None
            total += new - old if around is None else (new - old) % around
        return total

    def _counters(self) -> list[tuple[float, float | None]]:
        """The joules of each counter, and the number at which it wraps around to zero, if it does; empty if one cannot
        be read, because a partial sum would mislead."""
        # Only a CPU's packages: domains within a package, and that of the platform, would count the same energy twice.
        if not self._board:
            try:
                domains = sorted(self._powercap.glob("intel-rapl:*"))
                packages = [d for d in domains if (d / "name").read_text().startswith("package")]
                files = [(d / "energy_uj", d / "max_energy_range_uj") for d in packages]
                return [(int(now.read_text()) / 1e6, int(around.read_text()) / 1e6) for now, around in files]
            except (OSError, ValueError):
                return []

        # A GPU's counter, since its driver was loaded. GPUs before Volta and MIG slices have none.
        try:
            import pynvml
        except ImportError:
            return []
        try:
            pynvml.nvmlInit()
            try:
                board = pynvml.nvmlDeviceGetHandleByUUID(self._board)
                return [(int(pynvml.nvmlDeviceGetTotalEnergyConsumption(board)) / 1e3, None)]
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return []


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process in bytes: on a GPU that of its tensors, on a CPU all of it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # Not getrusage's, which includes the peak of the parent process.
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def device_name(device: torch.device) -> str:
    """The name of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def bytes_per_position(batches: Batches, store: TokenStore, seed: int) -> float:
    """Estimate the UTF-8 bytes of the store's text per position of these batches.

    It is the store's bytes per token, times the share of positions in the first batch that hold one of its tokens.
    """
    tokens = sum(span.stop - span.start for row in batches.spans(seed, 0) for span in row)
    return float(store.bytes.sum()) / len(store) * tokens / batches.at(seed, 0).inputs.numel()
