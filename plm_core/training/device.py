"""The machine that a process computes on, and its clock: detected or set by the environment, never by parameters."""

import ctypes
import functools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from plm_core.config import UserError
from plm_core.shared.environment import cores, number_from_environment
from plm_core.shared.gpu_claims import CLAIMED


@dataclass(frozen=True)
class Device:
    """Where tensors live and in which precision the forward pass runs there."""

    device: torch.device
    """``cuda`` if there is a GPU, otherwise ``cpu``."""
    threads: int
    """CPU threads of this process."""
    bfloat16: bool
    """Whether the hardware multiplies bfloat16."""

    def autocast(self, precision: str) -> AbstractContextManager[object]:
        """Mixed precision for a forward pass: bfloat16 if requested and supported."""
        if precision == "bfloat16" and self.bfloat16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def prepare(threads: int | None = None, deterministic: bool = True, beside: int = 1) -> Device:
    """Detect the device, make torch deterministic, and set the number of threads.

    ``PLM_THREADS`` overrides ``threads``; with neither, the cores are shared with the other processes that torchrun
    started on this machine, or among ``beside`` concurrent training runs. Results on a CPU are byte-identical for the
    same number of threads; those of a GPU repeat unless ``deterministic`` is false, which allows faster kernels.

    Raises:
        UserError: ``PLM_THREADS`` is not a number of at least 1, or torch cannot use the GPUs that this process has
            claimed.
    """
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", beside))
    torch.set_num_threads(number_from_environment("PLM_THREADS", "threads") or threads or max(1, cores() // beside))
    # The same flag as use_deterministic_algorithms(True), which would import the whole compiler (2 s) to set its own.
    torch.set_deterministic_debug_mode("error" if deterministic or not torch.cuda.is_available() else "default")
    # Every buffer is written before it is read; filling it first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        # Deterministic matrix products need it; cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # In torch 2.11 to 2.13, cuDNN's kernel gives NaN in the backward pass on an H100 if there is a mask and the
        # length is 64 above a multiple of 128 (pytorch#196678). Models enable it where rows fill its tiles (blocks.py).
        torch.backends.cuda.enable_cudnn_sdp(False)
        gpu = torch.device("cuda", torch.cuda.current_device())
        return Device(gpu, torch.get_num_threads(), multiplies_bfloat16("cuda"))
    if (gpus := os.environ.get("CUDA_VISIBLE_DEVICES")) and CLAIMED in os.environ:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES: torch {torch.__version__} cannot use the GPU {gpus} of this machine; expected a "
            "build of torch for CUDA and a driver that is new enough for it (see nvidia-smi), or CUDA_VISIBLE_DEVICES= "
            "to compute on the CPU"
        )
    # glibc's allocator returns large blocks to the system, so each step would write to new pages, which the kernel
    # clears first. Every step needs the same memory again: the process stays as large as its largest step.
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        # malloc.h: M_MMAP_MAX blocks outside the heap, M_TRIM_THRESHOLD bytes free at its end before it shrinks.
        mallopt(-4, 0)
        mallopt(-1, -1)
    return Device(torch.device("cpu"), torch.get_num_threads(), multiplies_bfloat16("cpu"))


def thread_beside(name: str) -> ThreadPoolExecutor:
    """One thread that uses the same GPU as this one: CUDA's current device is set per thread, and is GPU 0 at first."""
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else -1  # which changes nothing
    return ThreadPoolExecutor(1, name, torch.cuda.set_device, (gpu,))


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in host memory; from a GPU at full bus speed, if the system allows that much pinned memory."""
    copies = {}
    for name, tensor in tensors.items():
        try:
            copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        except RuntimeError:
            copy = torch.empty_like(tensor, device="cpu")
        copies[name] = copy.copy_(tensor, non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    return copies


@functools.cache
def multiplies_bfloat16(kind: str) -> bool:
    """Whether devices of this kind support bfloat16 in hardware; where it is emulated, float32 is many times faster."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported()


class Clock:
    """A stopwatch: adds up the seconds of laps by their names; it starts when it is created.

    On a GPU, laps are marked by events in its stream, without waiting: work is queued faster than it is done, so the
    host's clock would attribute the time of one lap to another.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            marks[-1][1].synchronize()
        parts: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(marks):
            seconds = begin.elapsed_time(end) / 1000 if on_gpu else end - begin
            parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def _now(self) -> Any:
        """A time in seconds, or on a GPU an event."""
        if self.device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event
