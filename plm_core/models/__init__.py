"""Architectures, one file a paper. ``MODELS`` names them; a new one is a file and a line."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from plm_core.models.gpt import GPT, GPTConfig


@dataclass(frozen=True)
class Architecture:
    """A model class and its configuration."""

    config: type[Any]
    """A frozen dataclass with at least ``vocab_size`` and ``context``."""
    model: type[nn.Module]
    """Built from the configuration alone."""


MODELS = {"gpt": Architecture(GPTConfig, GPT)}
