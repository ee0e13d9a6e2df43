"""What every objective and the training loop agree on: a batch of rows, and a loss that is a sum and a count.

Parameters are checked in a moment, before anything runs: so neither this file nor an objective's imports torch before
there is a batch.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, Self

from plm_core.text.samplers import TokenRange

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from plm_core.models.output import Output

IGNORED = -100
"""The target of a position where no loss is taken (torch's default ``ignore_index``)."""
AT_ONCE = 2**27
"""Logits: 512 MiB in float32."""
AT_ONCE_COMPILED = 2**30
"""The same in a compiled step in bfloat16 on a GPU, which writes no logits in float32: 2 GiB, and as much for their
gradient. Fewer and larger products are faster."""

Carry = tuple["Tensor", ...]
"""What a model with memory hands from one batch to the next: tensors of B rows, without a gradient."""


@dataclass(frozen=True)
class Loss:
    """A sum and the number of its terms, divided once, so that accumulation, ranks and evaluation agree."""

    nll: Tensor
    """Scalar: the summed negative log-likelihood, in nats."""
    num_targets: Tensor
    """Scalar: the number of predictions in the sum. A tensor, so that nobody waits for the device to learn it."""
    carry: Carry | None = None
    """What the same rows of the next batch go on from; None for an objective without memory."""


def summed_nll(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """-sum log p of the targets ``[...]`` by logits ``[..., V]``, in float32 at least; ``IGNORED`` adds nothing.

    ``weights`` [...] is what each counts; None for one.
    """
    import torch
    from torch.nn import functional as F

    # In bfloat16 the sum over a vocabulary has three digits.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    if weights is None:
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    nats = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
    return (nats * weights.flatten().to(nats.dtype)).sum()


def output_nll(output: Output, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """``summed_nll`` by an output layer, of which never more than about ``AT_ONCE`` logits are in memory, or
    ``AT_ONCE_COMPILED``."""
    import torch

    lean = targets.is_cuda and torch.compiler.is_compiling() and torch.is_autocast_enabled("cuda")
    at_once = AT_ONCE_COMPILED if lean else AT_ONCE
    chunks = max(1, -(-targets.numel() * len(output.weight) // at_once))
    if chunks == 1 and not lean:  # a compiler makes the gradient with the logits, in one kernel
        return summed_nll(output.logits(), targets, weights)
    from plm_core.models.chunks import nll_in_chunks

    counts = torch.ones_like(targets) if weights is None else weights
    flat = output._replace(hidden=output.hidden.flatten(0, -2))
    return nll_in_chunks(flat, targets.flatten(), counts.flatten(), -(-targets.numel() // chunks))


@dataclass(frozen=True)
class Batch:
    """Rows of inputs with their targets."""

    inputs: Tensor
    """Token ids ``[B, T]``."""
    targets: Tensor
    """What is to be predicted, ``[B, ...]``; ``IGNORED`` where nothing is."""

    @property
    def num_targets(self) -> Tensor:
        """Scalar: the number of predictions."""
        return (self.targets != IGNORED).sum()

    @property
    def target_positions(self) -> Tensor:
        """Where in its row each target is predicted, ``[B, ...]`` as the targets; here, one at every position."""
        import torch

        return torch.arange(self.targets.shape[1], device=self.targets.device).expand_as(self.targets)

    def pinned(self, device: torch.device) -> Self:
        """The same batch in memory from which the device copies by itself; for a CPU the batch as it is."""
        return self._each(lambda tensor: tensor.pin_memory()) if device.type == "cuda" else self

    def to(self, device: torch.device) -> Self:
        """The same batch on a device. Nobody waits for the copy of one that is ``pinned``."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def first(self, rows: int) -> Self:
        """The first ``rows`` of the batch."""
        return self._each(lambda tensor: tensor[:rows])

    def split(self, parts: int) -> Iterator[Self]:
        """The batch in ``parts`` consecutive groups of rows (for gradient accumulation)."""
        columns = {f.name: getattr(self, f.name).chunk(parts) for f in fields(self)}
        for values in zip(*columns.values(), strict=True):
            yield type(self)(**dict(zip(columns, values, strict=True)))


class Batches(Protocol):
    """The batches that an objective makes of a token store."""

    def at(self, seed: int, step: int) -> Batch:
        """The batch of a step (from 0): a pure function of these two."""
        ...

    def share(self, seed: int, step: int, rank: int, size: int) -> Batch:
        """The rows of the process ``rank`` of ``size``, which share the batch of a step in consecutive parts.

        Where a row is dear to make, an objective makes no others.
        """
        return list(self.at(seed, step).split(size))[rank]

    def held_out(self, count: int) -> list[Batch]:
        """About ``count`` rows to validate on, always the same; a batch of them may continue the one before."""
        ...

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        """Which tokens of the store stand where in the inputs (before any is masked), for each row of ``at``."""
        ...

    def metrics(self) -> dict[str, float]:
        """What is to be known of how the store became rows, by name; nothing unless documents are packed."""
        return {}
