"""What a model's attention looks at: the weights of every head, for plots. Used by the `attend` command.

Shapes: T positions, H heads, L layers, D width, Q queries, K keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from plm_core.finetuning.input_formats import InputFormat
from plm_core.objectives.span_corruption import shifted


@torch.no_grad()
def attention_maps(model: Any, ids: Tensor, input_format: InputFormat) -> Tensor:
    """The attention weights of one text, ids ``[1, T]``, as ``[L, H, T, T]``; each row of a map sums to one.

    The text is read in the direction of the input format, as in fine-tuning: from left to right, or in both directions
    (XLNet: the content stream).
    """
    model.eval()
    with _Recorder() as recorder:
        input_format.states(model, ids, torch.zeros_like(ids), torch.tensor([ids.shape[1]], device=ids.device))
    return torch.cat(recorder.maps)


@torch.no_grad()
def cross_attention_maps(model: Any, ids: Tensor, written: Tensor) -> Tensor:
    """How an encoder-decoder attends to a source, ids ``[1, K]``, when it writes each of the ids ``written`` [1, Q]:
    ``[L, H, Q, K]``."""
    model.eval()
    states = model.encode(ids)
    with _Recorder() as recorder:
        model.decode(shifted(written), states)
    return torch.cat(recorder.maps[1::2])  # each block attends to what is written first


class _Recorder(TorchFunctionMode):
    """Also computes the weights at every call of ``scaled_dot_product_attention``, which does not return them."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            self.maps.append(weights(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k^T scale + mask) as ``[B, H, Q, K]`` (Vaswani et al. 2017, equation 1), from the arguments of
    ``scaled_dot_product_attention``: its result for one-hot values. Dropout is left out."""
    values = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
    return F.scaled_dot_product_attention(q, k, values, attn_mask, is_causal=is_causal, scale=scale)
