"""A step and a validation never ask the device for a value: a GPU would have to be waited for.

They run on torch's meta device, whose tensors have none: `float()`, `.item()`, `.cpu()` and branches on a tensor fail.
On a GPU `make bench-gpu` checks the same by CUDA's own debug mode.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from folds import CONFIG
from papers import PAPERS, make

from plm_core.training.callbacks.anomaly_monitor import AnomalyMonitor
from plm_core.training.device import Device
from plm_core.training.flops import META, on_meta
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.parallelize import ParallelLoss
from plm_core.training.ranks import ALONE
from plm_core.training.state import TrainState
from plm_core.training.step import TrainStep


def two_steps_and_a_validation(store, name, loss_of, optimizer="adamw"):
    model, objective = make(name, dtype=torch.float32, width=24)
    batches, model = objective.batches(store, model.config, 4), on_meta(model)
    config = replace(CONFIG, batch=4, accumulation=2, optimizer=OptimizerConfig(1e-3, 1, name=optimizer))
    loss = ParallelLoss(model, loss_of(objective), loss_of(objective), ALONE, None)
    anomalies = AnomalyMonitor(config, ALONE, None)
    step = TrainStep(loss, config, Device(META, 1, False), ALONE, SimpleNamespace(lap=lambda name: None), anomalies)
    state = TrainState(model, config, ALONE)
    for number in range(2):
        step(state, batches.at(7, number), 1e-3, lambda part: part)
    rows = batches.at(7, 2).to(META)
    step.evaluate(state, rows, step.evaluate(state, rows, None).carry)


@pytest.mark.parametrize("name", PAPERS)
def test_step_and_validation_do_not_synchronize(store, name):
    two_steps_and_a_validation(store, name, lambda objective: objective.loss)


def test_muon_update_does_not_synchronize(store):
    two_steps_and_a_validation(store, "gpt", lambda objective: objective.loss, "muon")


def test_gpu_synchronization_is_detected(store):
    def waiting(objective):
        def loss(model, batch, carry):
            result = objective.loss(model, batch, carry)
            float(result.nll.detach())
            return result

        return loss

    with pytest.raises(RuntimeError, match=r"cannot be called on meta tensors"):
        two_steps_and_a_validation(store, "gpt", waiting)
