"""Rows and columns chosen by index, with gradients that need neither sorting nor atomic additions. For the models.

The gradient of torch's ``gather`` adds into places that other threads may be adding into: on a GPU either in any order
or, for deterministic results, after a sort, which can take longer than the rest of a layer. The gradients here are
products and gathers again. They repeat bit by bit and cost next to nothing.

Shapes: T rows, N chosen rows, D columns; Q queries, R distances, K keys.
"""

from typing import Any

import torch
from torch import Tensor


def rows_at(x: Tensor, at: Tensor) -> Tensor:
    """The rows ``at`` [..., N] of matrices ``[..., T, D]``: ``[..., N, D]``. Gradients of a row chosen twice add up."""
    return _Rows.apply(x, at)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        ctx.rows = x.shape[-2]
        return x.gather(-2, at[..., None].expand(*x.shape[:-2], -1, x.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (at,) = ctx.saved_tensors
        # [..., T, N]: a product with ones and zeros adds each gradient to its row.
        chosen = at[..., None, :] == torch.arange(ctx.rows, device=at.device)[:, None]
        return chosen.to(gradient.dtype) @ gradient, None


def windows_at(x: Tensor, starts: Tensor, length: int) -> Tensor:
    """The ``length`` columns from ``starts`` [B, Q] on of each row of ``x`` [B, H, Q, R]: ``[B, H, Q, length]``."""
    return _Windows.apply(x, starts, length)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(starts)
        ctx.columns = x.shape[-1]
        ctx.length = length
        columns = starts[:, None, :, None] + torch.arange(length, device=x.device)
        return x.gather(-1, columns.expand(*x.shape[:-1], -1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (starts,) = ctx.saved_tensors
        # No column is chosen twice, so a column looks up its gradient: the same shift, the other way.
        places = torch.arange(ctx.columns, device=gradient.device) - starts[:, None, :, None]
        inside = (places >= 0) & (places < ctx.length)
        found = gradient.gather(-1, places.clamp(0, ctx.length - 1).expand(*gradient.shape[:-1], -1))
        return found.masked_fill(~inside, 0.0), None, None
