"""GPT-2. Radford, Wu, Child, Luan, Amodei, Sutskever 2019, "Language Models are Unsupervised Multitask Learners".

Section 2.3 of the paper changes the model of GPT (Radford et al. 2018) in three ways, all here: the layer normalisation
moves to the input of each sub-block, one more follows the last block, and the weights of residual layers are scaled at
initialisation by 1/sqrt(N) with N the number of residual layers. With ``norm: post`` the model is the first GPT, which
has none of the three.
GPT-3 (Brown et al. 2020, section 2.1) is the same model in other sizes, except that every other layer attends to a
band of positions only; here all layers attend to all.

Shapes: B rows, T positions, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import GPTConfig
from plm_core.models.blocks import Decoder, attend, to_compute_dtype


class Attention(nn.Module):
    """Causal multi-head self-attention (Vaswani et al. 2017, section 3.2) with one projection for q, k and v."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, attn_mask: Tensor | None, cache: Any = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; for the arguments see ``Decoder.states``."""
        B, T, D = x.shape
        # One product for all three, as released.
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.extend(k, v)
        y = attend(q, k, v, attn_mask, causal=attn_mask is None, dropout=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(B, T, D))


def gelu(x: Tensor) -> Tensor:
    """x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3): Hendrycks and Gimpel 2016, section 2; as released."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    # (1 + tanh u)/2 is sigmoid(2u); compiled for a CPU, tanh takes more than twice as long.
    scale = math.sqrt(8 / math.pi)
    return x * torch.sigmoid(x * (scale + scale * 0.044715 * x * x))


class Block(nn.Module):
    """Pre-norm: each sub-block reads the normalised residual stream and adds to the original one.

    Post-norm: each reads the stream as it is, and the sum is normalised (Vaswani et al. 2017, section 3.1).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.post = config.norm == "post"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; for the arguments see ``Decoder.states``."""
        if self.post:
            x = to_compute_dtype(self.norm_1(x + self.drop(self.attention(x, attn_mask, cache))))
            return to_compute_dtype(self.norm_2(x + self.drop(self.down(gelu(self.up(x))))))
        x = x + self.drop(self.attention(self.norm_1(x), attn_mask, cache))
        return x + self.drop(self.down(gelu(self.up(self.norm_2(x)))))


class GPT(Decoder):
    """The decoder: hidden states by ``read``, next-token logits by ``logits`` with the tied embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        initialise(self)

    def states(
        self, ids: Tensor, positions: Tensor, attn_mask: Tensor | None, caches: Sequence[Any] | None = None
    ) -> Tensor:
        """Ids ``[B, T]`` to hidden states ``[B, T, D]``; for the arguments see ``Decoder``."""
        x = self.drop(to_compute_dtype(self.tokens(ids) + self.positions(positions.expand_as(ids))))
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, attn_mask, cache)
        return self.norm(x)


def initialise(model: GPT) -> None:
    """Draw from a normal distribution with standard deviation ``initializer_range``, biases zero (Radford et al. 2018,
    section 4.1).

    With pre-norm, the two projections that write into the residual stream are scaled by 1/sqrt(N), N = 2 * layers
    (2019, section 2.3), and position embeddings by 1/2, as released.
    """
    deviation = model.config.initializer_range
    pre = model.config.norm == "pre"
    residual = 1 / math.sqrt(2 * model.config.layers) if pre else 1.0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = residual if name.endswith(("attention.out", "down")) else 1.0
            nn.init.normal_(module.weight, std=deviation * scale)
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.tokens.weight, std=deviation)
    nn.init.normal_(model.positions.weight, std=deviation / 2 if pre else deviation)
