"""The loss function of a training, or a model's blocks, compiled by torch.compile (Ansel et al. 2024). For the loop.

One graph for each combination of shapes, compiled whole: which one a step runs depends on its batch and never on the
steps before, so that a resumed run computes what the undisturbed one did. Where torch keeps what it compiled is the
environment's to say (``TORCHINDUCTOR_CACHE_DIR``).
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from plm_core.objectives.loss import Batch, Carry, Loss
from plm_core.training.blocks import wrap

LossOf = Callable[[nn.Module, Batch, Carry | None], Loss]

_compile = partial(torch.compile, dynamic=False, fullgraph=True, recompile_limit=64)
"""Into one graph. One whose shapes are symbols would be laid out for the batch that it saw first. Of the lengths that
fine-tuning pads to there are more than the eight graphs that torch keeps by default, and behind which it fails."""


def compiled(loss_of: LossOf, device: torch.device, replayed: int | None = None) -> LossOf:
    """``loss_of`` compiled; as it is, with a warning, on a machine that cannot compile.

    The names of the weights stay, for the function is compiled and not the model. Dropout draws other numbers than
    without, and sums are rounded otherwise; both are the same from run to run. On a GPU the passes over batches of
    ``replayed`` rows are captured as CUDA graphs and replayed: the host starts one for each pass, and not hundreds of
    kernels. A replay writes where the last one wrote, gradients too, so it is not for batches whose gradients are to be
    added to those of others.
    """
    if not _can_compile(device):
        return loss_of
    graph = _compile(loss_of)
    captured = _compile(loss_of, mode="reduce-overhead") if device.type == "cuda" else graph

    def loss(model: nn.Module, batch: Batch, carry: Carry | None) -> Loss:
        found = (captured if len(batch.inputs) == replayed else graph)(model, batch, carry)
        if found.carry is None:
            return found
        # The next replay must not write over what it reads. Strides are part of a graph's signature, and a snapshot
        # does not keep them.
        return replace(found, carry=tuple(t.clone(memory_format=torch.contiguous_format) for t in found.carry))

    return loss


def compile_blocks(model: nn.Module, device: torch.device) -> None:
    """Compile the forward pass of each block; with a warning none, on a machine that cannot compile.

    For weights that are to be sharded: hooks gather them block by block, and no graph can hold those.
    """
    if _can_compile(device):
        wrap(model, _compile)


def _can_compile(device: torch.device) -> bool:
    """Whether there is a compiler that works, as is tried; where there is none, a warning says why."""
    # The same flag again: this time the compiler takes note of it too. Without, two threads add up in either order.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # Where a block is recomputed, what the compiler sees as a side effect is a mode of torch's that ends in the block.
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Advice that no user can act on.
    for message in (r"\s*Online softmax is disabled", "TensorFloat32 tensor cores"):
        warnings.filterwarnings("ignore", message, UserWarning, r"torch\._inductor\b")
    try:
        _compile(lambda x: x + 1)(torch.zeros(3, device=device))
    except (RuntimeError, OSError) as error:  # such as a compiler without its headers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"training.compile: not compiled, for this machine cannot: {reason}", stacklevel=3)
        return False
    return True
