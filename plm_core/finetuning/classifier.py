"""A classifier on a causal model, as GPT does it. Radford et al. 2018, sections 3.2 and 3.3.

A text becomes start, text, extract; a pair becomes start, A, delimiter, B, extract; the last hidden state, at the
extract token, goes through one linear layer. Shapes: B rows, T positions, D width, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.finetuning.examples import Example
from plm_core.objectives.loss import Batch, Loss
from plm_core.text.special import BOS, CLS, PAD, SEP
from plm_core.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Padded examples: ``inputs`` [B, T] token ids, ``targets`` [B] classes."""

    last: Tensor
    """Where each row's extract token stands, ``[B]``."""


class Classifier(nn.Module):
    """A pretrained model with a new linear layer on the hidden state of the extract token."""

    def __init__(self, backbone: Any, classes: int, dropout: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(backbone.config.width, classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: ExampleBatch) -> Tensor:
        """The logits ``[B, C]``. Padding stands behind the extract token, where causal attention never looks."""
        hidden = self.backbone(batch.inputs)
        rows = torch.arange(len(hidden), device=hidden.device)
        return self.head(self.drop(hidden[rows, batch.last]))


def classification_loss(model: nn.Module, batch: Batch) -> Loss:
    """-sum log p(class), in nats, over the rows (Radford et al. 2018, equation 4)."""
    return Loss(F.cross_entropy(model(batch).float(), batch.targets, reduction="sum"), batch.count)


def encode(example: Example, tokenizer: Tokenizer, context: int) -> list[int]:
    """The token ids of an example, at most ``context``; the longer text of a pair is cut first, at its end."""
    a = tokenizer.encode(example.a)
    if example.b is None:
        return [BOS, *a[: context - 2], CLS]
    b = tokenizer.encode(example.b)
    while len(a) + len(b) > context - 3:
        (a if len(a) > len(b) else b).pop()
    return [BOS, *a, SEP, *b, CLS]


def collate(rows: Sequence[tuple[list[int], int]]) -> ExampleBatch:
    """Rows of ``(token ids, class)`` as one batch, padded to the longest."""
    longest = max(len(ids) for ids, _ in rows)
    inputs = torch.full((len(rows), longest), PAD)
    for row, (ids, _) in enumerate(rows):
        inputs[row, : len(ids)] = torch.tensor(ids)
    return ExampleBatch(inputs, torch.tensor([c for _, c in rows]), torch.tensor([len(ids) - 1 for ids, _ in rows]))


@torch.no_grad()
def predict(
    model: nn.Module, rows: Sequence[tuple[list[int], int]], batch: int, device: torch.device
) -> tuple[list[int], float]:
    """The predicted class of each row, in order, and the mean negative log-likelihood of the true ones, in nats."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
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
