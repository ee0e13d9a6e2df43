"""The output layer over a vocabulary that is padded for the hardware, and its loss a chunk at a time.

Logits in float32 are often the largest tensor of a step: 3.1 GiB for 16,384 positions and 50,304 tokens, and as much
again for their gradient. Here a chunk's logits and their part of the gradient are computed together, in the forward
pass, where the gradient of a sum of losses is already known up to one factor. So no product is computed twice.

Shapes: N predictions, C predictions of a chunk, D width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CUDA_MULTIPLE = 64
"""It aligns rows of bfloat16 to 128 bytes, which is fastest on tensor cores (NVIDIA, "Matrix Multiplication Background
User's Guide"). nanoGPT pads the vocabulary of GPT-2 to 50,304 = 786 * 64 for the same reason."""


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
        logits = F.linear(self.hidden, weight, bias)
        return logits if weight is self.weight else logits[..., : len(self.weight)]


def padded(weight: Tensor, bias: Tensor | None, multiple: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Pad weight and bias with zeros to a multiple of ``multiple`` rows; checkpoints and results have V.

    None means 64 on a CUDA device, and no padding elsewhere.
    """
    extra = -len(weight) % (multiple or (CUDA_MULTIPLE if weight.is_cuda else 1))
    if not extra:
        return weight, bias
    return F.pad(weight, (0, 0, 0, extra)), None if bias is None else F.pad(bias, (0, extra))


def nll_in_chunks(output: Output, targets: Tensor, weights: Tensor, size: int) -> Tensor:
    """-sum w log p of the targets ``[N]`` with weights w ``[N]``, by an output layer at hidden states ``[N, D]``.

    A target below 0 adds nothing. ``size`` is C, the predictions of a chunk.
    """
    # Determined here, because a Function cannot tell whether a gradient will be needed.
    wanted = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in output]
    inputs = (output.hidden, *padded(output.weight, output.bias))
    return _InChunks.apply(*inputs, targets, weights, len(output.weight), size, wanted)


class _InChunks(torch.autograd.Function):
    """The sum, with gradients for hidden states, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        V: int,
        size: int,
        wanted: list[bool],
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        inputs = zip((hidden, weight, bias), wanted, strict=True)
        gradients = [torch.zeros_like(x) if x is not None and learns else None for x, learns in inputs]
        for begin in range(0, len(targets), size):
            part = slice(begin, begin + size)
            read = hidden[part]
            logits = F.linear(read, weight, bias)
            counts = (weights[part] * (targets[part] >= 0))[:, None].to(exact)
            place = targets[part, None].clamp(min=0)
            made = (_fused if torch.compiler.is_compiling() else _in_place)(logits, place, counts, V, any(wanted))
            nats, gradient = made
            total = total + nats
            if gradient is None:
                continue
            if gradients[0] is not None:
                gradients[0][part] = gradient @ weight
            if gradients[1] is not None:
                gradients[1] += gradient.mT @ read
            if gradients[2] is not None:
                gradients[2] += gradient.sum(0)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # In bfloat16 the common factor would be off by up to 0.4 %.
        gradients = (None if g is None else (g.to(factor.dtype) * factor).to(g.dtype) for g in ctx.saved_tensors)
        return *gradients, None, None, None, None, None


def _in_place(logits: Tensor, place: Tensor, counts: Tensor, V: int, learns: bool) -> tuple[Tensor, Tensor | None]:
    """-sum w log p of the targets ``place`` [C, 1] with weights ``counts`` [C, 1], and, if anything ``learns``, its
    gradient by the logits ``[C, V or more]``. Needs memory for one more tensor of their size."""
    log_p = logits[:, :V].to(counts.dtype).log_softmax(-1)
    nats = -(log_p.gather(1, place) * counts).sum()
    if not learns:
        return nats, None
    # The gradient: p, minus one for the target.
    gradient = log_p.exp_()
    gradient = gradient.scatter_(1, place, gradient.gather(1, place) - 1).mul_(counts).to(logits.dtype)
    # ``F.pad`` makes a copy even if it adds nothing.
    return nats, gradient if logits.shape[1] == V else F.pad(gradient, (0, logits.shape[1] - V))


def _fused(logits: Tensor, place: Tensor, counts: Tensor, V: int, learns: bool) -> tuple[Tensor, Tensor | None]:
    """``_in_place`` for compilers, which read the logits and write the gradient in one kernel: in-place changes and
    padding would split that kernel."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    exact = logits.to(counts.dtype)
    log_p = (exact if logits.shape[1] == V else exact.masked_fill(columns >= V, float("-inf"))).log_softmax(-1)
    nats = -(log_p.gather(1, place) * counts).sum()
    if not learns:
        return nats, None
    return nats, ((log_p.exp() - (columns == place).to(counts.dtype)) * counts).to(logits.dtype)
