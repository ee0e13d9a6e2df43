"""The machine that a process computes on: detected or set by the environment, never by parameters."""

import ctypes
import functools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.utils.deterministic
from torch import Tensor

from plm_core.config import UserError
from plm_core.shared.gpus import CLAIMED
from plm_core.shared.limits import cores, number


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
    same number of threads; those of a GPU repeat unless ``deterministic`` is false, which allows faster kernels. On a
    CPU the process keeps the memory that it frees from now on.

    Raises:
        UserError: ``PLM_THREADS`` is not a number, 1 or more, or torch cannot use the GPUs that this process has
            claimed.
    """
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", beside))
    torch.set_num_threads(number("PLM_THREADS", "threads") or threads or max(1, cores() // beside))
    # The same flag as use_deterministic_algorithms(True), which would import the whole compiler (2 s) to set its own.
    torch.set_deterministic_debug_mode("error" if deterministic or not torch.cuda.is_available() else "default")
    # Every buffer is written before it is read; filling it first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        # Deterministic matrix products need it; cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # cuDNN's kernel in torch 2.11 to 2.13: NaN in the backward pass with a mask and lengths of 64 more than a
        # multiple of 128, on an H100 (pytorch#196678). Models enable it if rows fill its tiles (blocks.py).
        torch.backends.cuda.enable_cudnn_sdp(False)
        return Device(
            torch.device("cuda", torch.cuda.current_device()),
            torch.get_num_threads(),
            multiplies_bfloat16("cuda"),
        )
    if (gpus := os.environ.get("CUDA_VISIBLE_DEVICES")) and CLAIMED in os.environ:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES: torch {torch.__version__} cannot use the GPU {gpus} of this machine; expected a "
            "build of torch for CUDA and a driver that is new enough for it (see nvidia-smi), or CUDA_VISIBLE_DEVICES= "
            "to compute on the CPU"
        )
    _keep_freed_memory()
    return Device(torch.device("cpu"), torch.get_num_threads(), multiplies_bfloat16("cpu"))


def thread_beside(name: str) -> ThreadPoolExecutor:
    """One thread that uses the same GPU as this one: CUDA's current device is each thread's own, at first GPU 0."""
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else -1  # which changes nothing
    return ThreadPoolExecutor(1, name, torch.cuda.set_device, (gpu,))


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors; those of a GPU come at the speed of the bus, if the system lets that much memory be pinned."""
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
    """Whether devices of this kind support it in hardware; where it is emulated, float32 is many times faster."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported()


def _keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, because every step needs the same again.

    glibc's allocator returns large blocks to the system, so each step would write to new pages, which the kernel clears
    first. The process stays as large as its largest step. Without glibc nothing happens.
    """
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        # malloc.h: M_MMAP_MAX blocks outside the heap, M_TRIM_THRESHOLD bytes free at its end before it shrinks.
        limit(-4, 0)
        limit(-1, -1)
