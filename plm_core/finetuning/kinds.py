"""The kinds of tasks: the input of the head, the loss, the answers, and the batches.

Used by the classifier. Shapes: B rows, K sequences a row, T positions, P places of a row, C outputs. A place is a
position to be classified.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.benchmarks import task
from plm_core.objectives.loss import IGNORED, Batch, summed_nll

LONGEST_ANSWER = 30
"""The most tokens of an answer, as in the released code of Devlin et al. 2019 (``max_answer_length``)."""
NOWHERE = -1
"""The position that fills up a row's places."""


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Padded rows: ``inputs`` [B, K, T] token ids, ``targets`` [B], classes or numbers."""

    segments: Tensor
    """The segment of each token, ``[B, K, T]``."""
    lengths: Tensor
    """The tokens of each sequence, ``[B, K]``; padding comes after them."""

    @property
    def num_targets(self) -> Tensor:
        """Scalar: the number of rows, because any number may be a target here."""
        return torch.full((), len(self.targets), device=self.targets.device)  # a copy would wait for the device


@dataclass(frozen=True)
class SpanBatch(ExampleBatch):
    """Questions with windows of their texts: ``targets`` [B, 2], the places where the answer begins and ends."""

    asked: Tensor
    """The position of each place, ``[B, P]``, filled up with ``NOWHERE``."""


@dataclass(frozen=True)
class TagBatch(SpanBatch):
    """Windows of sentences: ``targets`` [B, P], the tag of the word at each place."""

    @property
    def num_targets(self) -> Tensor:
        """Scalar: the number of words."""
        return (self.targets != IGNORED).sum()


class AnswerSpan(NamedTuple):
    """The most likely answer in a window, and the score of no answer."""

    score: float
    """The sum of the logits of its first and its last token; -inf for a window without text."""
    first: int
    last: int
    """The tokens of the answer, counted from the first one of the window."""
    probability: float
    """The probability of both, in this window."""
    null_score: float
    null_probability: float
    """The same for no answer."""


Answered = list[tuple[Any, float]]
"""The answer to each row, and its probability or NaN: ``classifier.Predicted``."""


class Kind(NamedTuple):
    """A row of the table."""

    outputs: Callable[[int], int]
    """The outputs of the head, by the number of labels."""
    reads: Literal["row", "sequence", "place"]
    """The input of the head: the sum of the summaries of a row's sequences, each summary, or the states of places."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """The summed loss of outputs for targets."""
    answers: Callable[[Tensor, Any], Answered]
    """The answers to a batch from its outputs."""
    batch: type[ExampleBatch] = ExampleBatch
    shaped: Callable[[Tensor, Any], Tensor] = lambda outputs, batch: outputs
    """From the head's raw outputs and the batch to the outputs for loss and answers."""


def _classes(outputs: Tensor, batch: ExampleBatch) -> Answered:
    return [(each, math.nan) for each in outputs.log_softmax(-1).tolist()]


def _tags(outputs: Tensor, batch: TagBatch) -> Answered:
    """The tags of the words, each by itself; their probability is the product."""
    probabilities, best = outputs.softmax(-1).max(-1)
    words = batch.asked != NOWHERE
    together = probabilities.where(words, 1.0).prod(1).tolist()
    counts = words.sum(1).tolist()
    return [(tags[:n], p) for tags, n, p in zip(best.tolist(), counts, together, strict=True)]


def _spans(outputs: Tensor, batch: SpanBatch) -> Answered:
    """The span of at most ``LONGEST_ANSWER`` tokens whose logits have the largest sum (Devlin et al. 2019, 4.2)."""
    starts, ends = outputs.unbind(1)
    # For each place, those at which an answer that begins there may end, ``[B, P - 1, 30]``.
    reached = F.pad(ends[:, 1:], (0, LONGEST_ANSWER - 1), value=-math.inf).unfold(1, LONGEST_ANSWER, 1)
    scores, chosen = (starts[:, 1:, None] + reached).flatten(1).max(1)
    nulls = starts[:, 0] + ends[:, 0]
    norms = outputs.logsumexp(-1).sum(1)
    begins = chosen // LONGEST_ANSWER
    columns = (scores, begins, begins + chosen % LONGEST_ANSWER, (scores - norms).exp())
    rows = zip(*(column.tolist() for column in (*columns, nulls, (nulls - norms).exp())), strict=True)
    return [(AnswerSpan(*row), math.nan) for row in rows]


def _places_alone(outputs: Tensor, batch: SpanBatch) -> Tensor:
    """``[B, P, 2]`` to ``[B, 2, P]``; positions that are not a place of the row cannot be answered."""
    return outputs.masked_fill((batch.asked == NOWHERE)[..., None], -math.inf).transpose(1, 2)


def _nats(outputs: Tensor, targets: Tensor) -> Tensor:
    return summed_nll(outputs, targets.long())


KINDS: dict[task.Kind, Kind] = {
    # -sum log p(class), in nats (Radford et al. 2018, equation 4).
    "classification": Kind(lambda classes: classes, "row", _nats, _classes),
    # Squared errors, which are, up to a constant, nats of a normal distribution of variance 1/2, as in the released
    # code of Devlin et al. 2019 and Yang et al. 2019. The numbers are in the unit of ``scale.py``.
    "regression": Kind(
        lambda _: 1,
        "row",
        lambda y, t: (y[:, 0].to(t.dtype) - t).square().sum(),
        lambda y, batch: [(number, math.nan) for number in y[:, 0].tolist()],
    ),
    # A number for each sequence, softmax over those of a row (Radford et al. 2018, section 3.3; Devlin et al. 2019,
    # section 4.4).
    "multiple_choice": Kind(lambda _: 1, "sequence", _nats, _classes, shaped=lambda y, batch: y[..., 0]),
    # Each word's first piece is classified (Devlin et al. 2019, section 5.3).
    "token_classification": Kind(lambda tags: tags, "place", _nats, _tags, TagBatch),
    # Two softmaxes over the text and CLS, which means no answer (Devlin et al. 2019, sections 4.2 and 4.3); their mean.
    "question_answering": Kind(lambda _: 2, "place", lambda y, t: _nats(y, t) / 2, _spans, SpanBatch, _places_alone),
}
