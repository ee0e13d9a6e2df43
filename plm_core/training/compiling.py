"""The loss function of a training, compiled by torch.compile (Ansel et al. 2024). Used by the loop.

One graph for each combination of shapes, compiled whole: which one a step runs depends on its batch and never on the
steps before, so that a resumed run computes what the undisturbed one did. Where torch keeps what it compiled is the
environment's to say (``TORCHINDUCTOR_CACHE_DIR``).
"""

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from plm_core.objectives.loss import Batch, Carry, Loss

LossOf = Callable[[nn.Module, Batch, Carry | None], Loss]


def compiled(loss_of: LossOf, device: torch.device) -> LossOf:
    """``loss_of`` compiled; as it is, with a warning, on a machine that cannot compile.

    The names of the weights stay, for the function is compiled and not the model. Dropout draws other numbers than
    without, and sums are rounded otherwise; both are the same from run to run.
    """
    # The same flag again: this time the compiler takes note of it too. Without, two threads add up in either order.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    if reason := _obstacle(device):
        warnings.warn(f"training.compile: not compiled, for this machine cannot: {reason}", stacklevel=2)
        return loss_of
    # A graph whose shapes are symbols would be laid out for the batch that it saw first.
    graph = torch.compile(loss_of, dynamic=False, fullgraph=True)

    def loss(model: nn.Module, batch: Batch, carry: Carry | None) -> Loss:
        found = graph(model, batch, carry)
        # Strides are part of a graph's signature, and a snapshot does not keep them.
        return found if found.carry is None else replace(found, carry=tuple(t.contiguous() for t in found.carry))

    return loss


def _obstacle(device: torch.device) -> str | None:
    """Why nothing can be compiled here, in one line; None when it can. Tried, for a compiler may lack its headers."""
    try:
        torch.compile(lambda x: x + 1, dynamic=False, fullgraph=True)(torch.zeros(3, device=device))
    except (RuntimeError, OSError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None
