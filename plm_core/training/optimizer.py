"""The optimizer: AdamW, or Muon for the matrices inside the blocks and AdamW for the rest.

Sources: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW), Jordan et al. 2024, "Muon: An optimizer for
hidden layers in neural networks", and Liu et al. 2025, "Muon is Scalable for LLM Training".
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plm_core.training.muon import Muon
from plm_core.training.training_config import OptimizerConfig

ADAPTER = ".parametrizations."
"""Occurs in the names of parameters that are trained instead of a matrix, such as the factors of LoRA."""


class Optimizer:
    """Updates a model's parameters; its state is available by name.

    For parameters sharded by ``fully_shard``, create it after the sharding, on every rank.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        hidden = hidden_matrices(model) if config.name == "muon" else set()
        scales = rate_scales(model, config.layer_decay)
        # In the first ``head_steps`` steps, the blocks and what precedes them are frozen, unless nothing follows them.
        top = (above_blocks(model) if config.head_steps else set()) or {*scales}
        begins = {name: 0 if name in top else config.head_steps for name in scales}

        # AdamW: matrices and embeddings decay; biases, normalisation gains and the factors of adapters do not. A bias
        # is recognised by its name, because those of XLNet's attention are matrices, one vector per head. Decay of an
        # adapter would pull the model back to the pretrained one.
        rest = {name: parameter for name, parameter in self._parameters.items() if name not in hidden}
        plain = {name for name in rest if name.endswith("bias") or "norm" in name or ADAPTER in name}
        decays = {name: 0.0 if name in plain else config.weight_decay for name in rest}
        adamw = torch.optim.AdamW(
            _groups(rest, decays, scales, begins),
            betas=(config.beta_1, config.beta_2),
            eps=config.epsilon,
            fused=True,
        )
        self._parts: list[torch.optim.Optimizer] = [adamw]
        if hidden:
            matrices = {name: parameter for name, parameter in self._parameters.items() if name in hidden}
            groups = _groups(matrices, dict.fromkeys(matrices, config.weight_decay), scales, begins)
            self._parts.append(Muon(groups, config.momentum))
        self._states = {name: self._parts[name in hidden].state for name in self._parameters}

        # The state starts as zeros: now, not in the first step, so that a lack of memory shows before training begins.
        for name, parameter in self._parameters.items():
            state = self._states[name][parameter]
            if name in hidden:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            else:
                # A scalar on the parameter's device, not sharded, as the fused kernel needs it.
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)

    def step(self, rate: float, number: int = 0) -> None:
        """Update every parameter that has a gradient at the learning rate ``rate``, and drop the gradients.

        ``number`` is that of the step, from 0.
        """
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate * group["scale"] if number >= group["begins"] else 0.0
            part.step()
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The live state of every parameter, by ``<parameter>.<state>``: writing into a tensor changes the state.

        AdamW's states are ``step`` (a scalar), ``exp_avg`` and ``exp_avg_sq``, Muon's is ``momentum_buffer``; they have
        the parameter's shape and, if it is sharded, its sharding.
        """
        return {
            f"{name}.{key}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self._states[name][parameter].items()
        }


def hidden_matrices(model: nn.Module) -> set[str]:
    """The names of the matrices inside the blocks, which Muon is meant for.

    Embeddings, output layers and heads are left out, because they learn better with AdamW (Jordan et al. 2024); so are
    parameters that are not matrices, and factors of a matrix: orthogonal updates of A and B are not an orthogonal
    update of their product. Queries, keys and values in one projection are one matrix here.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {n for n, p in trained if p.ndim == 2 and _block(n) is not None and ADAPTER not in n}


def above_blocks(model: nn.Module) -> set[str]:
    """The names of the parameters that follow the blocks: the last norm, a pooler, the head's layers."""
    return {name for name, scale in rate_scales(model, 0.5).items() if scale == 1}


def rate_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Each parameter's learning rate as a fraction of the highest: ``decay`` to the power of the layers above it."""
    # Embeddings and whatever else precedes the blocks are the lowest layer, each block is a layer, and what follows the
    # blocks (the last norm, a pooler, a head) is the highest. So is the bias of the output layer, which belongs to the
    # model itself and therefore comes first.
    blocks = {name: _block(name) for name, _ in model.named_parameters()}
    top = max((block for block in blocks.values() if block is not None), default=-1) + 2
    output_bias = {name.partition("blocks.")[0] + "bias" for name, block in blocks.items() if block is not None}
    scales = {}
    layer = 0
    for name, block in blocks.items():
        layer = block + 1 if block is not None else (top if layer else 0)
        scales[name] = 1.0 if name in output_bias else decay ** (top - layer)
    return scales


def _block(name: str) -> int | None:
    number = re.search(r"\.blocks\.(\d+)\.", f".{name}")
    return int(number[1]) if number else None


def _groups(
    parameters: dict[str, nn.Parameter],
    decays: Mapping[str, float],
    scales: Mapping[str, float],
    begins: Mapping[str, int],
) -> list[dict[str, Any]]:
    groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        groups.setdefault((decays[name], scales[name], begins[name]), []).append(parameter)
    names = ("weight_decay", "scale", "begins")
    return [{"params": some} | dict(zip(names, settings, strict=True)) for settings, some in groups.items()]
