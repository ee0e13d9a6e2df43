"""A classifier on a pretrained model: one linear layer on the vector that stands for an example, all weights trained.

Sources: Radford et al. 2018, section 3.2; Devlin et al. 2019, section 4.1; Yang et al. 2019, section 2.5. How
examples are written and summed up is in ``layouts.py``. Shapes: B rows, T positions, D width, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.finetuning.layouts import Layout
from plm_core.objectives.loss import Batch, Carry, Loss, summed_nats
from plm_core.text.special import PAD

SHORTEST = 32
"""The smallest length that rows are padded to where lengths shall be few."""


class Row(NamedTuple):
    """An example as the model reads it."""

    ids: list[int]
    segments: list[int]
    label: int
    """The class id."""


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Padded examples: ``inputs`` [B, T] token ids, ``targets`` [B] classes."""

    segments: Tensor
    """The segment of each token, ``[B, T]``."""
    lengths: Tensor
    """The tokens of each row, ``[B]``; padding stands behind them."""


class Classifier(nn.Module):
    """A pretrained model with a new head on the summary that its layout names."""

    def __init__(self, backbone: Any, layout: Layout, classes: int, dropout: float) -> None:
        super().__init__()
        width = backbone.config.width
        self.backbone = backbone
        self.layout = layout
        projection = [nn.Linear(width, width), nn.Tanh()] if layout.projected else []
        self.head = nn.Sequential(*projection, nn.Dropout(dropout), nn.Linear(width, classes))
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=backbone.config.initializer_range)
                nn.init.zeros_(layer.bias)

    def forward(self, batch: ExampleBatch) -> Tensor:
        """The logits ``[B, C]``."""
        summary = self.layout.summary(self.backbone, batch.inputs, batch.segments, batch.lengths)
        return self.head(summary)


def classification_loss(model: nn.Module, batch: Batch, carry: Carry | None = None) -> Loss:
    """-sum log p(class), in nats, over the rows (Radford et al. 2018, equation 4)."""
    return Loss(summed_nats(model(batch), batch.targets), batch.count)


def collate(rows: Sequence[Row], most: int | None = None) -> ExampleBatch:
    """Rows as one batch, padded to the longest.

    With ``most``, the largest length there is, to the next of the lengths 32, 64, 128, ... ``most``: a compiled model
    is another one for every length.
    """
    longest = max(len(row.ids) for row in rows)
    if most is not None:
        longest = min(most, max(SHORTEST, 1 << (longest - 1).bit_length()))
    inputs = torch.tensor([row.ids + [PAD] * (longest - len(row.ids)) for row in rows])
    segments = torch.tensor([row.segments + [0] * (longest - len(row.ids)) for row in rows])
    lengths = torch.tensor([len(row.ids) for row in rows])
    return ExampleBatch(inputs, torch.tensor([row.label for row in rows]), segments, lengths)


@torch.no_grad()
def predict(model: nn.Module, rows: Sequence[Row], batch: int, device: torch.device) -> tuple[list[int], float]:
    """The predicted class of each row, in order, and the mean negative log-likelihood of the true ones, in nats."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
    predictions = [0] * len(rows)
    nats = 0.0
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        part = collate([rows[i] for i in chosen]).to(device)
        logits = model(part).double()
        nats += float(F.cross_entropy(logits, part.targets, reduction="sum"))
        for i, prediction in zip(chosen, logits.argmax(-1).tolist(), strict=True):
            predictions[i] = prediction
    return predictions, nats / len(rows)
