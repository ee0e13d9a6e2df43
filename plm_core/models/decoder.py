"""What GPT and LLaMA share: rows are read from left to right, and the output layer is the token embedding (tied).

Whole rows, as in training, need no mask. Padding, documents side by side and rows that are read in both directions are
masks, made here and nowhere in a model. Shapes: B rows, T positions, P positions read before, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plm_core.models.blocks import check_documents, check_ids, check_length, document_positions, same_document
from plm_core.models.output_layer import Output


class Decoder(nn.Module):
    """A subclass has ``config``, ``tokens``, ``blocks`` and ``states``."""

    config: Any
    tokens: nn.Embedding

    def states(
        self, ids: Tensor, positions: Tensor, attn_mask: Tensor | None, caches: Sequence[Any] | None = None
    ) -> Tensor:
        """Ids ``[B, T]`` at positions ``[T]`` or ``[B, T]`` to hidden states ``[B, T, D]``.

        ``attn_mask`` [B or 1, 1, T, P + T] is true where a position attends; None for every position up to its own.
        ``caches`` holds one object per block, whose ``extend(k, v)`` puts the keys and values of earlier positions
        before those of this call (``generation.decoding``).
        """
        raise NotImplementedError

    def read(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        bidirectional: Tensor | None = None,
    ) -> Tensor:
        """Read from left to right: ids ``[B, T]`` to hidden states ``[B, T, D]`` that have seen ids up to their own.

        ``attention_mask`` [B, T] is false for padding, which is never seen and takes no position. ``documents`` [B, T]
        holds the document of each id in its row: each is read independently. ``bidirectional`` [B] is true for rows
        that are read like BERT's: their states have seen all ids.

        Raises:
            ValueError: T is larger than ``context``, an id is outside the vocabulary, ``documents`` are not as
                ``blocks`` says or given together with ``attention_mask``, or ``bidirectional`` does not have B rows.
        """
        B, T = ids.shape
        check_length(T, self.config.context)
        check_ids(ids, self.config.vocab_size)
        positions = torch.arange(T, device=ids.device)
        if attention_mask is None and documents is None and bidirectional is None:
            # All rows are causal: without a mask, attention uses the causal kernel.
            return self.states(ids, positions, None)
        seen = causal_order(T, T, ids.device)
        if bidirectional is not None:
            if bidirectional.shape != (B,):
                shape = tuple(bidirectional.shape)
                raise ValueError(f"bidirectional: shape {shape}; expected one value for each of the {B} rows")
            seen = seen | bidirectional[:, None, None, None]
        if documents is not None:
            # Packing: a document's positions begin at 0, and each sees only its own document.
            if attention_mask is not None:
                raise ValueError("documents: given together with attention_mask; expected padding as one more document")
            check_documents(documents, ids)
            return self.states(ids, document_positions(documents), same_document(documents) & seen)
        if attention_mask is not None:
            return self.states(ids, *positions_with_padding(attention_mask, seen))
        return self.states(ids, positions, seen)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]`` to hidden states ``[B, T, D]``, as ``read``."""
        return self.read(ids, attention_mask)

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task; there are no segments: examples hold a delimiter instead."""
        return self.read(ids, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[..., D]`` to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at hidden states ``[..., D]``."""
        return Output(hidden, self.tokens.weight)


def causal_order(T: int, length: int, device: torch.device) -> Tensor:
    """Which of ``length`` positions each of the last T may see, the ones up to its own: ``[T, length]``."""
    return torch.ones(T, length, dtype=torch.bool, device=device).tril(length - T)


def positions_with_padding(attention_mask: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Positions ``[B, T]`` and mask ``[B, 1, T, P + T]`` of the last T positions; ``attention_mask`` [B, P + T] is
    false for padding, ``seen`` [..., T, P + T] is the mask without padding."""
    T, length = seen.shape[-2:]
    past = length - T
    # Padding takes no position, so a text may begin anywhere.
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]
    # Padding sees itself; otherwise its softmax would be over nothing.
    itself = torch.zeros(T, length, dtype=torch.bool, device=seen.device).fill_diagonal_(True).roll(past, dims=1)
    return positions, (seen & attention_mask[:, None, None, :]) | itself
