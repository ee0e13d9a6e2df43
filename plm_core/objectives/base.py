"""The interface of objectives: a section of the parameters, batches, a loss, and the code for them in other packages.

That code is named as ``module:attribute`` and not imported: training does not depend on scoring.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from plm_core.objectives.loss import Batch, Batches, Carry, Loss
from plm_core.text.store import TokenStore


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
    """Whether nats per token and their exponential are reported for such models too."""
    beside: ClassVar[tuple[Quantity, ...]] = ()
    """Further quantities, for people; one that the configuration does not ask for yields no score."""
    input_format: ClassVar[str]
    """How examples are formatted for fine-tuning: a ``plm_core.finetuning.input_formats.InputFormat``."""
    decoder: ClassVar[str | None] = None
    """How such a model predicts the next token: a ``plm_core.generation.decoding.Reader``. None: it cannot continue
    texts."""
    filler: ClassVar[str | None] = None
    """How such a model fills a blank: a ``plm_core.evaluation.samples.Filler``. None: it cannot."""
    ranker: ClassVar[str | None] = None
    """How such a model chooses which option follows a prompt: a ``plm_core.evaluation.fewshot.Ranker``. None: it
    cannot."""
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
        """The mark before a token in a row's text, for the prediction with this number in the row (from 1), at which
        the model read ``read``. None: predictions are not marked."""
        return read

    def facts(self, batch: Batch, row: int) -> dict[str, Any]:
        """Further facts about a row, by name."""
        return {}
