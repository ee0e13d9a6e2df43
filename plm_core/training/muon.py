"""Muon: momentum, made orthogonal, for the matrices inside the blocks. Used by the optimizer.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", with the length of updates and the decay
of Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2. It computes what ``torch.optim.Muon`` does, with
two differences: matrices of one shape are made orthogonal together, and where a machine has no instructions for
bfloat16 that is done in float32, which takes a thirtieth of the time there.

Shapes: N matrices, R rows, C columns, R at most C.
"""

import math
from typing import Any

import torch
from torch import Tensor

from plm_core.training.device import multiplies_bfloat16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5: chosen to take small singular values up fast, in place of all to one exactly (Jordan et al.)."""
ITERATIONS = 5
SIZE = 0.2
"""The root mean square of AdamW's updates, about (Liu et al. 2025, section 2.2)."""


class Muon(torch.optim.Optimizer):
    """Groups of matrices, each group with its ``weight_decay``; all with Nesterov's ``momentum``.

    The ``momentum_buffer`` of every matrix has to be in ``state`` before the first step.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            gradients: list[Any] = [matrix.grad for matrix in matrices]
            means = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
            torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
            # Nesterov's: the mean as it will be if the next gradient is this one.
            updates = orthogonal(list(torch._foreach_lerp(gradients, means, group["momentum"])))
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.add_(update, alpha=-group["lr"] * SIZE * math.sqrt(max(matrix.shape)))


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """Each matrix U S V^T as about U V^T: its singular values become 0.7 to 1.2."""
    # Those of one shape together, and with them those that have it transposed: a GPU gets few large products.
    stacks: dict[tuple[int, int], list[int]] = {}
    for number, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        stacks.setdefault((rows, columns), []).append(number)
    found: dict[int, Tensor] = {}
    for numbers in stacks.values():
        wide = [matrices[n] if matrices[n].shape[0] <= matrices[n].shape[1] else matrices[n].mT for n in numbers]
        for n, update in zip(numbers, newton_schulz(torch.stack(wide)), strict=True):
            found[n] = update if matrices[n].shape == update.shape else update.mT
    return [found[n] for n in range(len(matrices))]


def newton_schulz(matrices: Tensor) -> Tensor:
    """``orthogonal`` of a stack ``[N, R, C]``, by iterations of a X + b (X X^T) X + c (X X^T)^2 X."""
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if multiplies_bfloat16(matrices.device.type) else torch.float32)
    # The largest singular value is at most the Frobenius norm.
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        squared = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squared, squared, squared, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
