"""Muon: orthogonalised momentum for the matrices inside the blocks.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", with the update scale and weight decay of
Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2. It computes the same as ``torch.optim.Muon``, with
two differences: matrices of one shape are orthogonalised together, and on machines without bfloat16 instructions this
is done in float32, which is 30 times as fast there. If matrices are sharded, each process gathers some of
them and orthogonalises them for all (Liu et al. 2025, section 2.3).

Shapes: N matrices, R rows, C columns, P processes.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plm_core.training.device import multiplies_bfloat16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The factors of x, x^3 and x^5: chosen to raise small singular values fast, not to reach 1 exactly (Jordan et al.)."""
ITERATIONS = 5
TOGETHER = 1 << 26
"""How many matrix elements are orthogonalised at once: 256 MiB, and a few times as much for intermediate results."""
SIZE = 0.2
"""About the root mean square of AdamW's updates (Liu et al. 2025, section 2.2)."""


class Muon(torch.optim.Optimizer):
    """Updates groups of matrices, each group with its ``weight_decay``; all with Nesterov ``momentum``.

    Before a step, each group needs its rate ``lr``, and each matrix a ``momentum_buffer`` in its ``state``.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient. If they are sharded, every process has to call it."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Any]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in by_shape.items():
                # Together, so that a GPU gets few large products; but not all, because a stack is a copy.
                at_once = max(1, TOGETHER // shape.numel())
                for begin in range(0, len(matrices), at_once):
                    self._update(matrices[begin : begin + at_once], group)

    def _update(self, matrices: list[Any], group: dict[str, Any]) -> None:
        # Momentum and decay need no more than this process's rows of sharded matrices.
        weights = [_local(matrix) for matrix in matrices]
        gradients = [_local(matrix.grad) for matrix in matrices]
        means = [_local(self.state[matrix]["momentum_buffer"]) for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        # Nesterov: the mean as it would be if the next gradient were the same.
        ahead = list(torch._foreach_lerp(gradients, means, group["momentum"]))
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        # The direction is that of the whole matrix, with the size of AdamW's updates.
        R, C = matrices[0].shape
        updates = orthogonal(ahead, R, getattr(matrices[0], "device_mesh", None))
        for weight, update in zip(weights, updates, strict=True):
            weight.add_(update, alpha=-group["lr"] * SIZE * math.sqrt(max(R, C)))


def _local(tensor: Any) -> Tensor:
    """The tensor itself, or this process's rows of a sharded one."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def orthogonal(matrices: list[Tensor], rows: int, mesh: Any = None) -> list[Tensor]:
    """Turn each matrix U S V^T ``[R, C]`` into about U V^T: its singular values become 0.7 to 1.2.

    With a mesh of P processes, each matrix is this process's shard: ``rows`` / P rows, rounded up, or the remainder.
    """
    if mesh is None:
        return list(newton_schulz(torch.stack(matrices)))
    # Each matrix is sent to one process, which orthogonalises it, and returned; missing rows and matrices are zeros.
    P = mesh.size()
    most = -(-rows // P)
    mine = matrices[0].new_zeros(P, -(-len(matrices) // P), most, matrices[0].shape[1])
    for place, matrix in zip(mine.flatten(0, 1), matrices, strict=False):
        place[: len(matrix)] = matrix
    whole = newton_schulz(_exchanged(mine, mesh).transpose(0, 1).flatten(1, 2))
    back = _exchanged(whole.unflatten(1, (P, most)).transpose(0, 1).contiguous(), mesh).flatten(0, 1)
    return [place[: len(matrix)] for place, matrix in zip(back, matrices, strict=False)]


def _exchanged(tensor: Tensor, mesh: Any) -> Tensor:
    """All-to-all: send part p of ``[P, ...]`` to process p, and return the parts ``[P, ...]`` received."""
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor, group=mesh.get_group())
    return received


def newton_schulz(matrices: Tensor) -> Tensor:
    """``orthogonal`` for a stack ``[N, R, C]``, by iterations of a X + b (X X^T) X + c (X X^T)^2 X."""
    # X X^T is the smaller product of the two if X is wide.
    a, b, c = COEFFICIENTS
    x = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    if matrices.dtype != torch.float64:
        x = x.to(torch.bfloat16 if multiplies_bfloat16(matrices.device.type) else torch.float32)
    # The largest singular value is at most the Frobenius norm.
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        squared = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squared, squared, squared, beta=b, alpha=c), x, beta=a)
    return (x if x.shape == matrices.shape else x.mT).to(matrices.dtype)
