"""Who decays, whom Muon moves, the updates of the papers, and the state by name."""

import math
from dataclasses import replace

import pytest
import torch

from plm_core.config import UserError, from_dict
from plm_core.configs.architectures import MODELS
from plm_core.training.optimizer import Optimizer, OptimizerConfig, hidden_matrices

MUON = OptimizerConfig(0.05, 0, name="muon")
ADAMW = OptimizerConfig(0.05, 0)


def small(paper, dtype=torch.float32):
    torch.manual_seed(3)
    entry = MODELS[paper]
    heads = {"heads": 3} if "heads" in entry.config.__dataclass_fields__ else {}
    return entry.model(entry.config(vocab_size=99, context=17, layers=2, width=30, **heads)).to(dtype)


def give_gradients(model, seed, leave=""):
    """Random gradients for all parameters but those whose name has ``leave``."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=draw, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = None if leave and leave in name else gradient


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("paper", "decays", "does_not"),
    [
        ("gpt", "tokens.weight positions.weight blocks.1.up.weight", "blocks.0.attention.qkv.bias norm.weight"),
        (
            "llama",
            "tokens.weight blocks.0.attention.k.weight blocks.1.gate.weight",
            "blocks.0.norm_1.weight norm.weight",
        ),
        ("bert", "segments.weight pooler.weight transform.weight", "bias transform_norm.weight follows.bias"),
        (
            "modernbert",
            "tokens.weight blocks.0.up.weight transform.weight",
            "blocks.1.norm_1.weight last_norm.weight bias",
        ),
        ("xlnet", "unknown blocks.0.attention.segments", "blocks.1.attention.content_bias blocks.1.norm_2.bias bias"),
    ],
)
def test_weight_decay_excludes_biases_and_gains(paper, decays, does_not, name):
    model = small(paper, torch.float64)
    optimizer = Optimizer(model, OptimizerConfig(0.1, 0, name=name, weight_decay=0.37))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.013)
    after = {n: float(p.detach().unique()) for n, p in model.named_parameters()}
    assert {n for n, value in after.items() if value == pytest.approx(1 - 0.013 * 0.37, rel=1e-12)} >= set(
        decays.split()
    )
    assert {n for n, value in after.items() if value == 1.0} >= set(does_not.split())
    assert len(set(after.values())) == 2
    assert all(parameter.grad is None for parameter in model.parameters())


def test_adamw_update_matches_the_paper():
    """Loshchilov and Hutter 2019, algorithm 2, written out for two steps."""
    layer = torch.nn.Linear(3, 2).double()
    optimizer = Optimizer(layer, OptimizerConfig(9.0, 0, weight_decay=0.3, beta_1=0.8, beta_2=0.9, epsilon=1e-3))
    generator = torch.Generator().manual_seed(3)
    expected = {name: p.detach().clone() for name, p in layer.named_parameters()}
    mean = {name: torch.zeros_like(p) for name, p in expected.items()}
    square = {name: torch.zeros_like(p) for name, p in expected.items()}
    for t, rate in ((1, 0.05), (2, 0.02)):
        for name, parameter in layer.named_parameters():
            g = parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.9 * square[name] + 0.1 * g**2
            decay = 0.3 if name == "weight" else 0.0
            update = (mean[name] / (1 - 0.8**t)) / (torch.sqrt(square[name] / (1 - 0.9**t)) + 1e-3)
            expected[name] = expected[name] - rate * decay * expected[name] - rate * update
        optimizer.step(rate)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-12)


def test_muon_is_for_the_matrices_of_the_blocks():
    matrices = {paper: {name.split(".", 2)[2] for name in hidden_matrices(small(paper))} for paper in MODELS}
    plain = {"attention.qkv.weight", "attention.out.weight", "up.weight", "down.weight"}
    assert matrices["gpt"] == matrices["bert"] == matrices["modernbert"] == plain
    assert matrices["electra"] == plain | {f"{block}.{name}" for block in "01" for name in plain}  # the generator's too
    assert matrices["xlnet"] == plain - {"attention.qkv.weight"} | {f"attention.{name}.weight" for name in "qkvr"}
    assert matrices["llama"] == {f"attention.{name}.weight" for name in ("q", "k", "v", "out")} | {
        f"{name}.weight" for name in ("gate", "up", "down")
    }
    inside = torch.nn.ModuleDict({"backbone": small("gpt"), "head": torch.nn.Linear(30, 2)})
    assert hidden_matrices(inside) == {f"backbone.{name}" for name in hidden_matrices(small("gpt"))}


def test_muon_moves_all_other_parameters_as_adamw_does():
    with_muon, with_adamw = small("bert"), small("bert")
    for model, config in ((with_muon, MUON), (with_adamw, ADAMW)):
        optimizer = Optimizer(model, config)
        for seed in (1, 2):
            give_gradients(model, seed)
            optimizer.step(0.05)
    hidden = hidden_matrices(with_muon)
    for (name, a), b in zip(with_muon.named_parameters(), with_adamw.parameters(), strict=True):
        assert torch.equal(a, b) == (name not in hidden), name


@pytest.mark.parametrize("config", [ADAMW, MUON])
def test_optimizer_state_is_allocated_before_the_first_step(config):
    """The model's pooler has no gradient, as without next-sentence prediction."""
    model = small("bert")
    optimizer = Optimizer(model, config)
    begun = optimizer.tensors()
    assert begun
    assert all(not tensor.any() for tensor in begun.values())
    for seed in (1, 2, 3):
        give_gradients(model, seed, leave="pooler")
        optimizer.step(0.05)
    state = optimizer.tensors()
    assert state.keys() == begun.keys()
    for name, tensor in state.items():
        assert tensor is begun[name], "live, so that a snapshot can be read into it"
        assert bool(tensor.any()) != ("pooler" in name), name


@pytest.mark.parametrize("config", [ADAMW, MUON])
def test_optimizer_state_restores_to_the_same_bits(config):
    model, other = small("gpt"), small("gpt")
    optimizer = Optimizer(model, config)
    for seed in (1, 2):
        give_gradients(model, seed)
        optimizer.step(0.05)
    other.load_state_dict(model.state_dict())
    resumed = Optimizer(other, config)
    for name, tensor in resumed.tensors().items():
        tensor.copy_(optimizer.tensors()[name])
    for seed in (3, 4):
        for network, its in ((model, optimizer), (other, resumed)):
            give_gradients(network, seed)
            its.step(0.05)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", math.nan),
        ("decay_fraction", 0.3),  # beside the cosine, which has none
        ("momentum", 0.3),  # beside adamw, which has none
    ],
)
def test_invalid_optimizer_setting_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=rf"^o\..*{field}"):
        from_dict(OptimizerConfig, {"learning_rate": 0.1, "warmup_steps": 3} | {field: value}, "o")


@pytest.mark.parametrize("momentum", [0.0, 0.25, 0.95])
def test_muon_has_the_momentum_that_it_is_given(momentum):
    model = small("gpt")
    optimizer = Optimizer(model, OptimizerConfig(0.1, name="muon", momentum=momentum))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.1)
    buffers = [tensor for name, tensor in optimizer.tensors().items() if name.endswith("momentum_buffer")]
    assert buffers
    assert all(torch.allclose(buffer, torch.full_like(buffer, 1 - momentum)) for buffer in buffers)


@pytest.mark.parametrize("paper", [paper for paper in MODELS if paper != "elmo"])
def test_layer_decay_slows_lower_layers(paper):
    """Howard and Ruder 2018, section 3.2: the rate of a layer is a fraction of that of the next one."""
    model = torch.nn.ModuleDict({"backbone": small(paper), "head": torch.nn.Linear(30, 3)})
    optimizer = Optimizer(model, OptimizerConfig(0.1, 0, layer_decay=0.5, weight_decay=0.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.0)
            parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.1)
    moved = {name: -float(p.detach().double().mean()) for name, p in model.named_parameters()}
    blocks = len(model["backbone"].blocks)
    for name, fraction in {
        "backbone.tokens.weight": 0.5 ** (blocks + 1),
        "backbone.blocks.0.up.weight": 0.5**blocks,
        f"backbone.blocks.{blocks - 1}.up.weight": 0.5,
        "head.weight": 1.0,
        "head.bias": 1.0,
    }.items():
        assert moved[name] == pytest.approx(0.1 * fraction, rel=1e-5), name


def test_a_frozen_weight_is_not_updated_and_has_no_state():
    model = small("gpt")
    model.blocks[0].requires_grad_(False)
    optimizer = Optimizer(model, ADAMW)
    assert not any(name.startswith("blocks.0") for name in optimizer.tensors())
    assert any(name.startswith("blocks.1") for name in optimizer.tensors())


@pytest.mark.parametrize("config", [ADAMW, MUON])
def test_head_steps_train_only_the_head_at_first(config):
    model = small("bert")
    optimizer = Optimizer(model, replace(config, head_steps=2))
    for number in range(3):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        give_gradients(model, number)
        optimizer.step(0.05, number)
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        head = {"bias", "pooler.weight", "transform.weight", "transform_norm.weight", "follows.weight"}
        assert moved >= head
        assert ("blocks.1.up.weight" in moved) == ("tokens.weight" in moved) == (number == 2)


def test_head_steps_train_all_of_a_model_in_which_nothing_follows_the_blocks():
    model = MODELS["gpt"].model(MODELS["gpt"].config(97, 13, 2, 30, heads=3, norm="post"))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    give_gradients(model, 0)
    Optimizer(model, replace(ADAMW, head_steps=2)).step(0.05, 0)
    assert not any(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
