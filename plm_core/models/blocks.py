"""What every paper's model shares to the letter: how sizes and inputs are checked. Used by the model files.

Shapes: B rows, T positions.
"""

from typing import Any

import torch
from torch import Tensor


def check_sizes(config: Any, *names: str) -> None:
    """Raise the ValueError of a configuration whose sizes make no model: below 1, or heads that do not divide."""
    for name in ("vocab_size", "context", "layers", "heads", "width", *names):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}: {getattr(config, name)}; expected at least 1")
    if config.width % config.heads:
        raise ValueError(f"heads: {config.heads} does not divide width {config.width}")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout: {config.dropout}; expected at least 0 and below 1")
    if not config.initializer_range > 0:
        raise ValueError(f"initializer_range: {config.initializer_range}; expected above 0")


def check_ids(ids: Tensor, size: int, name: str = "vocab_size") -> None:
    """Raise ValueError when an id ``[B, T]`` has no row in an embedding of ``size`` rows.

    Looked at on the CPU only: a GPU would be waited for, and token stores are checked when they are opened.
    """
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= size:
            raise ValueError(f"{name}: the id {low if low < 0 else high} is not below {size}; expected 0 to {size - 1}")


def check_length(length: int, context: int) -> None:
    """Raise ValueError when a sequence is longer than the positions that a model has."""
    if length > context:
        raise ValueError(f"context: a sequence of {length} tokens is longer than the {context} positions")
