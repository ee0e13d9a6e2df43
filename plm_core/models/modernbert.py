"""ModernBERT. Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory
Efficient, and Long Context Finetuning and Inference".

Section 2.1 builds a BERT with advances from decoders: no biases except in the output layer, pre-norm with an additional
normalisation after the embeddings (so that the first block needs none), GeGLU (Shazeer 2020) and rotary positions (Su
et al. 2021). Section 2.1.2: every third layer attends to the whole row, the others to a window around each position,
with another RoPE base. There are no segments, and no next-sentence prediction (section 2.2.2).

The paper's batches hold no padding (section 2.1.2, unpadding); here rows are padded, or packed with documents.
Initial weights are drawn from the whole normal distribution, not one truncated at two standard deviations.

Shapes: B rows, T positions, N masked positions, D width, H heads, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import ModernBERTConfig
from plm_core.models.blocks import attend, bidirectional_mask, rows_at, to_compute_dtype
from plm_core.models.output_layer import Output
from plm_core.models.rotary import Angles, angles, rotate


class View(NamedTuple):
    """What all layers that attend to the whole row share, or all that attend to a window."""

    by: Angles
    """The rotations of the positions."""
    attn_mask: Tensor | None
    """``[1 or B, 1, 1 or T, T]``, false where a position is not attended to; None: all are."""


class Attention(nn.Module):
    """Multi-head self-attention with rotary positions over the positions in its view."""

    def __init__(self, config: ModernBERTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, view: View, at: Tensor | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``, or to ``[B, N, D]`` for the queries ``at`` [B, N] only."""
        B, T, D = x.shape
        # One product for all three, as released.
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, view.by), rotate(k, view.by)
        attn_mask = view.attn_mask
        if at is not None:
            # Only some positions are queries, but all are keys.
            q = rows_at(q, at[:, None])
            if attn_mask is not None and attn_mask.shape[2] > 1:
                attn_mask = rows_at(attn_mask.expand(B, -1, -1, -1), at[:, None])
        y = attend(q, k, v, attn_mask, dropout=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm, except in the first block, whose input is already normalised; GeGLU (Shazeer 2020, equation 6)."""

    def __init__(self, config: ModernBERTConfig, number: int) -> None:
        super().__init__()
        assert config.inner is not None
        self.whole = number % config.global_every == 0
        self.norm_1 = nn.LayerNorm(config.width, bias=False) if number else nn.Identity()
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width, bias=False)
        # Both factors of GeGLU are one product, as released.
        self.up = nn.Linear(config.width, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, view: View, at: Tensor | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``, or to ``[B, N, D]`` for the positions ``at`` [B, N] only."""
        # The residual stream stays as it is; each sub-block reads it normalised.
        y = self.attention(self.norm_1(x), view, at)
        x = (x if at is None else rows_at(x, at)) + self.drop(y)
        gate, up = self.up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(self.drop(F.gelu(gate) * up))


class ModernBERT(nn.Module):
    """The encoder with its head: ``encode``, then ``logits`` for masked tokens, or ``pool``."""

    def __init__(self, config: ModernBERTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.layers))
        self.last_norm = nn.LayerNorm(config.width, bias=False)
        self.transform = nn.Linear(config.width, config.width, bias=False)
        self.transform_norm = nn.LayerNorm(config.width, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise(self)

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Ids ``[B, T]`` to hidden states ``[B, T, D]``, or to ``[B, N, D]`` for the positions ``at`` [B, N] only.

        ``segments`` are ignored. For the other arguments and the ValueError see ``BERT.forward``.
        """
        seen = bidirectional_mask(ids, self.config.vocab_size, self.config.context, attention_mask, documents)
        # The two kinds of layers: what they see, and the base of their rotations (section 2.1.2). Angles encode
        # distances, so documents need not begin at 0.
        places = torch.arange(ids.shape[1], device=ids.device)
        near = ((places[:, None] - places).abs() <= self.config.window // 2)[None, None]
        by, local = (
            angles(places, self.config.width // self.config.heads, base, self.tokens.weight.dtype)
            for base in (self.config.rope_base, self.config.local_rope_base)
        )
        whole = View(by, seen)
        window = View(local, near if seen is None else near & seen)
        x = self.drop(to_compute_dtype(self.norm(self.tokens(ids))))
        for i, block in enumerate(self.blocks):
            # The loss reads only the masked positions of the last block.
            x = block(x, whole if block.whole else window, at if i == len(self.blocks) - 1 else None)
        return self.last_norm(x)

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task: the same as ``forward``."""
        return self(ids, segments, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """States ``[..., D]`` of masked positions to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at states ``[..., D]`` of masked positions; it is tied to the embedding (as released)."""
        return Output(self._transformed(hidden), self.tokens.weight, self.bias)

    def predict(self, ids: Tensor, at: Tensor) -> Tensor:
        """Ids ``[B, T]`` with masks to the logits ``[B, N, V]`` of the positions ``at`` [B, N]."""
        return self.logits(self(ids, at=at))

    def pool(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to one vector per row, ``[B, D]``: the first position's, through the layer that
        precedes the output layer in pretraining (as released)."""
        return self._transformed(hidden[:, 0])

    def _transformed(self, hidden: Tensor) -> Tensor:
        return self.transform_norm(F.gelu(self.transform(hidden)))


def initialise(model: ModernBERT) -> None:
    """Draw matrices and embeddings from a normal distribution with standard deviation ``initializer_range``.

    Gains are ones, the bias is zero. Layers that write into the residual stream, and the head's layer, are scaled by
    1/sqrt(2 * layers) (as released).
    """
    deviation = model.config.initializer_range
    residual = 1 / math.sqrt(2 * model.config.layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scaled = name.endswith(("out", "down", "transform"))
            nn.init.normal_(module.weight, std=deviation * (residual if scaled else 1.0))
