"""The loss function, or a model's blocks, compiled by torch.compile (Ansel et al. 2024). Used by the loop.

There is one full graph for each combination of shapes: which one a step runs depends on its batch and never on earlier
steps, so a resumed run computes the same as an undisturbed one. ``TORCHINDUCTOR_CACHE_DIR`` sets where torch caches the
compiled code.
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

_compile = partial(torch.compile, dynamic=False, fullgraph=True)
"""Into one graph. With dynamic shapes its layout would depend on the first batch."""


def compiled(loss_of: LossOf, device: torch.device, replayed: int | None = None) -> LossOf:
    """Compile ``loss_of``; on a machine that cannot compile, return it unchanged, with a warning.

    Weight names stay the same, because the function is compiled and not the model. Dropout draws different numbers than
    without compilation, and sums are rounded differently; both repeat from run to run. On a GPU the passes over batches
    of ``replayed`` rows are captured as CUDA graphs and replayed: the host launches one graph per pass instead of
    hundreds of kernels. A replay overwrites the results of the last one, gradients too, so it is not for micro-batches.
    """
    if not _can_compile(device):
        return loss_of
    graph = _compile(loss_of)
    captured = _compile(loss_of, mode="reduce-overhead") if device.type == "cuda" else graph

    def loss(model: nn.Module, batch: Batch, carry: Carry | None) -> Loss:
        found = (captured if len(batch.inputs) == replayed else graph)(model, batch, carry)
        if found.carry is None:
            return found
        # The next replay must not overwrite its own inputs. Strides are part of a graph's signature, and a snapshot
        # does not keep them.
        return replace(found, carry=tuple(t.clone(memory_format=torch.contiguous_format) for t in found.carry))

    return loss


def compile_blocks(model: nn.Module, device: torch.device) -> None:
    """Compile the forward pass of each block; on a machine that cannot compile, none, with a warning.

    It is for sharded weights: hooks gather them block by block, and a graph cannot contain hooks.
    """
    if _can_compile(device):
        wrap(model, _compile)


def _can_compile(device: torch.device) -> bool:
    """Try whether there is a working compiler; if not, a warning says why."""
    # The same flag again: this time the compiler sees it too. Without it, two threads add up in either order.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # If a block is recomputed, the compiler takes for a side effect a torch mode that ends within the block.
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Fine-tuning pads to more lengths than the eight graphs that torch allows by default.
    torch._dynamo.config.recompile_limit = 64
    # Advice that no user can act on.
    for message in (r"\s*Online softmax is disabled", "TensorFloat32 tensor cores"):
        warnings.filterwarnings("ignore", message, UserWarning, r"torch\._inductor\b")
    try:
        _compile(lambda x: x + 1)(torch.zeros(3, device=device))
    except (RuntimeError, OSError) as error:  # such as a compiler without its headers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"training.compile: not compiled, because this machine cannot: {reason}", stacklevel=3)
        return False
    return True
