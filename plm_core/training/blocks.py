"""Wrappers around the forward pass of each block of a model. Used by the loop and its ranks.

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
    """Replace the forward pass of each block; one that is wrapped already is wrapped again."""
    for block in blocks_of(model):
        block.forward = by(block.forward)


def unwrap(model: nn.Module) -> None:
    """Restore each block's own forward pass."""
    for block in blocks_of(model):
        vars(block).pop("forward", None)


def recompute(forward: Forward) -> Forward:
    """Keep only the inputs of a block: the backward pass computes it again (Chen et al. 2016).

    Dropout is the same, so gradients are bit-identical.
    """
    return partial(checkpoint, forward, use_reentrant=False)
