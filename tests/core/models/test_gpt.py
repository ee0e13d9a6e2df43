"""GPT is the model of the paper, by an implementation of its formulas that shares no code; and how it learns."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from plm_core.config import UserError, from_dict
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.sections.models import MODELS

B, T, V, D, H, LAYERS, CONTEXT = 5, 11, 37, 21, 3, 2, 13


def ids(seed=0, batch=B, length=T, vocab=V):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def reference(weights, tokens):
    """Logits ``[T, V]`` of one sequence from the formulas of the papers, in numpy and with loops where they sum."""
    w = {name: tensor.numpy() for name, tensor in weights.items()}

    def norm(x, name):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def softmax(scores):
        e = np.exp(scores - scores.max())
        return e / e.sum()

    def attention(x, name):
        q, k, v = np.split(linear(x, f"{name}.qkv"), 3, axis=-1)
        size = D // H
        heads = []
        for h in range(H):
            part = slice(h * size, (h + 1) * size)
            rows = []
            for t in range(len(x)):
                weight = softmax(np.array([q[t, part] @ k[s, part] / math.sqrt(size) for s in range(t + 1)]))
                rows.append(sum(weight[s] * v[s, part] for s in range(t + 1)))
            heads.append(np.array(rows))
        return linear(np.concatenate(heads, axis=-1), f"{name}.out")

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = np.array([w["tokens.weight"][token] + w["positions.weight"][t] for t, token in enumerate(tokens)])
    for i in range(LAYERS):
        x = x + attention(norm(x, f"blocks.{i}.norm_1"), f"blocks.{i}.attention")
        x = x + linear(gelu(linear(norm(x, f"blocks.{i}.norm_2"), f"blocks.{i}.up")), f"blocks.{i}.down")
    return norm(x, "norm") @ w["tokens.weight"].T


@torch.no_grad()
def test_the_logits_are_those_of_an_independent_implementation(make_gpt):
    model = make_gpt()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():  # also the gains and biases that start as ones and zeros
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    found = model.logits(model(ids()))
    expected = np.stack([reference(model.state_dict(), row) for row in ids().tolist()])
    assert found.shape == (B, T, V)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_later_tokens_and_other_rows_change_no_hidden_state(make_gpt):
    model = make_gpt()
    whole = model(ids())
    for length in (1, 7):
        torch.testing.assert_close(model(ids()[:, :length]), whole[:, :length], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(ids()[3:4]), whole[3:4], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_same_token_elsewhere_means_something_else(make_gpt):
    hidden = make_gpt()(torch.full((1, 7), 5))
    assert (hidden[0, 1:] - hidden[0, :-1]).abs().max() > 1e-3


def test_the_output_layer_is_the_token_embedding(make_gpt):
    model = make_gpt()
    hidden = torch.randn(B, 7, D, dtype=torch.float64)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.tokens.weight.T)
    loss = F.cross_entropy(model.logits(model(ids()[:, :-1])).flatten(0, 1), ids()[:, 1:].flatten())
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert (model.tokens.weight.grad.abs().sum(-1) > 0).all()  # of every token, also of those not in the input


@torch.no_grad()
def test_an_untrained_model_knows_no_more_than_the_size_of_the_vocabulary():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=997, context=37, layers=2, heads=2, width=32, dropout=0.0))
    tokens = ids(batch=13, length=37, vocab=997)
    loss = F.cross_entropy(model.logits(model(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(997), abs=0.05)


def test_one_batch_can_be_learned_by_heart(make_gpt):
    model, tokens = make_gpt(dtype=torch.float32), ids()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        # Rows begin alike or not: the first token's own successor is all that may be ambiguous.
        loss = F.cross_entropy(model.logits(model(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_dropout_is_random_in_training_and_absent_in_evaluation(make_gpt):
    model = make_gpt(dropout=0.5)
    first, second = model(ids()), model(ids())
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(ids()), model(ids()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, r"^model\.heads: 5 does not divide width 21"),
        ({"layers": 0}, r"^model\.layers: found 0; expected above 0"),
        ({"width": -3}, r"^model\.width: found -3"),
        ({"dropout": 1.0}, r"^model\.dropout: found 1\.0"),
        ({"dropout": -0.1}, r"^model\.dropout"),
        ({"vocab_size": 0}, r"^model\.vocab_size"),
    ],
)
def test_an_impossible_shape_is_refused_by_name(change, message):
    shape = {"vocab_size": V, "context": CONTEXT, "layers": LAYERS, "heads": H, "width": D}
    with pytest.raises(UserError, match=message):
        from_dict(GPTConfig, shape | change, "model")


def test_an_architecture_is_built_from_its_configuration_alone():
    shape = {"vocab_size": V, "context": CONTEXT, "layers": LAYERS, "heads": H, "width": 30}
    for entry in MODELS.values():
        config = from_dict(entry.config, shape, "model")
        assert (config.vocab_size, config.context) == (V, CONTEXT)
        assert entry.model(config).config is config
