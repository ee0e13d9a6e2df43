"""The output layer over a vocabulary that is padded for the hardware. For the model files' ``logits``.

Shapes: D width, V vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

CUDA_MULTIPLE = 64
"""Rows of bfloat16 that are aligned to 128 bytes: tensor cores are fastest on them (NVIDIA, "Matrix Multiplication
Background User's Guide"). nanoGPT pads the vocabulary of GPT-2 to 50,304 = 786 * 64 for the same reason."""


def tied_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, multiple: int | None = None) -> Tensor:
    """Hidden states ``[..., D]`` to logits ``[..., V]`` by the rows of ``weight`` [V, D] and a bias ``[V]``.

    The product is computed over V rounded up to a multiple of ``multiple``, and what is beyond V is cut off: weights,
    checkpoints and results are those of V. None is 64 on a CUDA device and 1, which is the plain product, elsewhere.
    """
    V = weight.shape[0]
    extra = -V % (multiple or (CUDA_MULTIPLE if weight.is_cuda else 1))
    if not extra:
        return F.linear(hidden, weight, bias)
    # Beyond V the logits are 0 and cut off: no softmax ever sees them.
    padded = None if bias is None else F.pad(bias, (0, extra))
    return F.linear(hidden, F.pad(weight, (0, 0, 0, extra)), padded)[..., :V]
