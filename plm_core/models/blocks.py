"""Exactly what several papers' models share: checks of sizes and inputs, documents in a row, and attention.

Used by the model files. ``documents`` [B, T] holds the number of each position's document in its row; the numbers are
non-decreasing along a row, and padding is one more document.

Shapes: B rows, T positions, Q queries, K keys, H heads, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

SHORT = 512
"""The most keys for which compiled attention on a CPU keeps its weights for the backward pass."""
SHORT_BFLOAT16 = 128
"""The most keys for which attention in bfloat16 on a CPU is computed in float32: torch's kernel is made for longer rows
(forward and backward of 64 heads of width 32, 128 keys: 18.5 and 8.3 ms; with 256 keys they are alike)."""
TILE = 128
"""The queries and keys of a block, which a GPU kernel computes or skips as a whole."""
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
    if compiling and q.device.type == "cpu" and k.shape[2] <= SHORT:
        return _written_out(q, k, v, attn_mask, causal, bias, dropout)
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
            found = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout, causal)
        return found.to(v.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, causal)


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """``attend`` for compilers, which fuse everything between two products; torch's CPU kernel is slower on rows this
    short."""
    scores = q @ k.transpose(-1, -2)
    scores = (scores if bias is None else scores + bias) * q.shape[-1] ** -0.5
    if causal:
        # torch's kernel has a flag for causal attention; here the mask is explicit.
        attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~attn_mask, 0.0)
    return F.dropout(weights, dropout) @ v


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


def narrowed(x: Tensor) -> Tensor:
    """The residual stream ``[B, T, D]`` in the dtype of products, if a GPU computes in mixed precision.

    Autocast returns embeddings and norms in float32, and with them every sum of the stream: twice the bytes to read and
    write, four times per block.
    """
    mixed = x.device.type != "cpu" and torch.is_autocast_enabled("cuda")
    return x.to(torch.get_autocast_dtype("cuda")) if mixed else x


def check_ids(ids: Tensor, size: int, name: str = "vocab_size") -> None:
    """Raise ValueError if an id ``[B, T]`` has no row in an embedding of ``size`` rows.

    Checked only on the CPU: a GPU would have to be waited for, and token stores are checked when they are opened.
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


def places_in(documents: Tensor) -> Tensor:
    """Each position's place in its document, from 0: ``[B, T]`` to ``[B, T]``."""
    here = torch.arange(documents.shape[1], device=documents.device)
    # The position where a document begins is kept, and subtracted until the next one begins.
    begins = F.pad(documents.diff(dim=1) != 0, (1, 0), value=True)
    return here - torch.where(begins, here, 0).cummax(dim=1).values


def same_document(documents: Tensor) -> Tensor:
    """Whether two positions are in one document: ``[B, T]`` to ``[B, 1, T, T]``."""
    return documents[:, None, :, None] == documents[:, None, None, :]
