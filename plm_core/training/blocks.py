"""What a training puts around the forward passes of a model's blocks, one by one. Used by the loop and its ranks.

Only ``forward`` of each block is replaced, so that weights keep their names and hooks stay outside.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

Forward = Callable[..., Any]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks in a model, such as ELECTRA's two."""
    return [block for module in model.modules() for block in getattr(module, "blocks", ())]


def wrap(model: nn.Module, by: Callable[[Forward], Forward]) -> None:
    """Replace the forward pass of each block; of one that is wrapped already, what it is by then."""
    for block in blocks_of(model):
        block.forward = by(block.forward)


def unwrap(model: nn.Module) -> None:
    """Give each block the forward pass of its class again."""
    for block in blocks_of(model):
        vars(block).pop("forward", None)


def recompute(forward: Forward) -> Forward:
    """Keep what a block reads and nothing in it: the backward pass computes it once more (Chen et al. 2016).

    With the same dropout, so gradients are the same to the bit.
    """
    return partial(checkpoint, forward, use_reentrant=False)
