"""Distillation: a student learns from the predictions and states of a teacher that is not trained.

Soft targets (Hinton, Vinyals, Dean 2015), DistilBERT's three losses and its beginning from every second layer (Sanh et
al. 2019, sections 2 and 3), MiniLM's relations of the last layer (Wang et al. 2021, "MiniLMv2", section 3). Everything
is compared where the objective predicts, as with ``restrict_ce_to_mask`` of DistilBERT's released code; only relations
are those of all positions.

Shapes: B rows, T positions, N predictions, D width, A relation heads, L layers, V vocabulary.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import differing_sizes
from plm_core.models.blocks import same_document
from plm_core.objectives.masked import MaskedBatch, PackedMaskedBatch
from plm_core.objectives.objective import IGNORED, Batch, Carry, Loss, summed_nll
from plm_core.training.flops import on_meta
from plm_core.training.training_config import DistillationConfig


def distilled(
    objective: Any, student: Any, teacher: Any, config: DistillationConfig
) -> Callable[[Any, Batch, Carry | None], Loss]:
    """The loss of ``student`` in training, with what it learns from a ``teacher`` in evaluation mode on the same
    device. In validation it is that of the objective, ``Causal`` without streams or ``Masked``.

    It is a weighted sum of losses, each summed over predictions; relations, which are the mean of a row, count once for
    each prediction of the row.
    """
    teacher.requires_grad_(False)
    if config.relations:
        for model in (student, teacher):
            model.blocks[-1].attention.qkv.register_forward_hook(_keep)

    def loss(model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        if not model.training:
            own: Loss = objective.loss(model, batch, carry)
            return own
        # The teacher, which draws no random numbers: a resumed run repeats what it says.
        learned: Any = on_meta(teacher) if batch.inputs.is_meta else teacher
        with torch.no_grad():
            theirs = objective.hidden(learned, batch).states
            targets = learned.output(theirs).logits() if config.soft else None
        # The student: its logits are computed once, for two losses.
        ours, others = objective.hidden(model, batch)
        logits = model.output(ours).logits()
        chosen = batch.targets != IGNORED
        nats = config.task * (summed_nll(logits, batch.targets) + others)
        if targets is not None:
            nats = nats + config.soft * (soft_targets(logits, targets, config.temperature) * chosen).sum()
        if config.cosine:
            nats = nats + config.cosine * ((1 - F.cosine_similarity(_wide(ours), _wide(theirs), -1)) * chosen).sum()
        if config.relations:
            assert isinstance(batch, MaskedBatch)
            seen = batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :]
            if isinstance(batch, PackedMaskedBatch):
                seen = seen & same_document(batch.documents)[:, 0]
            rows = relations(_taken(model), _taken(learned), seen, config.relation_heads)
            nats = nats + config.relations * (rows * chosen.sum(1)).sum()
        return Loss(nats, batch.num_targets)

    return loss


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) in nats: logits ``[..., V]`` to ``[...]`` (Hinton et al. 2015, section 2)."""
    log_p, log_q = ((_wide(logits) / temperature).log_softmax(-1) for logits in (teacher, student))
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def relations(student: Tensor, teacher: Tensor, seen: Tensor, heads: int) -> Tensor:
    """The divergence of the relations between queries, between keys and between values, each the mean over relation
    heads and positions: queries, keys and values side by side ``[B, T, 3 D]`` to ``[B]`` (Wang et al. 2021, equations 4
    to 7). ``seen`` [B, T, T] is false where two positions have no relation, such as padding."""
    hidden = ~seen[:, None]

    def log_relations(vectors: Tensor) -> Tensor:
        """``[B, 3 A, T, T]``: each vector's relations to all others of its kind and head."""
        parts = _wide(vectors).unflatten(-1, (3 * heads, -1)).transpose(1, 2)
        scores = parts @ parts.mT * parts.shape[-1] ** -0.5
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).log_softmax(-1)

    log_p, log_q = log_relations(teacher), log_relations(student)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).sum(1) / heads
    places = seen.any(-1)
    return (divergence * places).sum(1) / places.sum(1)


def begin_with_layers(student: Any, teacher: Any) -> list[int]:
    """Give a student the weights of its teacher, if they differ in nothing but the number of layers, and return which
    of the teacher's layers it has: with half as many, every second one, beginning with the first. Empty if none."""
    alike = type(student) is type(teacher) and hasattr(student, "blocks")
    if not alike or set(differing_sizes(student.config, teacher.config)) - {"layers"}:
        return []
    ours, theirs = student.config.layers, teacher.config.layers
    chosen = [number * theirs // ours for number in range(ours)]
    weights = teacher.state_dict()

    def taken(name: str) -> Tensor:
        return weights[re.sub(r"^blocks\.(\d+)\.", lambda match: f"blocks.{chosen[int(match[1])]}.", name)]

    student.load_state_dict({name: taken(name) for name in student.state_dict()})
    return chosen


def _wide(x: Tensor) -> Tensor:
    """In float32 at least: sums over a vocabulary in bfloat16 would have three digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _keep(layer: nn.Module, _: object, made: Tensor) -> None:
    layer.made = made


def _taken(model: Any) -> Tensor:
    """What ``_keep`` has kept, which is not kept any longer."""
    layer = model.blocks[-1].attention.qkv
    made: Tensor = layer.made
    del layer.made
    return made
