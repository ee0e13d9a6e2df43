"""Rotary positions. Su, Lu, Pan, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".

Section 3.2.2: the dimensions of a query form pairs, each pair is a vector in the plane, and a position rotates it by an
angle. Pair i rotates by base^(-2i/S) per position. Keys are rotated in the same way, so that the product depends only
on the distance of the positions (equation 16). The choice of pairs is a convention: here i and i + S/2, as in
transformers, and not 2i and 2i + 1, as in the paper.

Used by the model files. Shapes: B rows, T positions, H heads, S the size of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LOW, HIGH = 1, 4
"""The RoPE scaling of Llama 3.1: pairs that turn less often than ``LOW`` times in the first context are slowed down,
those that turn more often than ``HIGH`` times are not, and those in between are interpolated."""


class Angles(NamedTuple):
    """The rotation of each pair at each position: ``[1 or B, 1, T, S/2]``, the same for all heads."""

    cos: Tensor
    sin: Tensor


def angles(
    positions: Tensor, size: int, base: float, dtype: torch.dtype, factor: float = 1.0, context: int = 0
) -> Angles:
    """The angles of positions ``[T]`` or ``[B, T]`` for heads of ``size`` dimensions.

    A ``factor`` above 1 slows down the slow pairs, for positions beyond ``context``.
    """
    cos, sin = _angles(positions, size, base, factor, context)
    return Angles(cos.to(dtype), sin.to(dtype))


@torch.library.custom_op("plm::angles", mutates_args=())
def _angles(positions: Tensor, size: int, base: float, factor: float, context: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine in float64, as an operation that is opaque to the compiler, which would otherwise recompute them
    for each row and head in every kernel that rotates queries or keys (a quarter of a LLaMA's step on an H100)."""
    # In float32 the angles of positions in the thousands are exact to only three decimal places.
    pairs = torch.arange(0, size, 2, device=positions.device, dtype=torch.float64)
    speeds = base ** (-pairs / size)
    if factor != 1:
        fast = ((context * speeds / (2 * torch.pi) - LOW) / (HIGH - LOW)).clamp(0, 1)
        speeds = speeds * (fast + (1 - fast) / factor)
    turned = positions[..., None, :, None] * speeds
    turned = turned if turned.ndim == 4 else turned[None]
    return turned.cos(), turned.sin()


@_angles.register_fake
def _(positions: Tensor, size: int, base: float, factor: float, context: int) -> tuple[Tensor, Tensor]:
    rows = len(positions) if positions.ndim == 2 else 1
    shape = (rows, 1, positions.shape[-1], -(-size // 2))
    cos = torch.empty(shape, dtype=torch.float64, device=positions.device)
    return cos, torch.empty_like(cos)


def rotate(x: Tensor, by: Angles) -> Tensor:
    """Rotate queries or keys ``[B, H, T, S]`` (equation 34)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * by.cos - second * by.sin, second * by.cos + first * by.sin), dim=-1)
    # Under autocast, queries have a lower precision than the angles, and are rotated in that of the angles.
    return turned.to(x.dtype)
