"""The encoder-decoder Transformer. Vaswani et al. 2017, "Attention Is All You Need".

The encoder reads the source in both directions; the decoder writes the target from left to right and attends to the
encoder's states as well. Post-norm: each sub-block adds to its input, and the sum is normalised (section 5.4, equation
``LayerNorm(x + Sublayer(x))``). Source, target and output layer share one embedding (section 3.4), positions are sines
and cosines (section 3.5). As released (tensor2tensor), attention weights and the inner activations have dropout, and
weights are drawn by Glorot's rule.

``blocks`` holds the encoder's blocks, then the decoder's. The decoder's input begins with PAD, as in T5.

Shapes: B rows, S positions of the source, T of the target, P written before, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.models.blocks import attend, causal_order, check_ids, check_length, to_compute_dtype
from plm_core.models.kv_cache import LayerCache
from plm_core.models.output_layer import Output

Keys = tuple[Tensor, Tensor]
"""The keys and the values of one attention, each ``[B, H, positions, D/H]``."""


class Attention(nn.Module):
    """Multi-head attention of one sequence to another, or to itself (section 3.2)."""

    def __init__(self, width: int, heads: int, size: int, dropout: float, bias: bool, scaled: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.gain = 1.0 if scaled else math.sqrt(size)
        self.q = nn.Linear(width, heads * size, bias=bias)
        self.k = nn.Linear(width, heads * size, bias=bias)
        self.v = nn.Linear(width, heads * size, bias=bias)
        self.out = nn.Linear(heads * size, width, bias=bias)

    def keys(self, x: Tensor) -> Keys:
        """The keys and values of a sequence ``[B, S, D]``."""
        return self._by_head(self.k(x)), self._by_head(self.v(x))

    def forward(
        self, x: Tensor, keys: Keys, attn_mask: Tensor | None, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``. ``attn_mask``, which expands to [B, H, T, S], is false where a position does
        not attend; with None all attend to all or, if ``causal``, up to their own. ``bias`` [1, H, T, S] is added to
        the products."""
        y = attend(
            self._by_head(self.q(x)) * self.gain,
            *keys,
            attn_mask,
            causal,
            bias=None if bias is None else bias * self.gain,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out(y.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which also attends to the source (section 3.1)."""

    norms: Callable[[int], nn.Module] = nn.LayerNorm
    with_bias = scaled = True

    def __init__(self, config: Any, decoder: bool) -> None:
        super().__init__()
        size = getattr(config, "head_width", None) or config.width // config.heads

        def attention() -> Attention:
            return Attention(config.width, config.heads, size, config.dropout, self.with_bias, self.scaled)

        self.attention = attention()
        self.norm_1 = self.norms(config.width)
        if decoder:
            self.cross = attention()
            self.norm_cross = self.norms(config.width)
        self.up = nn.Linear(config.width, config.inner, bias=self.with_bias)
        self.down = nn.Linear(config.inner, config.width, bias=self.with_bias)
        self.norm_2 = self.norms(config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        bias: Tensor | None = None,
        source: Tensor | Keys | None = None,
        source_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``. In the decoder ``source`` are the encoder's states ``[B, S, D]``, or their
        keys and values, and ``cache`` holds those of what was written before (``kv_cache.LayerCache``)."""

        def itself(y: Tensor) -> Tensor:
            k, v = self.attention.keys(y)
            causal = attn_mask is None and source is not None and cache is None
            return self.attention(y, (k, v) if cache is None else cache.extend(k, v), attn_mask, bias, causal)

        x = self.add(x, self.norm_1, itself)
        if source is not None:
            keys = self.cross.keys(source) if isinstance(source, Tensor) else source
            x = self.add(x, self.norm_cross, lambda y: self.cross(y, keys, source_mask))
        return self.add(x, self.norm_2, self.feed_forward)

    def add(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum of ``x`` [B, T, D] and what a layer makes of it, normalised."""
        return to_compute_dtype(norm(x + self.drop(layer(x))))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Section 3.3."""
        return self.down(self.drop(F.relu(self.up(x))))


class DecoderCache:
    """What decoding keeps from token to token: the source's keys and values, and those of what was written."""

    def __init__(self, model: "Transformer", states: Tensor, attention_mask: Tensor | None) -> None:
        """``states`` [B, S, D] are the encoder's, ``attention_mask`` [B, S] is false where the source is padded."""
        self.source = [block.cross.keys(states) for block in model.decoder]
        self.source_mask = None if attention_mask is None else attention_mask[:, None, None, :]
        self.layers = [LayerCache() for _ in model.decoder]
        self.length = 0

    def reorder(self, rows: Tensor) -> None:
        """Continue from these rows ``[B]``; as long as there are as many as before, each keeps its source."""
        for layer in self.layers:
            layer.reorder(rows)
        if len(rows) < len(self.source[0][0]):
            self.source = [(keys[rows], values[rows]) for keys, values in self.source]
            self.source_mask = None if self.source_mask is None else self.source_mask[rows]


class Transformer(nn.Module):
    """The encoder and the decoder; next-token logits by ``logits`` with the shared embedding."""

    block: type[Block] = Block

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.rows, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(self.block(config, n >= config.layers) for n in range(2 * config.layers))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.tokens.weight, std=config.width**-0.5)

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The states of a source: ids ``[B, S]`` to ``[B, S, D]``. ``attention_mask`` [B, S] is false for padding.

        Raises:
            ValueError: S is larger than ``context``, or an id is outside the vocabulary and the sentinels.
        """
        check_length(ids.shape[1], self.config.context)
        seen = None if attention_mask is None else attention_mask[:, None, None, :]
        x = self.embed(ids, 0)
        bias = self.distance_bias(ids.shape[1], ids.shape[1], decoder=False)
        for block in self.encoder:
            x = block(x, seen, bias)
        return self.end(x, decoder=False)

    def decode(
        self,
        ids: Tensor,
        states: Tensor | None,
        attention_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Ids ``[B, T]`` of the target, each of which sees those up to its own, to ``[B, T, D]``.

        ``states`` [B, S, D] are the encoder's, ``attention_mask`` [B, S] is false where the source is padded; a
        ``cache`` holds both, and what was written before.

        Raises:
            ValueError: P + T is larger than ``context``, or an id is outside the vocabulary and the sentinels.
        """
        T = ids.shape[1]
        past = cache.length if cache else 0
        check_length(past + T, self.config.context)
        if cache is None:
            sources: list[Any] = [states] * self.config.layers
            source_mask = None if attention_mask is None else attention_mask[:, None, None, :]
            layers: list[Any] = [None] * self.config.layers
        else:
            sources, source_mask, layers = cache.source, cache.source_mask, cache.layers
            cache.length += T
        x = self.embed(ids, past)
        bias = self.distance_bias(T, past + T, decoder=True)
        # Without a bias and a cache, attention uses the causal kernel.
        seen = None if T == 1 or (bias is None and cache is None) else causal_order(T, past + T, ids.device)
        for block, source, layer in zip(self.decoder, sources, layers, strict=True):
            x = block(x, seen, bias, source, source_mask, layer)
        return self.end(x, decoder=True)

    def embed(self, ids: Tensor, past: int) -> Tensor:
        """Ids ``[B, T]`` from position ``past`` on to ``[B, T, D]``: sections 3.4 and 3.5."""
        check_ids(ids, self.config.rows)
        D = self.config.width
        places = torch.arange(past, past + ids.shape[1], device=ids.device, dtype=torch.float32)
        rates = 10_000.0 ** (-torch.arange(0, D, 2, device=ids.device, dtype=torch.float32) / D)
        turns = places[:, None] * rates
        positions = torch.stack((turns.sin(), turns.cos()), dim=-1).flatten(1)[:, :D]
        x = self.tokens(ids)
        return self.drop(to_compute_dtype(x * math.sqrt(D) + positions.to(x.dtype)))

    def distance_bias(self, queries: int, keys: int, decoder: bool) -> Tensor | None:
        """What is added to the products of the last ``queries`` of ``keys`` positions; here, nothing."""
        return None

    def end(self, x: Tensor, decoder: bool) -> Tensor:
        """What follows the last block; here, nothing."""
        return x

    def output(self, hidden: Tensor) -> Output:
        """The output layer at the decoder's states ``[..., D]``."""
        return Output(hidden, self.tokens.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """The decoder's states ``[..., D]`` to logits ``[..., V]``."""
        return self.output(hidden).logits()

    @property
    def encoder(self) -> list[Block]:
        """The encoder's blocks."""
        return cast(list[Block], [*self.blocks][: self.config.layers])

    @property
    def decoder(self) -> list[Block]:
        """The decoder's blocks."""
        return cast(list[Block], [*self.blocks][self.config.layers :])
