"""GPT-2. Radford, Wu, Child, Luan, Amodei, Sutskever 2019, "Language Models are Unsupervised Multitask Learners".

Section 2.3 of the paper changes GPT (Radford et al. 2018) in four ways, all here: the layer normalisation moves to the
input of each sub-block, one more follows the last block, the weights of residual layers are scaled at initialisation by
1/sqrt(N) with N the number of residual layers, and the text is one stream of tokens (no start or end in the model).

Shapes: B batch, T positions, D width, H heads, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """Section ``model`` of a GPT; the vocabulary comes from the tokenizer."""

    vocab_size: int
    """V, the number of token ids."""
    context: int
    """The largest T: how many positions have an embedding."""
    layers: int
    """The number of blocks."""
    heads: int
    """H, attention heads a block; must divide ``width``."""
    width: int
    """D, the size of the residual stream."""
    dropout: float = 0.1
    """The probability of zeroing an activation: embeddings, attention weights and both residual branches."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 1")
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide width {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout}; expected at least 0 and below 1")


class Attention(nn.Module):
    """Causal multi-head self-attention (Vaswani et al. 2017, section 3.2) with one projection for q, k and v."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; position t reads positions up to t."""
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    """Pre-norm: each sub-block reads a normalised residual stream and adds to the plain one."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = x + self.drop(self.attention(self.norm_1(x)))
        # The tanh form is what the released GPT-2 computes (Hendrycks and Gimpel 2016, section 2).
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh")))


class GPT(nn.Module):
    """The decoder: hidden states by ``forward``, next-token logits by ``logits`` with the tied embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        initialise(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids ``[B, T]`` to hidden states ``[B, T, D]``.

        Raises:
            ValueError: T is larger than ``context``.
        """
        T = ids.shape[1]
        if self.config.context < T:
            raise ValueError(f"context: a sequence of {T} tokens is longer than the {self.config.context} positions")
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(T, device=ids.device)))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[..., D]`` to logits ``[..., V]``: the output layer is the token embedding (tied)."""
        return F.linear(hidden, self.tokens.weight)


def initialise(model: GPT) -> None:
    """Normal with deviation 0.02, biases zero (Radford et al. 2018, section 4.1), positions 0.01 as released.

    The two projections that write into the residual stream are scaled by 1/sqrt(N), N = 2 * layers (2019, section 2.3).
    """
    residual = 1 / math.sqrt(2 * model.config.layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = residual if name.endswith(("attention.out", "down")) else 1.0
            nn.init.normal_(module.weight, std=0.02 * scale)
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.tokens.weight, std=0.02)
    nn.init.normal_(model.positions.weight, std=0.01)
