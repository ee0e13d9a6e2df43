"""Floating-point operations: how many a model needs and how many a device can do.

Their ratio is MFU, model FLOPs utilisation: the operations per second that the model's definition needs over those that
the device can do (Chowdhery et al. 2022, "PaLM", appendix B). As there, recomputation counts once, and attention counts
in full, even if a causal kernel skips half of it.
"""

import copy
import re

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from plm_core.objectives.objective import Batch
from plm_core.training.device import Clock
from plm_core.training.parallelize import LossOf

META = torch.device("meta")
PRODUCTS = {"cpu": (512, 0.03), "cuda": (8192, 0.1)}
"""The benchmark of a device: the side length of its matrices, and its approximate duration in seconds."""

DATASHEETS: tuple[tuple[str, float], ...] = (
    # Dense bfloat16 with float32 accumulation; half the rate with sparsity, if the datasheet gives only that. A year
    # alone refers to the "NVIDIA ... Tensor Core GPU Datasheet".
    (r"NVIDIA A100(-SXM4-\d+GB|-PCIE-\d+GB| 80GB PCIe)", 312e12),  # 2021, SXM and PCIe alike
    (r"NVIDIA H100 NVL", 835.5e12),  # 2024, H100 NVL: 1,671 with sparsity
    (r"NVIDIA H100 PCIe", 756.5e12),  # 2023, H100 PCIe: 1,513 with sparsity
    (r"NVIDIA H100 \d+GB HBM3", 989.5e12),  # 2024, H100 SXM: 1,979 with sparsity
    (r"NVIDIA H200 NVL", 835.5e12),  # 2024, H200 NVL: 1,671 with sparsity
    (r"NVIDIA H200", 989.5e12),  # 2024, H200 SXM: 1,979 with sparsity
    (r"NVIDIA B200", 2250e12),  # NVIDIA DGX B200 Datasheet (2024): 8 GPUs, 36 PFLOPS with sparsity
    (r"NVIDIA L40S", 362.05e12),  # NVIDIA L40S Datasheet (2023): 362.05, 733 with sparsity
    (r"NVIDIA L4", 121e12),  # 2023: 242 with sparsity
    (r"NVIDIA A10", 125e12),  # 2021: 125, 250 with sparsity
    (r"NVIDIA GeForce RTX 4090", 165.2e12),  # NVIDIA Ada GPU Architecture whitepaper (2022), appendix A
)
"""A GPU's name in torch (as a pattern of the whole name), and the FLOP/s of its datasheet."""


def step_flops(model: nn.Module, loss_of: LossOf, batch: Batch) -> int:
    """The floating-point operations of ``loss_of(model, batch, None)`` and its backward pass.

    A product of [m, k] and [k, n] counts as 2mkn; only matrix products count, as in the formulas of the literature (6N
    + 12LHQT per token, PaLM, appendix B). Nothing is computed: ``loss_of``, which must not be compiled, runs on torch's
    meta device, where attention is always counted by its definition.

    Raises:
        RuntimeError, ValueError: the function cannot run on the meta device: it reads a value, or calls a kernel that
            the meta device lacks (such as FlexAttention).
    """
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        loss_of(on_meta(model), batch.to(META), None).nll.backward()
    return counter.get_total_flops()


@torch.no_grad()
def measured_flops(device: torch.device, precision: str) -> float:
    """FLOP/s of this device in dense matrix products of this precision: the best of several runs.

    On a CPU they run on torch's threads in this process. The matrices are random, because a GPU multiplies zeros with
    less power and therefore faster; they come from a separate generator.
    """
    size, seconds = PRODUCTS[device.type]
    dtype = getattr(torch, precision)
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=draw, device=device).to(dtype) for _ in range(2))
    product = a @ b  # the first one is slower: a GPU loads its kernel
    clock = Clock(device)
    times = list[float]()
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        torch.mm(a, b, out=product)
        clock.lap("product")
        times.append(clock.split()["product"])
    return 2 * size**3 / min(times)


def datasheet_flops(name: str) -> float | None:
    """The dense bfloat16 FLOP/s of the GPU that torch calls ``name``; None for others, CPUs and parts of a GPU."""
    return next((flops for pattern, flops in DATASHEETS if re.fullmatch(pattern, name)), None)


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model on the meta device, without copying its weights."""
    memo: dict[int, Tensor] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device=META), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device=META)
    return copy.deepcopy(model, memo)
