"""What the models share: attention, input checks, documents packed in a row, rows chosen by index, decoders.

``documents`` [B, T] holds the number of each position's document in its row; the numbers are non-decreasing along a
row, and padding is one more document. Whole causal rows, as in training, need no mask. The masks for padding, packed
documents and rows that are read in both directions are made here and nowhere in a model.

Shapes: B rows, T positions, P positions read before, N chosen rows, Q queries, K keys, R distances, H heads, D width,
V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from plm_core.models.output_layer import Output

SHORT = 512
"""The most keys for which compiled attention on a CPU keeps its weights for the backward pass."""
SHORT_BFLOAT16 = 128
"""The most keys for which attention in bfloat16 on a CPU is computed in float32: torch's kernel is made for longer rows
(64 heads of width 32, 128 keys: 18.5 ms forward and backward, 8.3 in float32; with 256 keys there is no difference)."""
TILE = 128
"""The number of queries and keys in a block, which a GPU kernel computes or skips as a whole."""
FASTEST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""torch's kernels for GPUs, the fastest first."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    causal: bool = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax((q k + bias) / sqrt(D/H)) v: Vaswani et al. 2017, equation 1; the bias as Dai et al. 2019, section 3.3.

    Queries ``[B, H, Q, D/H]``, keys and values ``[B, H, K, D/H]``, to ``[B, H, Q, D/H]``. ``attn_mask``, of a shape
    that expands to [B, H, Q, K], is false where a query does not see a key; with None it sees all, or with ``causal``
    those up to its own position. A query that sees none gets zeros. ``dropout`` is the probability of zeroing a weight.
    """
    compiling = torch.compiler.is_compiling()
    square = q.shape[2] == k.shape[2]

    # Compilers fuse everything between the two products; on rows this short, torch's CPU kernel is slower.
    if compiling and q.device.type == "cpu" and k.shape[2] <= SHORT:
        scores = q @ k.transpose(-1, -2)
        scores = (scores if bias is None else scores + bias) * q.shape[-1] ** -0.5
        if causal:
            # torch's kernel has a flag for causal attention; here the mask is explicit.
            attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        if attn_mask is None:
            weights = scores.softmax(-1)
        else:
            hidden = ~attn_mask
            weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0.0)
        return F.dropout(weights, dropout) @ v

    # Otherwise the fastest of torch's kernels for these tensors.
    if bias is not None:
        # torch's kernels take one additive mask: the bias, with minus infinity for what is not seen.
        scaled = bias * q.shape[-1] ** -0.5
        attn_mask = (scaled if attn_mask is None else scaled.masked_fill(~attn_mask, float("-inf"))).to(v.dtype)
    elif q.is_cuda and attn_mask is not None and compiling and not dropout and square and _has_blocks(q, attn_mask):
        return _in_blocks(q.to(v.dtype), k.to(v.dtype), v, attn_mask)
    elif q.is_cuda and attn_mask is None and square and q.shape[2] % TILE == 0:
        # cuDNN's if rows fill its tiles: with a partly filled tile it has returned NaN gradients (device.py).
        with sdpa_kernel(FASTEST, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, None, dropout, causal)
    elif q.device.type == "cpu" and v.dtype == torch.bfloat16 and k.shape[2] <= SHORT_BFLOAT16:
        mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
        with torch.autocast("cpu", enabled=False):
            y = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout, causal)
        return y.to(v.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, causal)


def _has_blocks(q: Tensor, attn_mask: Tensor) -> bool:
    """Whether a mask for all heads has more than one block, and heads have a size that FlexAttention supports."""
    return attn_mask.ndim == 4 and attn_mask.shape[1] == 1 and q.shape[2] > TILE and q.shape[-1] >= 16


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
    """``attend`` by FlexAttention (Dong et al. 2024), with as many queries as keys: blocks that are masked entirely are
    skipped, and the mask is read only in partly masked ones. ``attn_mask`` is [1 or B, 1, 1 or Q, K]."""
    return flex_attention(q, k, v, block_mask=_blocks_of(attn_mask, q.shape[2]))


def _blocks_of(attn_mask: Tensor, T: int) -> BlockMask:
    alike = len(attn_mask) == 1
    mask = attn_mask[:, 0].expand(-1, T, T).contiguous()

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[0, i, j] if alike else mask[b, i, j]

    return create_block_mask(seen, None if alike else len(mask), None, T, T, device=mask.device, BLOCK_SIZE=TILE)


def to_compute_dtype(x: Tensor) -> Tensor:
    """The residual stream ``[B, T, D]`` in the dtype of products, if a GPU computes in mixed precision.

    Autocast returns embeddings and norms in float32, and with them every sum of the stream: twice the bytes to read and
    write, four times per block.
    """
    mixed = x.device.type != "cpu" and torch.is_autocast_enabled("cuda")
    return x.to(torch.get_autocast_dtype("cuda")) if mixed else x


def check_ids(ids: Tensor, size: int, name: str = "vocab_size") -> None:
    """Raise ValueError if an id ``[B, T]`` has no row in an embedding of ``size`` rows.

    Only on a CPU: on a GPU the check would wait for the device, and token stores are checked when opened.
    """
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= size:
            raise ValueError(f"{name}: the id {low if low < 0 else high} is not below {size}; expected 0 to {size - 1}")


def check_length(length: int, context: int) -> None:
    """Raise ValueError if a sequence is longer than the model's context."""
    if length > context:
        raise ValueError(f"context: a sequence of {length} tokens is longer than the {context} positions")


def check_documents(documents: Tensor, ids: Tensor) -> None:
    """Raise ValueError unless ``documents`` has the shape of the ids ``[B, T]`` and is non-decreasing along rows.

    The numbers are checked only on the CPU, like ids.
    """
    if documents.shape != ids.shape:
        raise ValueError(f"documents: shape {tuple(documents.shape)}; expected that of the ids {tuple(ids.shape)}")
    if documents.device.type == "cpu" and not torch.compiler.is_compiling() and (documents.diff(dim=1) < 0).any():
        raise ValueError("documents: a number is smaller than the one before it; expected non-decreasing numbers")


def bidirectional_mask(
    ids: Tensor, vocab_size: int, context: int, attention_mask: Tensor | None, documents: Tensor | None
) -> Tensor | None:
    """What each of the ids ``[B, T]`` sees when read in both directions: ``[B, 1, 1 or T, T]``; None if all see all.

    ``attention_mask`` [B, T] is false for padding.

    Raises:
        ValueError: T is larger than ``context``, an id is outside the vocabulary, or ``documents`` are not as described
            above or given together with ``attention_mask``.
    """
    check_length(ids.shape[1], context)
    check_ids(ids, vocab_size)
    if documents is None:
        # One row of the mask serves all queries.
        return None if attention_mask is None else attention_mask[:, None, None, :]
    if attention_mask is not None:
        raise ValueError("documents: given together with attention_mask; expected padding to be a separate document")
    check_documents(documents, ids)
    return same_document(documents)


def document_positions(documents: Tensor) -> Tensor:
    """Each position's place in its document, from 0: ``[B, T]`` to ``[B, T]``."""
    places = torch.arange(documents.shape[1], device=documents.device)
    # The position where a document begins is kept, and subtracted until the next one begins.
    begins = F.pad(documents.diff(dim=1) != 0, (1, 0), value=True)
    return places - torch.where(begins, places, 0).cummax(dim=1).values


def same_document(documents: Tensor) -> Tensor:
    """Whether two positions are in one document: ``[B, T]`` to ``[B, 1, T, T]``."""
    return documents[:, None, :, None] == documents[:, None, None, :]


# The gradient of torch's ``gather`` adds to places that other threads may be adding to: on a GPU either in any order
# or, for deterministic results, after a sort, which can take longer than the rest of a layer. The gradients of the two
# functions below are matrix products and gathers: they repeat bit by bit and cost next to nothing.


def rows_at(x: Tensor, at: Tensor) -> Tensor:
    """The rows ``at`` [..., N] of matrices ``[..., T, D]``: ``[..., N, D]``. Gradients of a row chosen twice add up."""
    return _Rows.apply(x, at)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        ctx.rows = x.shape[-2]
        return x.gather(-2, at[..., None].expand(*x.shape[:-2], -1, x.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (at,) = ctx.saved_tensors
        # [..., T, N]: a product with ones and zeros adds each gradient to its row.
        chosen = at[..., None, :] == torch.arange(ctx.rows, device=at.device)[:, None]
        return chosen.to(gradient.dtype) @ gradient, None


def windows_at(x: Tensor, starts: Tensor, length: int) -> Tensor:
    """The ``length`` columns from ``starts`` [B, Q] on of each row of ``x`` [B, H, Q, R]: ``[B, H, Q, length]``."""
    return _Windows.apply(x, starts, length)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(starts)
        ctx.columns = x.shape[-1]
        ctx.length = length
        columns = starts[:, None, :, None] + torch.arange(length, device=x.device)
        return x.gather(-1, columns.expand(*x.shape[:-1], -1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (starts,) = ctx.saved_tensors
        # No column is chosen twice, so a column looks up its gradient: the same shift, the other way.
        places = torch.arange(ctx.columns, device=gradient.device) - starts[:, None, :, None]
        inside = (places >= 0) & (places < ctx.length)
        taken = gradient.gather(-1, places.clamp(0, ctx.length - 1).expand(*gradient.shape[:-1], -1))
        return taken.masked_fill(~inside, 0.0), None, None


class Decoder(nn.Module):
    """A model that reads from left to right. A subclass has ``config``, ``tokens``, ``blocks`` and ``states``."""

    config: Any
    tokens: nn.Embedding

    def states(
        self, ids: Tensor, positions: Tensor, attn_mask: Tensor | None, caches: Sequence[Any] | None = None
    ) -> Tensor:
        """Ids ``[B, T]`` at positions ``[T]`` or ``[B, T]`` to hidden states ``[B, T, D]``.

        ``attn_mask`` [B or 1, 1, T, P + T] is true where a position attends; None for every position up to its own.
        ``caches`` holds one object per block, whose ``extend(k, v)`` puts the keys and values of earlier positions
        before those of this call (``kv_cache.LayerCache``).
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
        holds the document of each id in its row; documents do not see each other. ``bidirectional`` [B] is true for
        rows that are read in both directions, like BERT's: their states have seen all ids.

        Raises:
            ValueError: T is larger than ``context``, an id is outside the vocabulary, ``documents`` are not as in this
                file's docstring, or given together with ``attention_mask``, or ``bidirectional`` does not have B rows.
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
        """The output layer at hidden states ``[..., D]``: the token embedding (tied)."""
        return Output(hidden, self.tokens.weight)


def causal_order(T: int, length: int, device: torch.device) -> Tensor:
    """Which of ``length`` positions each of the last T may see, the ones up to its own: ``[T, length]``."""
    return torch.ones(T, length, dtype=torch.bool, device=device).tril(length - T)


def positions_with_padding(attention_mask: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Positions ``[B, T]`` and mask ``[B, 1, T, P + T]`` of the last T positions; ``attention_mask`` [B, P + T] is
    false for padding, ``seen`` [..., T, P + T] is the mask without padding."""
    T, length = seen.shape[-2:]
    past = length - T
    # Padding takes no position: positions are counted from where the text begins.
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]
    # Padding sees itself; otherwise its softmax would be over an empty set.
    itself = torch.zeros(T, length, dtype=torch.bool, device=seen.device).fill_diagonal_(True).roll(past, dims=1)
    return positions, (seen & attention_mask[:, None, None, :]) | itself
