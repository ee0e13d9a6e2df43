"""LoRA changes nothing at first, trains little, and its merged weights are the adapted model."""

import pytest
import torch

from plm_core.config import UserError
from plm_core.configs.architectures import MODELS
from plm_core.training.lora import LoRAConfig, adapt, merge
from plm_core.training.optimizer import Optimizer, OptimizerConfig, hidden_matrices


def made(paper):
    torch.manual_seed(3)
    entry = MODELS[paper]
    sizes = {"filters": ((1, 7),)} if paper == "elmo" else {"heads": 3}
    return entry.model(entry.config(vocab_size=99, context=17, layers=2, width=30, dropout=0.0, **sizes)).double()


FACTORS = {"xlnet": (5, 2), "llama": (4, 3), "elmo": (0, 6), "t5": (12, 4), "transformer": (12, 4)}
DECODERS = ("t5", "transformer")
"""Those of which a third of the attention, and half of the rest, is in the encoder."""


def states(model):
    ids = torch.arange(22).reshape(2, 11) % 99
    return model.encode(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize("paper", MODELS)
@pytest.mark.parametrize("targets", [("attention",), ("attention", "feed_forward")])
def test_lora_trains_adapters_only_and_merging_keeps_outputs(paper, targets):
    model, untouched = made(paper), made(paper)
    if paper == "elmo" and targets == ("attention",):
        with pytest.raises(UserError, match=r"lora\.targets: this model has no attention; expected feed_forward"):
            adapt(model, LoRAConfig(rank=5, alpha=13.0, targets=targets))
        return
    adapt(model, LoRAConfig(rank=5, alpha=13.0, targets=targets))
    # Products of T5, which has no biases, may be rounded in another order.
    torch.testing.assert_close(states(model), states(untouched), rtol=0, atol=1e-14 if paper == "t5" else 0)
    pooler = {"pooler.weight", "pooler.bias"} & dict(model.named_parameters()).keys()
    assert len(pooler) == 2 * (paper == "bert")
    trained = [name for name, p in model.named_parameters() if p.requires_grad and name not in pooler]
    assert all(p.requires_grad for name, p in model.named_parameters() if name in pooler)
    attention, feed_forward = FACTORS.get(paper, (2, 2))
    linears = attention + feed_forward * ("feed_forward" in targets)
    assert len(trained) == 2 * 2 * linears  # a and b, two layers
    assert all(name.startswith("blocks.") and name.endswith((".a", ".b")) for name in trained)

    optimizer = Optimizer(model, OptimizerConfig(0.05, 0))
    direction = torch.randn(states(model).shape, dtype=torch.float64)
    for _ in range(3):
        (states(model) * direction).sum().backward()
        optimizer.step(0.05)
    adapted = states(model).detach()
    assert not torch.allclose(adapted, states(untouched))
    merge(model)
    torch.testing.assert_close(states(model), adapted, rtol=1e-12, atol=1e-12)
    assert model.state_dict().keys() == untouched.state_dict().keys()
    assert all(p.requires_grad for p in model.parameters())
    moved = {name for name, p in model.state_dict().items() if not torch.equal(p, untouched.state_dict()[name])}
    reached = attention // 3 + feed_forward * ("feed_forward" in targets) // 2 if paper in DECODERS else linears
    assert len(moved) == 2 * reached
    for name in moved:  # the update of a matrix is of rank 5
        assert torch.linalg.matrix_rank(model.state_dict()[name] - untouched.state_dict()[name], rtol=1e-9) == 5


def test_lora_classification_trains_the_pooler():
    """RoBERTa's has never had a gradient: frozen, it would be a random layer between the model and its head."""
    model = made("bert")
    before = model.pooler.weight.clone()
    adapt(model, LoRAConfig(rank=2, alpha=4.0))
    optimizer = Optimizer(model, OptimizerConfig(0.05, 0))
    model.pool(states(model)).sum().backward()
    optimizer.step(0.05)
    merge(model)
    assert not torch.equal(model.pooler.weight, before)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_lora_factors_use_adamw_without_weight_decay(name):
    model = made("gpt")
    adapt(model, LoRAConfig(rank=2, alpha=4.0))
    assert hidden_matrices(model) == set()
    optimizer = Optimizer(model, OptimizerConfig(0.05, 0, name=name, weight_decay=0.5))
    factors = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    (0 * states(model).sum()).backward()
    optimizer.step(0.05)
    assert all(torch.equal(p, factors[n]) for n, p in model.named_parameters() if p.requires_grad)
