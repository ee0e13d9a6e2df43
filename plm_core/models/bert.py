"""BERT. Devlin, Chang, Lee, Toutanova 2019, "BERT: Pre-training of Deep Bidirectional Transformers".

Also RoBERTa (Liu et al. 2019), which is this model trained differently: no next-sentence prediction, dynamic masking,
packed full sentences. Section 3 of the paper and the released code: every position attends to every other, layer
normalisation follows each residual sum (post-norm, Vaswani et al. 2017), the input is the sum of the token, segment and
position embeddings, and two heads predict masked tokens and whether the second segment follows the first.

Two things deviate: GELU is computed exactly (erf) and not in its tanh form, as in PyTorch's ports of the released
weights, and initial weights are drawn from the whole normal distribution, not one truncated at two standard deviations.
One more is an option, off by default: heads that start by attending to a neighbour (``attend_to_neighbours``).

Shapes: B rows, T positions, N masked positions, D width, H heads, S segments, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import BERTConfig
from plm_core.models.blocks import attend, bidirectional_mask, check_ids, document_positions, rows_at, to_compute_dtype
from plm_core.models.output_layer import Output

POSITIONS = 2.0
"""The standard deviation of the positions of ``attend_to_neighbours``, in units of that of the tokens."""
SHARPNESS = 8.5
"""How far the neighbour's logit exceeds the mean of the others in the first block."""


class Attention(nn.Module):
    """Multi-head self-attention over all unmasked positions (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, attn_mask: Tensor | None, at: Tensor | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``, or to ``[B, N, D]`` for the queries ``at`` [B, N] only.

        ``attn_mask`` [B, 1, 1 or T, T] is false where a position is not attended to.
        """
        B, T, D = x.shape
        # Equation 1. The released weights are three matrices; concatenated, they are one product.
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        if at is not None:
            # Only some positions are queries, but all are keys.
            q = rows_at(q, at[:, None])
            attn_mask = attn_mask if attn_mask is None or attn_mask.shape[2] == 1 else rows_at(attn_mask, at[:, None])
        y = attend(q, k, v, attn_mask, dropout=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Post-norm: the sum of a sub-block and its input is normalised (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        assert config.inner is not None
        self.attention = Attention(config)
        self.norm_1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.up = nn.Linear(config.width, config.inner)
        self.down = nn.Linear(config.inner, config.width)
        self.norm_2 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attn_mask: Tensor | None, at: Tensor | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``, or to ``[B, N, D]`` for the positions ``at`` [B, N] only."""
        # Each sub-block's output is added to its input and normalised. With ``at``, the residual is selected as well.
        y = self.attention(x, attn_mask, at)
        x = to_compute_dtype(self.norm_1((x if at is None else rows_at(x, at)) + self.drop(y)))
        return to_compute_dtype(self.norm_2(x + self.drop(self.down(F.gelu(self.up(x))))))


class BERT(nn.Module):
    """The encoder with both heads: ``encode``, then ``logits`` for masked tokens, or ``pool`` and ``next_sentence``."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.first_position + config.context, config.width)
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.width, config.width)
        self.transform = nn.Linear(config.width, config.width)
        self.transform_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.follows = nn.Linear(config.width, 2)
        initialise(self, config.initializer_range)
        if config.initial_attention == "neighbours":
            attend_to_neighbours(self)

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Ids ``[B, T]`` to hidden states ``[B, T, D]`` that have seen all ids.

        ``segments`` [B, T] holds the segment of each id (None: all in the first), ``attention_mask`` [B, T] is false
        for padding, which no position sees. ``documents`` [B, T] holds the document of each id in its row; documents do
        not see each other. With ``at`` [B, N] only these positions' states are returned, ``[B, N, D]``, and the last
        block computes no others.

        Raises:
            ValueError: T is larger than ``context``, an id is outside the vocabulary, a segment outside the segments,
                or ``documents`` are not as in ``blocks.py``, or given together with ``attention_mask``.
        """
        x, attn_mask = embed_ids(self, ids, segments, attention_mask, documents)
        for block in self.blocks[:-1]:
            x = block(x, attn_mask)
        # The loss reads only the masked positions of the last block, so the others skip its feed-forward layer.
        return self.blocks[-1](x, attn_mask, at)

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task: the same as ``forward``."""
        return self(ids, segments, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """States ``[..., D]`` of masked positions to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at states ``[..., D]`` of masked positions; it is tied to the embedding (as released)."""
        return Output(self.transform_norm(F.gelu(self.transform(hidden))), self.tokens.weight, self.bias)

    def predict(self, ids: Tensor, at: Tensor) -> Tensor:
        """Ids ``[B, T]`` with masks to the logits ``[B, N, V]`` of the positions ``at`` [B, N]."""
        return self.logits(self(ids, at=at))

    def pool(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to one vector per row, ``[B, D]``: the first position's, through a tanh layer."""
        return torch.tanh(self.pooler(hidden[:, 0]))

    def next_sentence(self, pooled: Tensor) -> Tensor:
        """Pooled rows ``[B, D]`` to logits ``[B, 2]``: class 0 if the second segment follows the first, otherwise 1."""
        return self.follows(pooled)


def embed_ids(
    model: Any,
    ids: Tensor,
    segments: Tensor | None = None,
    attention_mask: Tensor | None = None,
    documents: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Ids ``[B, T]`` to the input of the first block ``[B, T, D]``, and the attention mask ``[B, 1, 1 or T, T]``.

    For the arguments and the ValueError see ``BERT.forward``; ELECTRA's input is the same.
    """
    attn_mask = bidirectional_mask(ids, model.config.vocab_size, model.config.context, attention_mask, documents)
    if segments is None or model.config.segments < 2:
        segments = torch.zeros_like(ids)
    check_ids(segments, model.config.segments or 1, "segments")
    # Position embeddings restart with each document.
    places = torch.arange(ids.shape[1], device=ids.device) if documents is None else document_positions(documents)
    # The input is the sum of three embeddings (section 3, "Input/Output Representations").
    x = model.tokens(ids) + model.positions(places + getattr(model.config, "first_position", 0))
    if model.segments is not None:
        x = x + model.segments(segments)
    return model.drop(to_compute_dtype(model.norm(x))), attn_mask


def initialise(model: nn.Module, deviation: float) -> None:
    """Draw matrices and embeddings from a normal distribution; zero biases, unit gains (as released)."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


@torch.no_grad()
def attend_to_neighbours(model: BERT) -> None:
    """Let half of each block's heads start by attending to one neighbour: at distances -1, +1, -2, +2 and so on.

    Trained models have such heads (Voita et al. 2019, section 5.2), and attention can be initialised with patterns of
    trained models (Trockman and Kolter 2023). The other heads attend evenly to all positions, for features of the whole
    text.
    """
    T, D = model.positions.weight.shape
    H = model.config.heads
    local = (H + 1) // 2

    # Positions are sines and cosines, as in Vaswani et al. 2017, section 3.5, but with frequencies spread evenly up to
    # half a turn per position: those of the paper are so low that neighbours look alike.
    # Shuffled: with evenly spread frequencies a head would see its neighbour again D/H positions on.
    frequencies = (torch.randperm(D // 2) + 0.5) * (torch.pi / (D // 2))
    angles = torch.arange(T)[:, None] * frequencies
    waves = torch.cat((angles.cos(), angles.sin()), dim=1)
    model.positions.weight.copy_(2**0.5 * POSITIONS * model.config.initializer_range * waves)

    # A head's queries and keys read only D/H of these coordinates, the keys rotated back by the distance, so that the
    # product of query t and key s is the sum of cos(frequency * (t + distance - s)): largest at the neighbour.
    # The coordinates by head: for each frequency the cosine, then the sine.
    cosines = torch.arange(D // 2).view(H, -1)[:local]
    heads = torch.cat((cosines, cosines + D // 2), dim=1).flatten()[:, None]
    distances = torch.tensor([(head // 2 + 1) * (-1) ** (head + 1) for head in range(local)])
    turns = (frequencies.view(H, -1)[:local] * distances[:, None]).repeat(1, 2).flatten()[:, None]
    across = torch.cat((cosines + D // 2, cosines), dim=1).flatten()[:, None]
    sign = torch.tensor([1.0, -1.0]).repeat_interleave(D // H // 2).repeat(local)[:, None]
    # The input is normalised: the share of its variance that is due to positions, alongside tokens and segments.
    share = POSITIONS**2 / (POSITIONS**2 + 2)
    scale = (SHARPNESS / share * (D / H) ** -0.5) ** 0.5
    for block in model.blocks:
        queries, keys, _ = block.get_parameter("attention.qkv.weight").view(3, D, D)[:, : len(heads)]
        queries.zero_().scatter_(1, heads, scale)
        keys.zero_().scatter_(1, heads, scale * turns.cos())
        keys.scatter_(1, across, scale * sign * turns.sin())
