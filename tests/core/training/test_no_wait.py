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

from plm_core.training.device import Device
from plm_core.training.flops import META, on_meta
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.ranks import ALONE, Shared
from plm_core.training.state import State
from plm_core.training.step import Setup, evaluate, update


def two_steps_and_a_validation(store, monkeypatch, name, loss_of, optimizer="adamw"):
    model, objective = make(name, dtype=torch.float32, width=24)
    batches, model = objective.batches(store, model.config, 4), on_meta(model)
    config = replace(CONFIG, batch=4, accumulation=2, optimizer=OptimizerConfig(1e-3, 1, name=optimizer))
    monkeypatch.setattr(State, "_weights", lambda self: {})  # the copy to the host, which is waited for once
    shared = Shared(model, loss_of(objective), loss_of(objective), ALONE, None)
    setup = Setup(shared, config, Device(META, 1, False), ALONE, SimpleNamespace(lap=lambda name: None))
    state = State(model, config, ALONE)
    for step in range(2):
        update(setup, state, batches.at(7, step), 1e-3, lambda part: part)
    rows = batches.at(7, 2).to(META)
    evaluate(setup, state, rows, evaluate(setup, state, rows, None).carry)


@pytest.mark.parametrize("name", PAPERS)
def test_no_step_and_no_validation_waits_for_the_device(store, monkeypatch, name):
    two_steps_and_a_validation(store, monkeypatch, name, lambda objective: objective.loss)


def test_muons_update_does_not_wait(store, monkeypatch):
    two_steps_and_a_validation(store, monkeypatch, "gpt", lambda objective: objective.loss, "muon")


def test_one_that_waits_is_found(store, monkeypatch):
    def waiting(objective):
        def loss(model, batch, carry):
            found = objective.loss(model, batch, carry)
            float(found.nll.detach())
            return found

        return loss

    with pytest.raises(RuntimeError, match=r"cannot be called on meta tensors"):
        two_steps_and_a_validation(store, monkeypatch, "gpt", waiting)
