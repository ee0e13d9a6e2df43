"""A pretrained model with a new head on the vector that stands for an example; all weights are trained.

Sources: Radford et al. 2018, section 3; Devlin et al. 2019, section 4.1; Yang et al. 2019, section 2.5. How examples
are written and summed up is in ``layouts.py``. Shapes: B examples, K sequences an example, T positions, D width, C
outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.finetuning.layouts import Layout, Written
from plm_core.objectives.loss import IGNORED, Batch, Carry, Loss, summed_nats
from plm_core.text.special import PAD

SHORTEST = 8
"""The smallest length that rows are padded to where lengths shall be few."""


class Row(NamedTuple):
    """An example as the model reads it."""

    sequences: list[Written]
    """One; for a pair in both orders, two."""
    label: float
    """The class id, or the number that is to be predicted."""

    @property
    def longest(self) -> int:
        """The tokens of its longest sequence."""
        return max(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Padded examples: ``inputs`` [B, K, T] token ids, ``targets`` [B], classes or numbers."""

    segments: Tensor
    """The segment of each token, ``[B, K, T]``."""
    lengths: Tensor
    """The tokens of each sequence, ``[B, K]``; padding stands behind them."""

    @property
    def count(self) -> Tensor:
        """Scalar: the number of examples, for any number may be a target here."""
        return torch.tensor(len(self.targets), device=self.targets.device)


class Kind(NamedTuple):
    """What a task asks for."""

    outputs: Callable[[int], int]
    """The outputs of the head, by the number of classes."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """The summed loss of outputs ``[B, C]`` for targets ``[B]``."""
    answers: Callable[[Tensor], Tensor]
    """Outputs ``[B, C]`` to predictions ``[B]``, which compare to targets."""


KINDS = {
    # -sum log p(class), in nats (Radford et al. 2018, equation 4).
    "classification": Kind(lambda classes: classes, lambda y, t: summed_nats(y, t.long()), lambda y: y.argmax(-1)),
    # Squared errors, which are nats of a normal distribution of variance 1/2 but for a constant. Devlin et al. 2019 and
    # Yang et al. 2019 do so in their released code.
    "regression": Kind(lambda _: 1, lambda y, t: (y[:, 0].to(t.dtype) - t).square().sum(), lambda y: y[:, 0]),
}


class Classifier(nn.Module):
    """A pretrained model with a new head on the summary that its layout names."""

    def __init__(
        self, backbone: Any, layout: Layout, kind: str, classes: int, dropout: float, auxiliary: float = 0.0
    ) -> None:
        """``auxiliary`` is the weight of the language model's loss in ``loss``; 0 computes none."""
        super().__init__()
        width = backbone.config.width
        self.backbone, self.layout, self.kind, self.auxiliary = backbone, layout, KINDS[kind], auxiliary
        projection = [nn.Linear(width, width), nn.Tanh()] if layout.projected else []
        self.head = nn.Sequential(*projection, nn.Dropout(dropout), nn.Linear(width, self.kind.outputs(classes)))
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=backbone.config.initializer_range)
                nn.init.zeros_(layer.bias)

    def forward(self, batch: ExampleBatch) -> Tensor:
        """The outputs ``[B, C]``: logits of the classes, or a number."""
        return self._outputs(batch, self._states(batch))

    def loss(self, batch: ExampleBatch) -> Tensor:
        """The summed loss of the examples, with the language model's: L2 + lambda L1 (Radford et al. 2018, equation 5).

        L1 of an example is the mean negative log-likelihood of its tokens given those before them, as in the released
        code, so that a long example weighs no more than a short one.
        """
        states = self._states(batch)
        loss = self.kind.loss(self._outputs(batch, states), batch.targets)
        return loss + self.auxiliary * self._language_nats(batch, states) if self.auxiliary else loss

    def _states(self, batch: ExampleBatch) -> Tensor:
        flat = (tensor.flatten(0, 1) for tensor in (batch.inputs, batch.segments, batch.lengths))
        return self.layout.states(self.backbone, *flat)

    def _outputs(self, batch: ExampleBatch, states: Tensor) -> Tensor:
        summaries = self.layout.summary(self.backbone, states, batch.lengths.flatten())
        return self.head(summaries.unflatten(0, batch.lengths.shape).sum(1))

    def _language_nats(self, batch: ExampleBatch, states: Tensor) -> Tensor:
        ids, following = batch.inputs.flatten(0, 1), batch.lengths.flatten()[:, None] - 1
        read = torch.arange(ids.shape[1] - 1, device=ids.device) < following
        logits = self.backbone.logits(states[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).transpose(1, 2)
        nats = F.cross_entropy(logits, ids[:, 1:].where(read, IGNORED), reduction="none")
        return (nats.sum(1, keepdim=True) / following).sum() / batch.lengths.shape[1]


def example_loss(model: nn.Module, batch: Batch, carry: Carry | None = None) -> Loss:
    """``Classifier.loss`` as the loop takes it, over the number of examples."""
    return Loss(model.loss(batch), batch.count)  # type: ignore[operator]


def collate(rows: Sequence[Row], most: int | None = None) -> ExampleBatch:
    """Rows as one batch, padded to the longest.

    With ``most``, the largest length there is, to the next of the lengths 8, 12, 16, 24, 32, 48, ... ``most``: a
    compiled model is another one for every length.
    """
    T = max(row.longest for row in rows)
    if most is not None:
        power = max(SHORTEST, 1 << (T - 1).bit_length())
        T = min(most, power * 3 // 4 if power > SHORTEST and 3 * power >= 4 * T else power)
    sequences = [row.sequences for row in rows]
    return ExampleBatch(
        inputs=torch.tensor([[s.ids + [PAD] * (T - len(s.ids)) for s in some] for some in sequences]),
        targets=torch.tensor([row.label for row in rows]),
        segments=torch.tensor([[s.segments + [0] * (T - len(s.ids)) for s in some] for some in sequences]),
        lengths=torch.tensor([[len(s.ids) for s in some] for some in sequences]),
    )


class Predicted(NamedTuple):
    """What a model answers to rows, in their order."""

    answers: list[float]
    """Class ids, or numbers."""
    confidences: list[float]
    """The probability of each class that is answered; NaN of a number."""
    loss: float
    """The mean loss, in nats or squared; the language model's has no part in it."""


@torch.no_grad()
def predict(model: Classifier, rows: Sequence[Row], batch: int, device: torch.device) -> Predicted:
    """Ask the model, in batches of like length, without dropout."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: rows[i].longest)
    answers, confidences, total = [0.0] * len(rows), [math.nan] * len(rows), 0.0
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        part = collate([rows[i] for i in chosen]).to(device)
        outputs = model(part).double()
        total += float(model.kind.loss(outputs, part.targets))
        for i, answer, probabilities in zip(
            chosen, model.kind.answers(outputs).tolist(), outputs.softmax(-1).tolist(), strict=True
        ):
            answers[i] = answer
            if len(probabilities) > 1:
                confidences[i] = probabilities[answer]
    return Predicted(answers, confidences, total / len(rows))
