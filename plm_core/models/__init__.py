"""Architectures, one file a paper. ``MODELS`` names them; a new one is a file and a line.

Every model has ``config``, ``encode(ids, segments, keep)`` to hidden states for a task, and ``logits(hidden)``. One
that can read from left to right has ``read(ids, keep, state)`` to hidden states and the state that the next call goes
on from.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from plm_core.models import bert, gpt, xlnet


@dataclass(frozen=True)
class Architecture:
    """A model class and its configuration."""

    config: type[Any]
    """A frozen dataclass with at least ``vocab_size``, ``context``, ``layers``, ``heads`` and ``width``."""
    model: type[nn.Module]
    """Built from the configuration alone."""
    presets: dict[str, dict[str, int]]
    """The published sizes by name."""


MODELS = {
    "gpt": Architecture(gpt.GPTConfig, gpt.GPT, gpt.PRESETS),
    "bert": Architecture(bert.BERTConfig, bert.BERT, bert.PRESETS),
    "xlnet": Architecture(xlnet.XLNetConfig, xlnet.XLNet, xlnet.PRESETS),
}
