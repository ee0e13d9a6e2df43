"""Twenty steps of GPT in float64, to ten digits: whatever changes the numbers of a training is seen here.

``gpt.json`` was written by this file and is written anew, when a change is meant, by

    python tests/golden/test_gpt_curve.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from plm_core.models.gpt import GPT, GPTConfig
from plm_core.objectives import OBJECTIVES
from plm_core.text.views import items_at
from plm_core.training.device import Device
from plm_core.training.loop import LoopConfig, train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots

GOLDEN = Path(__file__).with_name("gpt.json")


def initial_model():
    """A tiny GPT whose weights do not depend on torch's way of drawing random numbers."""
    model = GPT(GPTConfig(vocab_size=37, context=13, layers=2, heads=3, width=21, dropout=0.0)).double()
    draw = np.random.Generator(np.random.PCG64(7))
    with torch.no_grad():
        for parameter in model.parameters():
            mean = 1.0 if parameter.dim() == 1 and parameter[0] == 1 else 0.0
            parameter.copy_(torch.from_numpy(mean + 0.1 * draw.standard_normal(parameter.shape)))
    return model


def curve():
    """The reports of 20 steps, validation included."""
    torch.set_num_threads(1)
    objective = OBJECTIVES["causal"]
    # Sequences in which each token follows from the two before it: something to learn.
    rows = np.zeros((99, 14), dtype=np.int64)
    rows[:, :2] = np.random.Generator(np.random.PCG64(5)).integers(37, size=(99, 2))
    for t in range(2, 14):
        rows[:, t] = (3 * rows[:, t - 1] + 5 * rows[:, t - 2] + 1) % 37
    held_out = objective.batch(rows[90:])

    def batch_at(step):
        return objective.batch(rows[items_at(13, step, 8, 90)])

    @torch.no_grad()
    def validate(model):
        loss = objective.loss(model, held_out)
        return float(loss.nats / loss.count)

    optimizer = OptimizerConfig(learning_rate=3e-3, warmup_steps=5)
    config = LoopConfig(
        seed=1, steps=20, batch=8, accumulation=2, optimizer=optimizer, report_every=1, valid_every=5, snapshot_every=5
    )
    with tempfile.TemporaryDirectory() as folder:
        device = Device(torch.device("cpu"), 1, False)
        reports = train(initial_model(), objective.loss, batch_at, validate, config, device, Snapshots(Path(folder)))
        return [
            {
                "step": r.step,
                "predictions": r.predictions,
                "loss": r.loss,
                "gradient_norm": r.gradient_norm,
                "learning_rate": r.learning_rate,
                "valid_loss": r.valid_loss,
            }
            for r in reports
        ]


def test_twenty_steps_give_the_recorded_numbers():
    found, golden = curve(), json.loads(GOLDEN.read_text())
    assert len(found) == len(golden) == 20
    for step, (one, other) in enumerate(zip(found, golden, strict=True), start=1):
        assert one.keys() == other.keys()
        for name, value in other.items():
            expected = value if value is None else pytest.approx(value, rel=1e-10, abs=0)
            assert one[name] == expected, f"{name} of step {step}"
    assert golden[-1]["valid_loss"] < golden[4]["valid_loss"]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(curve(), indent=1) + "\n")
