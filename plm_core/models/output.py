"""The output layer over a vocabulary that is padded for the hardware. For the model files' ``output`` and ``logits``.

Shapes: D width, V vocabulary.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

CUDA_MULTIPLE = 64
"""Rows of bfloat16 that are aligned to 128 bytes: tensor cores are fastest on them (NVIDIA, "Matrix Multiplication
Background User's Guide"). nanoGPT pads the vocabulary of GPT-2 to 50,304 = 786 * 64 for the same reason."""


class Output(NamedTuple):
    """The output layer and its input, from which logits are computed, or a loss that never holds all of them."""

    hidden: Tensor
    """``[..., D]``"""
    weight: Tensor
    """``[V, D]``"""
    bias: Tensor | None = None
    """``[V]``"""

    def logits(self) -> Tensor:
        """The logits ``[..., V]``. The padding of ``padded`` is cut off, and no softmax ever sees it."""
        weight, bias = padded(self.weight, self.bias)
        found = F.linear(self.hidden, weight, bias)
        return found if weight is self.weight else found[..., : len(self.weight)]


def padded(weight: Tensor, bias: Tensor | None, multiple: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Pad weight and bias with zeros to a multiple of ``multiple`` rows; checkpoints and results have V.

    None means 64 on a CUDA device, and no padding elsewhere.
    """
    extra = -len(weight) % (multiple or (CUDA_MULTIPLE if weight.is_cuda else 1))
    if not extra:
        return weight, bias
    return F.pad(weight, (0, 0, 0, extra)), None if bias is None else F.pad(bias, (0, extra))
