"""Rotary positions. Su, Lu, Pan, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".

Section 3.2.2: the numbers of a query are taken in pairs, each pair is a vector in the plane, and a position turns it by
an angle. Pair i turns by base^(-2i/S) a position. A key is turned alike, so that their product depends on the distance
of their positions alone (equation 16). Which numbers are a pair is a convention: here i and i + S/2, as in
transformers, and not 2i and 2i + 1, as in the paper.

Used by the model files. Shapes: B rows, T positions, H heads, S the size of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Angles(NamedTuple):
    """By what each pair of each position is turned: ``[1 or B, 1, T, S/2]``, the same for all heads."""

    cos: Tensor
    sin: Tensor


def angles(positions: Tensor, size: int, base: float, dtype: torch.dtype) -> Angles:
    """The angles of positions ``[T]`` or ``[B, T]`` for heads of ``size`` numbers."""
    cos, sin = _angles(positions, size, base)
    return Angles(cos.to(dtype), sin.to(dtype))


@torch.library.custom_op("plm::angles", mutates_args=())
def _angles(positions: Tensor, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine in float64, as an operation that a compiler cannot look into: it would compute them again, for
    each row and head, in every kernel that rotates queries or keys (a quarter of a LLaMA's step on an H100)."""
    # In float32 the angles of a position in the thousands are exact to three digits behind the point only.
    pairs = torch.arange(0, size, 2, device=positions.device, dtype=torch.float64)
    turned = positions[..., None, :, None] * base ** (-pairs / size)
    turned = turned if turned.ndim == 4 else turned[None]
    return turned.cos(), turned.sin()


@_angles.register_fake
def _(positions: Tensor, size: int, base: float) -> tuple[Tensor, Tensor]:
    rows = len(positions) if positions.ndim == 2 else 1
    shape = (rows, 1, positions.shape[-1], -(-size // 2))
    cos = torch.empty(shape, dtype=torch.float64, device=positions.device)
    return cos, torch.empty_like(cos)


def rotate(x: Tensor, by: Angles) -> Tensor:
    """Queries or keys ``[B, H, T, S]``, turned (equation 34)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * by.cos - second * by.sin, second * by.cos + first * by.sin), dim=-1)
    # Under autocast queries are of less precision than the angles: they are turned in that of the angles.
    return turned.to(x.dtype)
