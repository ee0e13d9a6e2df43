"""Architectures, one file a paper. ``MODELS`` names them; a new one is a file, its section and a line here.

Every model has ``config``, ``encode(ids, segments, keep)`` to hidden states for a task, and ``logits(hidden)``. One
that can read from left to right has ``read(ids, keep, state)`` to hidden states and the state that the next call goes
on from.
"""

from dataclasses import dataclass

from torch import nn

from plm_core.models import bert, gpt, xlnet
from plm_core.sections.models import SHAPES, Shape


@dataclass(frozen=True)
class Architecture(Shape):
    """What is known of an architecture, and its model."""

    model: type[nn.Module]
    """Built from the configuration alone."""


_CLASSES: dict[str, type[nn.Module]] = {"gpt": gpt.GPT, "bert": bert.BERT, "xlnet": xlnet.XLNet}
MODELS = {name: Architecture(**vars(SHAPES[name]), model=model) for name, model in _CLASSES.items()}
