"""The meters of a training: speed, use of the machine, memory and energy. The loop reads them at its reports.

They say what a training takes and never change what it computes.
"""

import os
import platform
import resource
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from plm_core.objectives.loss import Batch, Batches
from plm_core.text.store import TokenStore
from plm_core.training.clock import Clock
from plm_core.training.compiling import LossOf
from plm_core.training.device import Device
from plm_core.training.energy import Energy
from plm_core.training.flops import datasheet_flops, measured_flops, step_flops
from plm_core.training.precision import Precision

T = TypeVar("T")


@dataclass(frozen=True)
class Throughput:
    """What the steps since the last report took."""

    seconds: float
    """Wall clock of these steps: validation and snapshots are left out."""
    positions: int
    """Positions read in these steps, each once, padding too."""
    split: dict[str, float]
    """``seconds`` by what they went into: data, forward, backward, optimizer, other."""
    tokens_per_second: float
    """Positions a second."""
    mfu_measured: float | None
    """Model FLOPs utilisation, a fraction of what this device was measured to do in dense matrix products of the
    training's precision; None when the operations could not be counted."""
    mfu_datasheet: float | None
    """The same, of the dense bfloat16 rate of the GPU's datasheet; None in another precision and elsewhere."""
    peak_memory: int
    """The most bytes that this process has held so far."""
    joules: float | None
    """Energy since the last report, validation and snapshots included; None where there is no counter."""


class Profiler:
    """Measures a training: ``calibrate`` once, ``start`` before steps, ``lap`` in them, ``read`` behind them."""

    def __init__(self, model: nn.Module, loss_of: LossOf, device: Device, precision: Precision, ranks: int = 1) -> None:
        """``model`` and ``loss_of`` are the plain ones, neither wrapped nor compiled.

        ``ranks`` processes with a device like this one share the positions that are read.
        """
        self._model = model
        self._loss_of = loss_of
        self._device = device.device
        self._ranks = ranks
        self._precision: Precision = precision if device.bfloat16 else "float32"
        self._clock, self._energy = Clock(device.device), Energy(device.device)
        self.reads = 0
        """How often the meters were read."""
        self._flops: float | None = None
        self._measured: float | None = None
        self._datasheet = datasheet_flops(device_name(device.device)) if self._precision == "bfloat16" else None

    def calibrate(self, rows: Batch) -> None:
        """Count the operations of a position, from the rows of one forward pass, and measure the device.

        Rows of other lengths are taken to need as much a position: true but for attention, whose share is small where
        rows are short. Call it before the first step, and before the weights are sharded.
        """
        self._flops = _known("the operations of a step", lambda: self._count(rows))
        self._measured = _known("the speed of this device", lambda: measured_flops(self._device, self._precision))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        self.start()

    def start(self) -> None:
        """Steps begin: what has passed since the last ones is not theirs."""
        self._clock.start()

    def lap(self, name: str) -> None:
        """What was done since the lap before is called ``name``."""
        self._clock.lap(name)

    def read(self, positions: int) -> Throughput:
        """The meters of the steps since ``start``, which read so many positions on all ranks.

        Waits for the device, and ends a lap ``other``.
        """
        self.lap("other")
        self.reads += 1
        split = self._clock.split()
        speed = positions / (seconds := sum(split.values()))
        needed = None if self._flops is None else self._flops * speed / self._ranks
        return Throughput(
            seconds=seconds,
            positions=positions,
            split=split,
            tokens_per_second=speed,
            mfu_measured=None if needed is None or self._measured is None else needed / self._measured,
            mfu_datasheet=None if needed is None or self._datasheet is None else needed / self._datasheet,
            peak_memory=peak_memory(self._device),
            joules=self._joules(),
        )

    def _joules(self) -> float | None:
        """A counter of a CPU is the machine's: the first of its processes reads it for all."""
        found = self._energy.joules()
        shared = self._device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") != "0"
        return 0.0 if shared and found is not None else found

    def _count(self, rows: Batch) -> float:
        return step_flops(self._model, self._loss_of, rows) / rows.inputs.numel()


def _known(what: str, find: Callable[[], T]) -> T | None:
    """What is found; None, with a warning, when it cannot be: a meter never ends a training."""
    try:
        return find()
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"meters: no MFU, for {what} cannot be told: {reason}", stacklevel=3)
        return None


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held: in tensors on a GPU, on a CPU in all of its memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # Not getrusage's, which begins with what the parent process had held.
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10


def device_name(device: torch.device) -> str:
    """What the GPU or the processor calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def bytes_per_position(batches: Batches, store: TokenStore, seed: int) -> float:
    """About how many UTF-8 bytes of the store's text a position of these batches reads.

    The store's bytes a token, times the share of positions that hold a token of it, as in the first batch: what is
    missing from the whole truth is how both vary from batch to batch.
    """
    tokens = sum(span.stop - span.start for row in batches.spans(seed, 0) for span in row)
    return float(store.bytes.sum()) / len(store) * tokens / batches.at(seed, 0).inputs.numel()
