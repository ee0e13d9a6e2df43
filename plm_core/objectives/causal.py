"""Causal language modelling: each token given those before it. Radford et al. 2018, equation 1.

Shapes: B rows, T positions, V vocabulary.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from plm_core.objectives.loss import IGNORED, Batch, Loss


class Causal:
    """The causal objective."""

    def batch(self, rows: np.ndarray) -> Batch:
        """Windows ``[B, T + 1]``: the first T tokens are the inputs, the last T their targets."""
        tokens = torch.from_numpy(rows)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def loss(self, model: Any, batch: Batch) -> Loss:
        """L1 = -sum log p(token | tokens before it), in nats, over the targets that are not ignored."""
        logits = model.logits(model(batch.inputs))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nats = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return Loss(nats, batch.count)
