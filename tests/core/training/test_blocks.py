"""What is computed twice is the same, takes less memory, and leaves no trace."""

from dataclasses import replace

import pytest
import torch
from folds import CONFIG, plain, same
from papers import PAPERS, make

from plm_core.training.flops import step_flops
from plm_core.training.parallelize import blocks_of, recompute, restore_blocks, wrap


@pytest.mark.parametrize("name", PAPERS)
def test_gradients_are_the_same_to_the_bit_from_less_memory(store, name):
    model, objective = make(name, dtype=torch.float32, dropout=0.1, width=48, layers=4)
    batch = objective.batches(store, model.config, 8).at(3, 1)

    def step():
        torch.manual_seed(5)
        model.train().zero_grad()
        objective.loss(model, batch).nll.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def kept():
        """The bytes of activations that the backward pass is kept waiting with."""
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        saved = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = objective.loss(model, batch)
        assert loss.nll.requires_grad
        return sum(size for at, size in saved.items() if at not in weights)

    expected, whole = step(), kept()
    calls = []
    first = blocks_of(model)[0]
    first.register_forward_hook(lambda *_: calls.append("forward"))
    inside = first.norm_1 if hasattr(first, "norm_1") else first.drop
    inside.register_forward_hook(lambda *_: calls.append("inside"))
    wrap(model, recompute)
    assert all(torch.equal(left, right) for left, right in zip(step(), expected, strict=True))
    assert calls.count("inside") == 2 * calls.count("forward") > 0
    assert kept() < 0.6 * whole
    restore_blocks(model)
    assert not any("forward" in vars(block) for block in blocks_of(model))


def test_recomputed_blocks_train_alike_and_count_flops_once(start_in, undisturbed, monkeypatch, tmp_path):
    counted = []
    monkeypatch.setattr(
        "plm_core.training.callbacks.speed_monitor.step_flops", lambda *a: counted.append(step_flops(*a)) or counted[0]
    )
    model, reports = start_in(tmp_path / "recomputed", replace(CONFIG, activation_checkpointing=True))
    assert plain(reports) == undisturbed[1]
    assert same(model, undisturbed[0])
    assert not any("forward" in vars(block) for block in model.blocks)
    start_in(tmp_path / "plain")[1].send(None)
    assert counted[0] == counted[1]
