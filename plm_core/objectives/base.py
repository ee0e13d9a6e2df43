"""What an objective is: its section of the parameters, its batches, its loss, and what other rooms have for it.

Those other rooms are named and not imported, as ``module:attribute``, so that a stage depends on the code that it runs
and on no other: who trains a model knows nothing of how it is scored. They find what is theirs by ``OBJECTIVES``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from plm_core.objectives.loss import Batch, Batches, Carry, Loss
from plm_core.text.store import TokenStore


@dataclass(frozen=True)
class Quantity:
    """A likelihood of held-out text, in bits a byte."""

    name: str
    """Only numbers of the same name may be compared."""
    scorer: str
    """How it is measured: a ``plm_core.evaluation.likelihood.Scorer``."""
    meaning: str
    """What it is of a text, for people who compare models."""
    excerpt: bool = False
    """Whether it is taken of the excerpt of each document, since each token of it is dear."""


class Objective(ABC):
    """An objective. A subclass is a frozen dataclass, whose fields are its section of the parameters."""

    likelihood: ClassVar[Quantity]
    """What such models are compared by on held-out text."""
    perplexity: ClassVar[bool] = False
    """Whether nats a token and their exponential are told of such models too."""
    beside: ClassVar[tuple[Quantity, ...]] = ()
    """Further quantities, for people; one that the configuration does not ask for yields no score."""
    input_format: ClassVar[str]
    """How an example is written down for fine-tuning: a ``plm_core.finetuning.input_formats.InputFormat``."""
    decoder: ClassVar[str | None] = None
    """How such a model is asked for the next token: a ``plm_core.generation.decoding.Decoder``. None: it continues no
    text."""
    filler: ClassVar[str | None] = None
    """How such a model fills a blank: a ``plm_core.evaluation.cloze.Filler``. None: it fills none."""
    ranker: ClassVar[str | None] = None
    """How such a model is asked which option follows a prompt: a ``plm_core.evaluation.options.Ranker``. None: it
    cannot say."""
    frame: ClassVar[tuple[tuple[int, ...], tuple[int, ...]]]
    """The special tokens before and after a text that stands alone in a row."""
    legend: ClassVar[str]
    """How the text of a row is to be read in which ``mark`` shows what was predicted."""

    @abstractmethod
    def require_fit(self, config: Any) -> None:
        """Raise ValueError when a parameter does not fit the model's configuration; the message names both."""

    @abstractmethod
    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        """Batches of ``rows`` rows for a model of this configuration.

        Raises:
            ValueError: as ``require_fit``.
            UserError: the store does not give such batches.
        """

    @abstractmethod
    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """The loss of a model on a batch, which continues the batch that gave ``carry``."""

    def mark(self, number: int, read: str) -> str | None:
        """What stands before a token in a row's text: of the prediction with this number in the row (from 1), where
        ``read`` was read. None: predictions are not marked."""
        return read

    def facts(self, batch: Batch, row: int) -> dict[str, Any]:
        """What else there is to know of a row, by name."""
        return {}
