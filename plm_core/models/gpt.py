"""GPT-2. Radford, Wu, Child, Luan, Amodei, Sutskever 2019, "Language Models are Unsupervised Multitask Learners".

Section 2.3 of the paper changes the model of GPT (Radford et al. 2018) in three ways, all here: the layer normalisation
moves to the input of each sub-block, one more follows the last block, and the weights of residual layers are scaled at
initialisation by 1/sqrt(N) with N the number of residual layers.
GPT-3 (Brown et al. 2020, section 2.1) is the same model in other sizes, except that every other layer attends to a
band of positions only; here all layers attend to all.

Shapes: B rows, T positions, P positions read before, D width, H heads, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.models.blocks import (
    attend,
    check_documents,
    check_ids,
    check_length,
    narrowed,
    places_in,
    same_document,
)
from plm_core.models.output import Output
from plm_core.sections.models import GPTConfig, TransformerConfig

Pair = tuple[Tensor, Tensor]
"""Keys and values of one block, each ``[B, H, P, D/H]``."""


class Cache(NamedTuple):
    """The keys and values of the P positions read so far."""

    attention_mask: Tensor
    """``[B, P]``, false where an id was padding."""
    pairs: tuple[Pair, ...]
    """The keys and values of each block in order."""


class Attention(nn.Module):
    """Causal multi-head self-attention (Vaswani et al. 2017, section 3.2) with one projection for q, k and v."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, attn_mask: Tensor | None, past: Pair | None) -> tuple[Tensor, Pair]:
        """``[B, T, D]`` to ``[B, T, D]`` and the keys and values of all P + T positions.

        ``attn_mask`` [B or 1, 1, T, P + T] is true where a position attends; None for every position up to its own.
        """
        B, T, D = x.shape
        # One product for all three, as released.
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        # Keys and values of earlier positions come from the cache: a new token costs one row.
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        y = attend(q, k, v, attn_mask, causal=attn_mask is None, dropout=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(B, T, D)), (k, v)


def gelu(x: Tensor) -> Tensor:
    """x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3): Hendrycks and Gimpel 2016, section 2; as released."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    # (1 + tanh u)/2 is sigmoid(2u); compiled for a CPU, tanh takes more than twice as long.
    scale = math.sqrt(8 / math.pi)
    return x * torch.sigmoid(x * (scale + scale * 0.044715 * x * x))


class Block(nn.Module):
    """Pre-norm: each sub-block reads the normalised residual stream and adds to the original one."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, past: Pair | None = None) -> tuple[Tensor, Pair]:
        """``[B, T, D]`` to ``[B, T, D]`` and the block's keys and values."""
        y, present = self.attention(self.norm_1(x), attn_mask, past)
        x = x + self.drop(y)
        return x + self.drop(self.down(gelu(self.up(self.norm_2(x))))), present


class GPT(nn.Module):
    """The decoder: hidden states by ``read``, next-token logits by ``logits`` with the tied embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        initialise(self)

    def read(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        state: Cache | None = None,
        documents: Tensor | None = None,
        bidirectional: Tensor | None = None,
        keep: bool = True,
    ) -> tuple[Tensor, Cache | None]:
        """Read from left to right: ids ``[B, T]`` to hidden states ``[B, T, D]`` that have seen ids up to their own.

        ``attention_mask`` [B, T] is false for padding, which is never seen and takes no position. ``state`` is what the
        previous call returned; ids then continue that text. ``documents`` [B, T] holds the document of each id in its
        row: each is read independently. ``bidirectional`` [B] is true for rows that are read like BERT's: their states
        have seen all ids. With either of these two, or without ``keep``, no state is returned.

        Raises:
            ValueError: P + T is larger than ``context``, an id is outside the vocabulary, the state has other rows or
                layers, ``documents`` are not as ``blocks`` says or given together with ``attention_mask`` or ``state``,
                or ``bidirectional`` does not have B rows or is given together with ``state``.
        """
        seen, positions, attn_mask = placed(self.config, ids, attention_mask, state, documents, bidirectional, keep)
        x = self.drop(narrowed(self.tokens(ids) + self.positions(positions.expand_as(ids))))
        pairs = []
        for block, past in zip(self.blocks, state.pairs if state else [None] * len(self.blocks), strict=True):
            x, pair = block(x, attn_mask, past)
            if seen is not None:
                pairs.append(pair)
        return self.norm(x), None if seen is None else Cache(seen, tuple(pairs))

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """``read`` without the state: ids ``[B, T]`` to hidden states ``[B, T, D]``."""
        return self.read(ids, attention_mask, keep=False)[0]

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task; GPT has no segments: its examples hold a delimiter instead."""
        return self(ids, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[..., D]`` to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at hidden states ``[..., D]``: the token embedding (tied)."""
        return Output(hidden, self.tokens.weight)


def placed(
    config: TransformerConfig,
    ids: Tensor,
    attention_mask: Tensor | None,
    state: Cache | None,
    documents: Tensor | None,
    bidirectional: Tensor | None,
    keep: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Which positions are not padding, ``[B, P + T]``, None if no state is returned; the positions of the ids,
    ``[T]`` or ``[B, T]``; and the attention mask, ``[B, 1, T, P + T]``, None if it is purely causal.

    For the arguments and the ValueError see ``GPT.read``.
    """
    _check(config, ids, state, bidirectional)
    B, T = ids.shape
    if documents is not None:
        # Packing: a document's positions begin at 0, and each sees only its own document.
        if attention_mask is not None or state is not None:
            message = (
                "documents: given together with attention_mask or state; expected neither, because padding is a "
                "document too"
            )
            raise ValueError(message)
        check_documents(documents, ids)
        return None, places_in(documents), same_document(documents) & _order(ids, bidirectional)
    # Kept for the next call, which must know what was padding.
    seen = torch.ones(B, T, dtype=torch.bool, device=ids.device) if attention_mask is None else attention_mask
    seen = seen if state is None else torch.cat((state.attention_mask, seen), dim=1)
    kept = seen if keep and bidirectional is None else None
    if attention_mask is None and state is None:
        # Whole rows, as in training: if all are causal, no mask, so that attention uses the causal kernel.
        return kept, torch.arange(T, device=ids.device), None if bidirectional is None else _order(ids, bidirectional)
    return kept, *_continued(seen, _order(ids, bidirectional, seen.shape[1] - T))


def _check(config: TransformerConfig, ids: Tensor, state: Cache | None, bidirectional: Tensor | None) -> None:
    B, T = ids.shape
    check_length(T + (state.attention_mask.shape[1] if state else 0), config.context)
    check_ids(ids, config.vocab_size)
    if state and len(state.attention_mask) != B:
        held = len(state.attention_mask)
        raise ValueError(f"state: holds {held} rows; expected the {B} rows of the ids")
    if state and len(state.pairs) != config.layers:
        raise ValueError(f"state: has {len(state.pairs)} layers; expected layers {config.layers}")
    if bidirectional is not None and (state or bidirectional.shape != (B,)):
        found = "given together with state" if state else f"shape {tuple(bidirectional.shape)}"
        raise ValueError(f"bidirectional: {found}; expected no state, and one value for each of the {B} rows")


def _order(ids: Tensor, bidirectional: Tensor | None, past: int = 0) -> Tensor:
    """Which of the ``past`` + T positions each of the last T may see, those of ids ``[B, T]``: the ones up to its own,
    ``[T, P + T]``; in ``bidirectional`` rows all, ``[B, 1, T, T]``."""
    T = ids.shape[1]
    causal = torch.ones(T, past + T, dtype=torch.bool, device=ids.device).tril(past)
    return causal if bidirectional is None else causal | bidirectional[:, None, None, None]


def _continued(seen: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Positions ``[B, T]`` and mask ``[B, 1, T, P + T]`` of the last T positions; ``seen`` [B, P + T] is false for
    padding, ``order`` comes from ``_order``."""
    T, length = order.shape[-2:]
    past = length - T
    positions = (seen.cumsum(1) - 1).clamp(min=0)[:, past:]  # padding takes no position, so a text may begin anywhere
    # Padding sees itself; otherwise its softmax would be over nothing.
    itself = torch.zeros(T, length, dtype=torch.bool, device=seen.device).fill_diagonal_(True).roll(past, dims=1)
    return positions, (order & seen[:, None, None, :]) | itself


def initialise(model: GPT) -> None:
    """Draw from a normal distribution with standard deviation ``initializer_range``, biases zero (Radford et al. 2018,
    section 4.1), position embeddings with half of it, as released.

    The two projections that write into the residual stream are scaled by 1/sqrt(N), N = 2 * layers (2019, section 2.3).
    """
    deviation = model.config.initializer_range
    residual = 1 / math.sqrt(2 * model.config.layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = residual if name.endswith(("attention.out", "down")) else 1.0
            nn.init.normal_(module.weight, std=deviation * scale)
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.tokens.weight, std=deviation)
    nn.init.normal_(model.positions.weight, std=deviation / 2)
