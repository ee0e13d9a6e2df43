"""What every objective and the training loop agree on: a batch of rows, and a loss that is a sum and a count.

Shapes: B rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

IGNORED = -100
"""The target of a position where no loss is taken (torch's default ``ignore_index``)."""


@dataclass(frozen=True)
class Loss:
    """A sum and its count, divided once, so that accumulation, ranks and evaluation agree."""

    nats: Tensor
    """Scalar: the summed negative log-likelihood, in nats."""
    count: Tensor
    """Scalar: the number of predictions in the sum. A tensor, so that nobody waits for the device to learn it."""


@dataclass(frozen=True)
class Batch:
    """Rows of inputs with their targets."""

    inputs: Tensor
    """Token ids ``[B, T]``."""
    targets: Tensor
    """What is to be predicted, ``[B, ...]``; ``IGNORED`` where nothing is."""

    @property
    def count(self) -> Tensor:
        """Scalar: the number of predictions."""
        return (self.targets != IGNORED).sum()

    def to(self, device: torch.device) -> Self:
        """The same batch on a device."""
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)}
        return type(self)(**moved)

    def split(self, parts: int) -> Iterator[Self]:
        """The batch in ``parts`` consecutive groups of rows (for gradient accumulation)."""
        columns = {f.name: getattr(self, f.name).chunk(parts) for f in fields(self)}
        for values in zip(*columns.values(), strict=True):
            yield type(self)(**dict(zip(columns, values, strict=True)))


class Objective(Protocol):
    """The two functions of an objective."""

    def batch(self, rows: np.ndarray) -> Batch:
        """Rows of tokens ``[B, T + 1]`` to a batch."""
        ...

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The loss of a model on a batch."""
        ...
