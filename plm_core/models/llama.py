"""LLaMA. Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models".

Section 2.2 changes the Transformer in three ways: the input of each sub-block is normalised, as in GPT-2, but with
RMSNorm (Zhang and Sennrich 2019); the feed-forward layer is SwiGLU (Shazeer 2020); positions are rotary (Su et al.
2021). As released, no layer has a bias, and queries, keys and values each have their own projection. Some things are
from later models: query heads may share keys and values (Llama 2 and 3; Ainslie et al. 2023), the output layer is the
token embedding (tied) unless the section says otherwise, as in small models, where the vocabulary has a large share
of the weights; and for published ones, slower angles beyond the first context (Llama 3.1) and biases (Qwen 2).

Shapes: B rows, T positions, D width, H heads, G key-value heads, S = D/H, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import LlamaConfig
from plm_core.models.blocks import Decoder, attend, to_compute_dtype
from plm_core.models.output_layer import Output
from plm_core.models.rotary import Angles, angles, rotate


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped queries (Ainslie et al. 2023, section 2.2)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        assert config.kv_heads is not None
        self.heads = config.heads
        self.size = config.width // config.heads
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.k = nn.Linear(config.width, config.kv_heads * self.size, bias=config.qkv_bias)
        self.v = nn.Linear(config.width, config.kv_heads * self.size, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, by: Angles, attn_mask: Tensor | None, cache: Any = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; ``by`` holds the rotations of the T positions, for the other arguments see
        ``Decoder.states``."""
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        # A key is rotated once, by its own position, and cached in this form.
        q, k = rotate(q, by), rotate(k, by)
        if cache is not None:
            k, v = cache.extend(k, v)
        y = attend(
            q,
            repeat_heads(k, self.heads),
            repeat_heads(v, self.heads),
            attn_mask,
            causal=attn_mask is None,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out(y.transpose(1, 2).flatten(2))


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values ``[B, G, K, S]`` for the H ``heads``, ``[B, H, K, S]``: H/G neighbours share one."""
    # Repeated here, because torch's kernels that take a mask cannot share heads.
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1).flatten(1, 2)


class Block(nn.Module):
    """Pre-norm: each sub-block reads the normalised residual stream and adds to the original one."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        assert config.inner is not None
        self.norm_1 = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.norm_2 = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.gate = nn.Linear(config.width, config.inner, bias=False)
        self.up = nn.Linear(config.width, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor, by: Angles, attn_mask: Tensor | None, cache: Any = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; for the arguments see ``Attention``."""
        x = x + self.attention(self.norm_1(x), by, attn_mask, cache)
        y = self.norm_2(x)
        # SwiGLU: Shazeer 2020, equation 6.
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(Decoder):
    """The decoder: hidden states by ``read``, next-token logits by ``logits``, with the embedding if ``tied``."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        if not config.tied:
            self.unembed = nn.Linear(config.width, config.vocab_size, bias=False)
        initialise(self)

    def states(
        self, ids: Tensor, positions: Tensor, attn_mask: Tensor | None, caches: Sequence[Any] | None = None
    ) -> Tensor:
        """Ids ``[B, T]`` to hidden states ``[B, T, D]``; for the arguments see ``Decoder``."""
        x = self.tokens(ids)
        c = self.config
        by = angles(positions, c.width // c.heads, c.rope_base, x.dtype, c.rope_factor, c.rope_context or 0)
        x = to_compute_dtype(x)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, by, attn_mask, cache)
        return self.norm(x)

    def output(self, hidden: Tensor) -> Output:
        """The output layer at hidden states ``[..., D]``."""
        return super().output(hidden) if self.config.tied else Output(hidden, self.unembed.weight)


def initialise(model: Llama) -> None:
    """Draw from a normal distribution with standard deviation ``initializer_range``; gains are ones.

    The two projections that write into the residual stream are scaled by 1/sqrt(2 * layers), as in GPT-2: the paper
    does not specify the initialisation.
    """
    deviation = model.config.initializer_range
    residual = 1 / math.sqrt(2 * model.config.layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation * (residual if name.endswith(("out", "down")) else 1.0))
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
