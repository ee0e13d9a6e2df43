"""The keys and values of what a decoder has read, so that a new token costs one row. Used wherever texts are written.

Shapes: B rows, T positions, P positions read before, H heads of keys, D width, S the size of a head.
"""

import torch
from torch import Tensor

from plm_core.models.blocks import Decoder, causal_order, check_ids, check_length, positions_with_padding


class LayerCache:
    """The keys and values of one block, each ``[B, H, P, S]``."""

    def __init__(self) -> None:
        self.pair: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of T more positions, ``[B, H, T, S]``; return all of them, ``[B, H, P + T, S]``."""
        if self.pair is not None:
            k = torch.cat((self.pair[0], k), dim=2)
            v = torch.cat((self.pair[1], v), dim=2)
        self.pair = (k, v)
        return self.pair

    def reorder(self, rows: Tensor) -> None:
        """Continue from these rows ``[B]``, of which one may be there several times."""
        if self.pair is not None:
            self.pair = (self.pair[0][rows], self.pair[1][rows])


class KVCache:
    """The cache of a model; it is empty at first."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.layers = [LayerCache() for _ in range(model.config.layers)]
        self.attention_mask: Tensor | None = None
        """``[B, P]``, false where an id was padding."""

    def reorder(self, rows: Tensor) -> None:
        """Continue from these rows ``[B]``."""
        for layer in self.layers:
            layer.reorder(rows)
        self.attention_mask = None if self.attention_mask is None else self.attention_mask[rows]

    def read(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]`` that continue what was read before, to hidden states ``[B, T, D]``.

        ``attention_mask`` [B, T] is false for padding.

        Raises:
            ValueError: P + T is larger than the model's ``context``, or an id is outside its vocabulary.
        """
        T = ids.shape[1]
        before = self.attention_mask
        check_length(T + (0 if before is None else before.shape[1]), self.model.config.context)
        check_ids(ids, self.model.config.vocab_size)
        kept = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        self.attention_mask = kept if before is None else torch.cat((before, kept), dim=1)
        if before is None and attention_mask is None:
            return self.model.states(ids, torch.arange(T, device=ids.device), None, self.layers)
        seen = causal_order(T, self.attention_mask.shape[1], ids.device)
        return self.model.states(ids, *positions_with_padding(self.attention_mask, seen), self.layers)
