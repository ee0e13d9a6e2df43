"""A small run with dropout, several validations and snapshots, and what two of them are compared by."""

from dataclasses import asdict, replace

import numpy as np
import torch

from plm_core.objectives.causal import Causal, causal_batch
from plm_core.text.samplers import items_at
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.training_config import LoopConfig

CAUSAL = Causal()
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=3)
CONFIG = LoopConfig(seed=7, steps=26, batch=8, optimizer=OPTIMIZER, report_every=2, valid_every=6, snapshot_every=4)
ROWS = np.random.default_rng(5).integers(37, size=(99, 12))


def batch_at(step):
    return causal_batch(ROWS[items_at(13, step, 8, 90)])


def validate(evaluate):
    loss = evaluate(causal_batch(ROWS[90:]), None)
    return Validation(float(loss.nll / loss.num_targets))


def plain(reports):
    """Reports without what belongs to a process: its throughput, and which steps were its first."""
    return [asdict(replace(report, throughput=None, first=False)) for report in reports]


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


class Stops:
    """Asks a training to end after so many steps of this process."""

    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left == 0
