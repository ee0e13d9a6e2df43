"""The meters of a training run: speed, utilisation, memory and energy. The loop reads them at its reports.

They measure the cost of a run and never change its results.
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

from plm_core.objectives.loss import Batch, Batches
from plm_core.text.store import TokenStore
from plm_core.training.callbacks.energy_monitor import Energy
from plm_core.training.clock import Clock
from plm_core.training.device import Device
from plm_core.training.flops import datasheet_flops, measured_flops, step_flops
from plm_core.training.parallelize import LossOf

T = TypeVar("T")


@dataclass(frozen=True)
class Throughput:
    """The cost of the steps since the last report."""

    seconds: float
    """Wall-clock time of these steps, without validation and snapshots."""
    positions: int
    """Positions read in these steps, each once, padding too."""
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


class SpeedMonitor:
    """Measures a training run: ``calibrate`` once, ``start`` before steps, ``lap`` in them, ``read`` after them."""

    def __init__(self, model: nn.Module, loss_of: LossOf, device: Device, precision: str, ranks: int = 1) -> None:
        """``model`` and ``loss_of`` must be neither wrapped nor compiled.

        ``ranks`` processes, each with a device like this one, share the positions that are read.
        """
        self._model = model
        self._loss_of = loss_of
        self._device = device.device
        self._ranks = ranks
        self._precision: str = precision if device.bfloat16 else "float32"
        self._clock, self._energy = Clock(device.device), Energy(device.device)
        self.reads = 0
        """How often the meters were read."""
        self._flops: float | None = None
        self._measured: float | None = None
        self._datasheet = datasheet_flops(device_name(device.device)) if self._precision == "bfloat16" else None

    def calibrate(self, rows: Batch) -> None:
        """Count the operations per position, from the rows of one forward pass, and measure the device.

        Rows of other lengths are assumed to need as many per position: true except for attention, whose share is small
        in short rows. Call it before the first step, and before the weights are sharded.
        """
        self._flops = _known("the operations of a step", lambda: step_flops(self._model, self._loss_of, rows))
        if self._flops is not None:
            self._flops /= rows.inputs.numel()
        self._measured = _known("the speed of this device", lambda: measured_flops(self._device, self._precision))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        self.start()

    def start(self) -> None:
        """Begin to measure steps: time since the last ones is not counted."""
        self._clock.start()

    def lap(self, name: str) -> None:
        """Count the time since the previous lap for ``name``."""
        self._clock.lap(name)

    def read(self, positions: int) -> Throughput:
        """The meters of the steps since ``start``, which read this many positions on all ranks.

        Waits for the device, and ends a lap ``other``.
        """
        self.lap("other")
        self.reads += 1
        split = self._clock.split()
        speed = positions / (seconds := sum(split.values()))
        needed = None if self._flops is None else self._flops * speed / self._ranks
        joules = self._energy.joules()
        # A CPU's counter is the machine's: the first of its processes reads it for all.
        if joules is not None and self._device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") != "0":
            joules = 0.0
        return Throughput(
            seconds=seconds,
            positions=positions,
            split=split,
            tokens_per_second=speed,
            mfu_measured=None if needed is None or self._measured is None else needed / self._measured,
            mfu_datasheet=None if needed is None or self._datasheet is None else needed / self._datasheet,
            peak_memory=peak_memory(self._device),
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


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held: in tensors on a GPU, on a CPU in all of its memory."""
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

    It is the store's bytes per token, times the share of positions in the first batch that hold one of its tokens; how
    both vary from batch to batch is ignored.
    """
    tokens = sum(span.stop - span.start for row in batches.spans(seed, 0) for span in row)
    return float(store.bytes.sum()) / len(store) * tokens / batches.at(seed, 0).inputs.numel()
