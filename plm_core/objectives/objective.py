"""The interface of objectives: a section of the parameters, batches of rows, and a loss that is a sum and a count.

An objective's code in other packages is named as ``module:attribute`` and not imported: training does not depend on
scoring. To keep the parameter check fast, neither this file nor any objective imports torch before there is a batch.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from plm_core.text.samplers import TokenRange
from plm_core.text.token_store import TokenStore

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from plm_core.models.output_layer import Output

IGNORED = -100
"""The target of a position without a loss (torch's default ``ignore_index``)."""
AT_ONCE = 2**27
"""The most logits in memory: 512 MiB in float32."""
AT_ONCE_COMPILED = 2**30
"""The same in a compiled step in bfloat16 on a GPU, which stores no logits in float32: 2 GiB, and as much for their
gradient. Fewer and larger products are faster."""

Carry = tuple["Tensor", ...]
"""What a model with memory passes from one batch to the next: tensors of B rows, without a gradient."""


@dataclass(frozen=True)
class Loss:
    """A sum and the number of its terms, divided only once, so that accumulation, ranks and evaluation agree."""

    nll: Tensor
    """Scalar: the summed negative log-likelihood, in nats."""
    num_targets: Tensor
    """Scalar: the number of predictions in the sum. A tensor, to avoid waiting for the device."""
    carry: Carry | None = None
    """What the same rows of the next batch continue from; None for an objective without memory."""


class Hidden(NamedTuple):
    """What a model without memory computes from a batch before its output layer."""

    states: Tensor
    """``[B, ..., D]``: the hidden state that predicts each target."""
    others: Tensor | float
    """The summed nats of what else is predicted, such as whether a text follows another."""


def summed_nll(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """-sum log p of the targets ``[...]`` by logits ``[..., V]``, in float32 at least; ``IGNORED`` adds nothing.

    ``weights`` [...] is the weight of each; None for 1.
    """
    import torch
    from torch.nn import functional as F

    # In bfloat16, the sum over a vocabulary would have only three significant digits.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    if weights is None:
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    nats = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
    return (nats * weights.flatten().to(nats.dtype)).sum()


def output_nll(output: Output, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """``summed_nll`` for an output layer, with at most about ``AT_ONCE`` or ``AT_ONCE_COMPILED`` logits in memory."""
    import torch

    lean = targets.is_cuda and torch.compiler.is_compiling() and torch.is_autocast_enabled("cuda")
    at_once = AT_ONCE_COMPILED if lean else AT_ONCE
    chunks = max(1, -(-targets.numel() * len(output.weight) // at_once))
    if chunks == 1 and not lean:  # a compiler computes the gradient with the logits, in one kernel
        return summed_nll(output.logits(), targets, weights)
    from plm_core.models.output_layer import nll_in_chunks

    counts = torch.ones_like(targets) if weights is None else weights
    flat = output._replace(hidden=output.hidden.flatten(0, -2))
    return nll_in_chunks(flat, targets.flatten(), counts.flatten(), -(-targets.numel() // chunks))


@dataclass(frozen=True)
class Batch:
    """Rows of inputs with their targets."""

    inputs: Tensor
    """Token ids ``[B, T]``."""
    targets: Tensor
    """The tokens to predict, ``[B, ...]``; ``IGNORED`` where there is none."""

    @property
    def num_targets(self) -> Tensor:
        """Scalar: the number of predictions."""
        return (self.targets != IGNORED).sum()

    @property
    def target_positions(self) -> Tensor:
        """Where in its row each target is predicted, ``[B, ...]`` like the targets; here, one at every position."""
        import torch

        return torch.arange(self.targets.shape[1], device=self.targets.device).expand_as(self.targets)

    def pinned(self, device: torch.device) -> Self:
        """The same batch in pinned memory; for a CPU the batch itself."""
        return self._each(lambda tensor: tensor.pin_memory()) if device.type == "cuda" else self

    def to(self, device: torch.device) -> Self:
        """The same batch on a device. The copy of a ``pinned`` one is asynchronous."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def split(self, parts: int) -> Iterator[Self]:
        """The batch in ``parts`` consecutive groups of rows (for gradient accumulation)."""
        columns = {f.name: getattr(self, f.name).chunk(parts) for f in fields(self)}
        for values in zip(*columns.values(), strict=True):
            yield type(self)(**dict(zip(columns, values, strict=True)))


class Batches(Protocol):
    """The batches that an objective makes from a token store."""

    def at(self, seed: int, step: int) -> Batch:
        """The batch of a step (from 0): a pure function of these two."""
        ...

    def share(self, seed: int, step: int, rank: int, size: int) -> Batch:
        """The rows of the process ``rank`` of ``size``, which share the batch of a step in consecutive parts.

        If rows are expensive to make, an objective makes only these.
        """
        return list(self.at(seed, step).split(size))[rank]

    def held_out(self, count: int) -> list[Batch]:
        """About ``count`` rows for validation, always the same; a batch may continue the previous one."""
        ...

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        """Which tokens of the store each row of ``at`` holds, and where in its inputs (before masking)."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of how the store was cut into rows, by name; empty unless documents are packed."""
        return {}


@dataclass(frozen=True)
class Quantity:
    """A likelihood of held-out text, in bits per byte."""

    name: str
    """Only values with the same name may be compared."""
    scorer: str
    """How it is measured: a ``plm_core.evaluation.likelihood.Scorer``."""
    meaning: str
    """What it says about a text, for people who compare models."""
    excerpt: bool = False
    """Whether it is measured on an excerpt of each document, because each token is expensive."""


class Objective(ABC):
    """An objective. A subclass is a frozen dataclass, whose fields are its section of the parameters."""

    likelihood: ClassVar[Quantity]
    """The quantity by which such models are compared on held-out text."""
    perplexity: ClassVar[bool] = False
    """Whether nats per token and perplexity are also reported for such models."""
    beside: ClassVar[tuple[Quantity, ...]] = ()
    """Further quantities, for human readers; one that the configuration does not request yields no score."""
    input_format: ClassVar[str]
    """How examples are formatted for fine-tuning: a ``plm_core.finetuning.input_formats.InputFormat``."""
    decoder: ClassVar[str | None] = None
    """How such a model predicts the next token: a ``plm_core.generation.Reader``. None: it cannot continue
    texts."""
    filler: ClassVar[str | None] = None
    """How such a model fills a blank: a ``plm_core.evaluation.samples.Filler``. None: it cannot."""
    ranker: ClassVar[str | None] = None
    """How such a model chooses which option follows a prompt: a ``plm_core.evaluation.fewshot_scoring.Ranker``. None:
    it cannot."""
    distilled: ClassVar[tuple[str, ...]] = ()
    """The losses by which such a model can learn from a teacher, as in ``DistillationConfig``; they need ``hidden``."""
    frame: ClassVar[tuple[tuple[int, ...], tuple[int, ...]]]
    """The special tokens before and after a single text in a row."""
    legend: ClassVar[str]
    """How to read the text of a row in which ``mark`` shows what was predicted."""

    @abstractmethod
    def require_fit(self, config: Any) -> None:
        """Raise ValueError if a parameter does not fit the model's configuration; the message names both."""

    @abstractmethod
    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        """Batches of ``rows`` rows for a model of this configuration.

        Raises:
            ValueError: as ``require_fit``.
            UserError: the store cannot provide such batches.
        """

    @abstractmethod
    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """The loss of a model on a batch, which continues the batch that returned ``carry``."""

    def mark(self, number: int, read: str) -> str | None:
        """The mark before a predicted token in a row's text, from the number of the prediction in the row (from 1) and
        what the model ``read`` in the token's place. None: predictions are not marked."""
        return read

    def facts(self, batch: Batch, row: int) -> dict[str, Any]:
        """Further facts about a row, by name."""
        return {}
