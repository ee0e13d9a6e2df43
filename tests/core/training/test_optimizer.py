"""The learning rate at its corners, and who decays."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import BadInput, from_dict
from plm_core.models import MODELS
from plm_core.training.optimizer import OptimizerConfig, learning_rate_at, make_optimizer, set_learning_rate

CONFIG = OptimizerConfig(learning_rate=0.5, warmup_steps=7, final_fraction=0.1)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.5 / 7),
        (3, 0.5 * 4 / 7),
        (6, 0.5),
        (7, 0.5),
        (7 + 46, 0.5 * (0.1 + 0.9 * 0.5)),  # half way down: half the cosine
        (98, 0.05),
        (99, 0.05),
        (500, 0.05),
    ],
)
def test_the_learning_rate_warms_up_to_its_peak_and_ends_at_its_fraction(step, rate):
    steps = 100 if step == 53 else 99
    assert learning_rate_at(step, steps, CONFIG) == pytest.approx(rate, rel=1e-12)


@given(st.integers(1, 50), st.integers(0, 49), st.floats(0, 1))
def test_the_learning_rate_grows_then_falls_and_never_leaves_its_bounds(steps, warmup, fraction):
    warmup = min(warmup, steps - 1)
    config = OptimizerConfig(learning_rate=0.5, warmup_steps=warmup, final_fraction=fraction)
    rates = [learning_rate_at(step, steps, config) for step in range(steps)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(0 <= rate <= 0.5 * (1 + 1e-12) for rate in rates)
    assert rates[warmup] == pytest.approx(0.5)
    if steps - warmup > 1:
        assert rates[-1] == pytest.approx(0.5 * fraction, abs=1e-12)


@pytest.mark.parametrize(
    ("paper", "decays", "does_not"),
    [
        ("gpt", "tokens.weight positions.weight blocks.1.up.weight", "blocks.0.attention.qkv.bias norm.weight"),
        ("bert", "segments.weight pooler.weight transform.weight", "bias transform_norm.weight follows.bias"),
        ("xlnet", "unknown blocks.0.attention.segments", "blocks.1.attention.content_bias blocks.1.norm_2.bias bias"),
    ],
)
def test_matrices_and_embeddings_decay_and_biases_and_gains_do_not(paper, decays, does_not):
    entry = MODELS[paper]
    model = entry.model(entry.config(vocab_size=99, context=17, layers=2, heads=3, width=30))
    optimizer = make_optimizer(model, OptimizerConfig(0.1, 0, weight_decay=0.37, beta_1=0.7, beta_2=0.99, epsilon=1e-5))
    decaying, plain = optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in decaying["params"]} >= set(decays.split())
    assert {names[id(p)] for p in plain["params"]} >= set(does_not.split())
    assert len(decaying["params"]) + len(plain["params"]) == len(names)
    assert (decaying["weight_decay"], plain["weight_decay"]) == (0.37, 0.0)
    assert (plain["betas"], plain["eps"]) == ((0.7, 0.99), 1e-5)
    set_learning_rate(optimizer, 0.013)
    assert [group["lr"] for group in optimizer.param_groups] == [0.013, 0.013]


def test_one_update_is_the_one_of_the_paper():
    """Loshchilov and Hutter 2019, algorithm 2, written out for two steps."""
    layer = torch.nn.Linear(3, 2).double()
    config = OptimizerConfig(0.05, 0, weight_decay=0.3, beta_1=0.8, beta_2=0.9, epsilon=1e-3)
    optimizer = make_optimizer(layer, config)
    generator = torch.Generator().manual_seed(3)
    expected = {name: p.detach().clone() for name, p in layer.named_parameters()}
    mean = {name: torch.zeros_like(p) for name, p in expected.items()}
    square = {name: torch.zeros_like(p) for name, p in expected.items()}
    for t in (1, 2):
        for name, parameter in layer.named_parameters():
            g = parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.9 * square[name] + 0.1 * g**2
            decay = 0.3 if name == "weight" else 0.0
            update = (mean[name] / (1 - 0.8**t)) / (torch.sqrt(square[name] / (1 - 0.9**t)) + 1e-3)
            expected[name] = expected[name] - 0.05 * decay * expected[name] - 0.05 * update
        optimizer.step()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("clip_norm", 0.0),
        ("epsilon", 0.0),
        ("beta_1", 1.0),
        ("beta_2", -0.1),
        ("beta_2", math.nan),
        ("final_fraction", 1.5),
        ("warmup_steps", -1),
        ("weight_decay", -0.1),
        ("weight_decay", math.nan),
    ],
)
def test_an_impossible_setting_is_refused_by_name(field, value):
    with pytest.raises(BadInput, match=rf"^o\..*{field}"):
        from_dict(OptimizerConfig, {"learning_rate": 0.1, "warmup_steps": 3} | {field: value}, "o")
