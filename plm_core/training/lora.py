"""LoRA: freezes a pretrained model and trains low-rank products added to its matrices (Hu et al. 2021).

Shapes: O outputs, I inputs of a linear layer, r the rank.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from plm_core.config import UserError
from plm_core.training.training_config import LoRAConfig


class Update(nn.Module):
    """W + alpha / r * B A (Hu et al. 2021, equation 3); B ``[O, r]`` begins at zero: nothing changes at first."""

    def __init__(self, weight: Tensor, config: LoRAConfig) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(weight.new_empty(config.rank, inputs))
        self.b = nn.Parameter(weight.new_zeros(outputs, config.rank))
        self.scale = config.alpha / config.rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as released by the paper's authors

    def forward(self, weight: Tensor) -> Tensor:
        """The adapted weight ``[O, I]``."""
        return weight + self.scale * self.b @ self.a


def adapt(backbone: nn.Module, config: LoRAConfig, also: Collection[str] = ()) -> None:
    """Freeze a model's weights and add an ``Update`` to the matrices of its blocks that ``config`` names, in place.

    The parameters named in ``also`` are trained in full, and so is a pooler, like the head after it: without
    next-sentence prediction it has never had a gradient.

    Raises:
        UserError: the blocks have no such matrices.
    """
    adapted = 0
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(name.startswith("pooler.") or name in also)
    for name, layer in list(backbone.named_modules()):
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            kind = "attention" if ".attention." in name or ".cross." in name else "feed_forward"
            if kind in config.targets:
                parametrize.register_parametrization(layer, "weight", Update(layer.weight, config))
                adapted += 1
    if not adapted:
        raise UserError(f"lora.targets: this model has no {' or '.join(config.targets)}; expected feed_forward")


@torch.no_grad()
def merge(backbone: nn.Module) -> None:
    """Add the updates to the weights they belong to, in place: the same model, without adapters."""
    for layer in list(backbone.modules()):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    backbone.requires_grad_(True)
