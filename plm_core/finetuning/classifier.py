"""A pretrained model with a new head on the vector that represents an example.

All weights are trained, only additions to them (LoRA), or only what is on top of a model that is used as features.

Sources: Radford et al. 2018, section 3; Devlin et al. 2019, section 4.1; Yang et al. 2019, section 2.5.

Shapes: B rows, K sequences a row, T positions, P places, D width, C outputs.
"""

import math
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.benchmarks.task import KINDS
from plm_core.checkpoint import Loaded
from plm_core.finetuning.features import ChainedTags, Features, TagChain, layer_states
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.finetune_config import FeaturesConfig
from plm_core.finetuning.input_formats import InputFormat, mean_state
from plm_core.finetuning.task_heads import CLASSES, NOWHERE, ExampleBatch, Predicted, Tags, TaskHead, padded
from plm_core.finetuning.text_writer import TextModel
from plm_core.objectives.objective import IGNORED, Batch, Carry, Loss
from plm_core.text.tokenizers import PAD

STANDARD = 64
"""The number of rows over which features are standardized."""
SHORTEST = 8
"""The smallest length that ``collate`` pads to if there are to be few different lengths."""


class Classifier(nn.Module):
    """A pretrained model with a new head on the summary that its input format names, or on the states of places."""

    def __init__(
        self,
        backbone: Any,
        input_format: InputFormat,
        kind: str,
        classes: int,
        dropout: float,
        auxiliary: float = 0.0,
        features: Features | None = None,
    ) -> None:
        """``auxiliary`` is the weight of the language model's loss in ``loss``; 0 computes none. With ``features``, the
        head reads these, and the backbone keeps its weights."""
        super().__init__()
        width = features.width if features else backbone.config.width
        self.backbone = backbone
        self.input_format = input_format
        self.kind: TaskHead = resolve_name(KINDS[kind].head)
        self.auxiliary = auxiliary
        self.features = features
        if features:
            backbone.requires_grad_(False)
            set_dropout(backbone, 0.0)
            if isinstance(self.kind, Tags):
                self.chain = TagChain(classes)
                self.kind = ChainedTags(self.chain)
        projected = input_format.projected and self.kind.reads != "place" and not features
        projection = [nn.Linear(width, width), nn.Tanh()] if projected else []
        outputs = self.kind.outputs(classes)
        layers = [*projection, nn.Dropout(dropout), nn.Linear(width, outputs)] if outputs else []
        self.head = nn.Sequential(*layers)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=backbone.config.initializer_range)
                nn.init.zeros_(layer.bias)

    def forward(self, batch: ExampleBatch, answers: bool = True) -> Tensor:
        """The outputs: logits ``[B, C]`` of the classes, a number ``[B, 1]``, logits of the choices ``[B, K]``, of the
        tags at each place ``[B, P, C]``, of the places where the answer begins and ends ``[B, 2, P]``, or vectors of
        length 1 ``[B, K, D]``. ``answers`` has no effect here (``TextModel``)."""
        return self._outputs(batch, self._states(batch))

    def loss(self, batch: ExampleBatch) -> Tensor:
        """The summed loss of the rows, plus the language model's: L2 + lambda L1 (Radford et al. 2018, equation 5).

        L1 of a row is the mean negative log-likelihood of its tokens given those before them, as in the released code,
        so that a long row weighs no more than a short one. If words are counted instead of rows, L1 is scaled by the
        words per row.
        """
        states = self._states(batch)
        loss = self.kind.loss(self._outputs(batch, states), batch.targets)
        if not self.auxiliary:
            return loss
        ids = batch.inputs.flatten(0, 1)
        following = batch.lengths.flatten()[:, None] - 1
        read = torch.arange(ids.shape[1] - 1, device=ids.device) < following
        logits = self.backbone.logits(states[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).transpose(1, 2)
        nats = F.cross_entropy(logits, ids[:, 1:].where(read, IGNORED), reduction="none")
        language = (nats.sum(1, keepdim=True) / following).sum() / batch.lengths.shape[1]
        return loss + self.auxiliary * language * (batch.num_targets / len(batch.lengths))

    def _states(self, batch: ExampleBatch) -> Tensor:
        flat = (tensor.flatten(0, 1) for tensor in (batch.inputs, batch.segments, batch.lengths))
        if self.features is None:
            return self.input_format.states(self.backbone, *flat)
        return self.features(layer_states(self.backbone, self.input_format, *flat), batch.lengths.flatten())

    def standardize(self, rows: Sequence[InputRow]) -> None:
        """Give the features the mean 0 and the deviation 1 over the first of these rows."""
        if self.features is not None:
            batch = collate(rows[:STANDARD], kind=self.kind).to(self.features.center.device)
            flat = [tensor.flatten(0, 1) for tensor in (batch.inputs, batch.segments, batch.lengths)]
            self.features.standardize(layer_states(self.backbone.eval(), self.input_format, *flat), flat[2])

    def _outputs(self, batch: ExampleBatch, states: Tensor) -> Tensor:
        if self.kind.reads == "place":
            rows = torch.arange(len(states), device=states.device)[:, None]
            vectors = states[rows, batch.places.clamp(min=0)]  # type: ignore[attr-defined]
        elif self.kind.reads == "mean" or self.features:
            vectors = mean_state(states, batch.lengths.flatten()).unflatten(0, batch.lengths.shape)
            vectors = vectors.sum(1) if self.kind.reads == "row" else vectors
        else:
            summaries = self.input_format.summary(self.backbone, states, batch.lengths.flatten())
            vectors = summaries.unflatten(0, batch.lengths.shape)
            vectors = vectors.sum(1) if self.kind.reads == "row" else vectors
        return self.kind.shaped(self.head(vectors), batch)


def new_features(pretrained: Loaded, config: FeaturesConfig) -> Features:
    """What reads a model's layers for a task: as an earlier task has left it, or with random weights."""
    sizes = pretrained.model.config
    features = Features(config, sizes.layers, sizes.width)
    if pretrained.config.head and pretrained.config.head.get("features"):
        names = features.state_dict()
        features.load_state_dict({name: pretrained.extra[f"features.{name}"] for name in names})
    return features


def draw_anew(backbone: Any, tokens: Sequence[int]) -> None:
    """Reinitialise the embeddings of these tokens as in a new model, in place."""
    with torch.no_grad():
        weight = backbone.tokens.weight
        new = torch.randn(len(tokens), weight.shape[1]) * backbone.config.initializer_range
        weight[list(tokens)] = new.to(weight)


def set_dropout(backbone: nn.Module, probability: float) -> None:
    """Set the dropout probability of a model, in its layers and its attention, in place."""
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        elif hasattr(module, "dropout"):
            module.dropout = probability  # type: ignore[assignment]


def example_loss(model: nn.Module, batch: Batch, carry: Carry | None = None) -> Loss:
    """``Classifier.loss`` for the training loop, with the number of rows or words."""
    return Loss(model.loss(batch), batch.num_targets)  # type: ignore[operator]


def collate(rows: Sequence[InputRow], most: int | None = None, kind: TaskHead = CLASSES) -> ExampleBatch:
    """Collate rows into a batch of the kind, padded to the longest.

    With ``most``, the largest possible length, they are padded to the next of the lengths 8, 12, 16, 24, 32, 48, ...
    ``most``, because a model is compiled again for every length. For the same reason there are as many places as
    positions.
    """
    T = max(row.longest for row in rows)
    if most is not None:
        power = max(SHORTEST, 1 << (T - 1).bit_length())
        T = min(most, power * 3 // 4 if power > SHORTEST and 3 * power >= 4 * T else power)
    sequences = [row.sequences for row in rows]
    columns = {
        "inputs": torch.tensor([[s.ids + [PAD] * (T - len(s.ids)) for s in some] for some in sequences]),
        "targets": torch.tensor(kind.targets(rows, T)),
        "segments": torch.tensor([[s.segments + [0] * (T - len(s.ids)) for s in some] for some in sequences]),
        "lengths": torch.tensor([[len(s.ids) for s in some] for some in sequences]),
    }
    if kind.reads == "place":
        columns["places"] = torch.tensor([padded(row.places, T, NOWHERE) for row in rows])
    return kind.batch(**columns)


@torch.no_grad()
def predict(
    model: Classifier | TextModel, rows: Sequence[InputRow], batch: int, device: torch.device, answers: bool = True
) -> Predicted:
    """Predict in batches of similar length, without dropout. Without ``answers``, texts are not written: only the loss
    counts."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: rows[i].longest)
    parts = []
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        part = collate([rows[i] for i in chosen], kind=model.kind)
        parts.append((chosen, part, model(part.to(device), answers).double()))
    predicted: list[Any] = [None] * len(rows)
    confidences = [math.nan] * len(rows)
    total = 0.0
    count = 0
    for chosen, part, on_device in parts:
        outputs = on_device.cpu()  # wait for a GPU only now, when it has all its work
        total += float(model.kind.loss(outputs, part.targets))
        count += int(part.num_targets)
        for i, (answer, confidence) in zip(chosen, model.kind.answers(outputs, part), strict=True):
            predicted[i], confidences[i] = answer, confidence
    return Predicted(predicted, confidences, total / count)
