"""AdamW with weight-decay groups, and the learning rate as a function of the step.

Sources: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW) and 2017 (cosine), Goyal et al. 2017 (warm-up).
"""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class OptimizerConfig:
    """Section ``optimizer`` of a training."""

    learning_rate: float
    """The peak learning rate."""
    warmup_steps: int
    """Steps of linear growth from 0 to the peak."""
    final_fraction: float = 0.1
    """The learning rate of the last step, as a fraction of the peak."""
    weight_decay: float = 0.1
    """Decoupled decay, on matrices and embeddings only."""
    beta_1: float = 0.9
    """Adam's decay of the mean of gradients."""
    beta_2: float = 0.95
    """Adam's decay of the mean of squared gradients (0.95: Brown et al. 2020, appendix B)."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    clip_norm: float = 1.0
    """The gradient is scaled down to this 2-norm over all parameters when it is longer."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)}; expected above 0")
        for name in ("beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 0 and below 1")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction: {self.final_fraction}; expected between 0 and 1")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise ValueError(
                f"warmup_steps: {self.warmup_steps}, weight_decay: {self.weight_decay}; expected at least 0"
            )


def learning_rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of ``step`` (from 0) in a run of ``steps``: linear warm-up, then half a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * cosine)


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over two groups: matrices and embeddings decay; biases and normalisation gains do not.

    A bias is known by its name, for those of XLNet's attention are of one vector a head.
    """
    plain = {name for name, p in model.named_parameters() if name.endswith("bias") or "norm" in name}
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in plain], "weight_decay": config.weight_decay},
        {"params": [p for n, p in model.named_parameters() if n in plain], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta_1, config.beta_2), eps=config.epsilon, fused=True
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


class Optimizer:
    """Placeholder until merged."""

    def __init__(self, model, config):
        self._names = {p: n for n, p in model.named_parameters()}
        self._opt = make_optimizer(model, config)

    def step(self, rate):
        set_learning_rate(self._opt, rate)
        self._opt.step()
        self._opt.zero_grad(set_to_none=True)

    def tensors(self):
        return {f"{self._names[p]}.{k}": t for p, s in self._opt.state.items() for k, t in s.items()}

    def allocate(self):
        for p in self._names:
            self._opt.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
