"""Attention maps are the weights that the models compute with: by hand, by their zeros, and by transformers."""

import math

import pytest
import torch
import transformers
from torch.nn import functional as F

from plm_core.attention_maps import attention_maps, cross_attention_maps, weights
from plm_core.finetuning.input_formats import input_format_of
from plm_core.interchange import FAMILIES
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.t5 import T5, T5Config
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.objectives.span_corruption import shifted

V, CONTEXT, T, L, H = 37, 13, 11, 2, 3
SHAPE = {"vocab_size": V, "context": CONTEXT, "layers": L, "heads": H, "dropout": 0.0}


@pytest.fixture(scope="module")
def models(device):
    """Each model with weights far from its initial ones, in float64."""
    torch.manual_seed(7)
    made = {
        "gpt": GPT(GPTConfig(width=21, **SHAPE)),
        "llama": Llama(LlamaConfig(width=24, kv_heads=1, **SHAPE)),
        "bert": BERT(BERTConfig(width=21, **SHAPE)),
        "modernbert": ModernBERT(ModernBERTConfig(width=24, **SHAPE)),
        "xlnet": XLNet(XLNetConfig(width=18, memory=5, **SHAPE)),
    }
    for model in made.values():
        model.double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.5)
    return made


@pytest.fixture(scope="module")
def ids():
    return torch.randint(V, (1, T), generator=torch.Generator().manual_seed(3))


KINDS = [
    ("gpt", "causal"),
    ("llama", "causal"),
    ("llama", "hybrid"),
    ("bert", "masked"),
    ("modernbert", "masked"),
    ("xlnet", "permutation"),
    ("xlnet", "causal"),
]


@pytest.mark.parametrize(("name", "objective"), KINDS)
def test_attention_map_rows_are_distributions(models, ids, name, objective):
    maps = attention_maps(models[name], ids, input_format_of(objective))
    assert maps.shape == (L, H, T, T)
    torch.testing.assert_close(maps.sum(-1), torch.ones(L, H, T, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert (maps >= 0).all()
    flat = maps.flatten(0, 1)
    assert all((flat[i] - flat[j]).abs().max() > 1e-3 for i in range(L * H) for j in range(i))
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    if objective == "causal":
        assert (maps[..., future] == 0).all()
    else:
        assert (maps[..., future] > 0).all()


@torch.no_grad()
def test_the_first_layer_of_xlnet_by_hand(models, ids):
    """score(i, j) = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(D/H), equations of Dai et al. 2019, section 3.3."""
    model, maps = models["xlnet"], attention_maps(models["xlnet"], ids, input_format_of("permutation"))
    attention, x = model.blocks[0].attention, model.tokens(ids[0])
    q, k = (layer(x).view(T, H, 6) for layer in (attention.q, attention.k))
    frequencies = 10000 ** (-torch.arange(0, 18, 2, dtype=torch.float64) / 18)
    for h in range(H):
        scores = torch.empty(T, T, dtype=torch.float64)
        for i in range(T):
            for j in range(T):
                angles = (i - j) * frequencies
                r = attention.r(torch.cat((angles.sin(), angles.cos()))).view(H, 6)[h]
                u, v = attention.content_bias[h, 0], attention.distance_bias[h, 0]
                scores[i, j] = ((q[i, h] + u) @ k[j, h] + (q[i, h] + v) @ r) / math.sqrt(6)
        torch.testing.assert_close(maps[0, h], scores.softmax(-1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["none", "causal", "true and false", "added"])
def test_attention_map_weights_reproduce_the_output(kind):
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, H, size, 7, generator=draw, dtype=torch.float64) for size in (5, 13, 13))
    seen = torch.rand(2, 1, 5, 13, generator=draw) < 0.7
    seen[..., 0] = True
    more = {
        "none": {"scale": 0.3},
        "causal": {"is_causal": True},
        "true and false": {"attn_mask": seen},
        "added": {"attn_mask": torch.randn(2, H, 5, 13, generator=draw, dtype=torch.float64)},
    }[kind]
    expected = F.scaled_dot_product_attention(q, k, v, **more)
    torch.testing.assert_close(weights(q, k, v, **more) @ v, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "objective"), [("gpt", "causal"), ("bert", "masked")])
@torch.no_grad()
def test_the_maps_are_those_of_transformers(models, ids, name, objective):
    family, own = FAMILIES[name], models[name]
    config = transformers.AutoConfig.for_model(**family.their_config(vars(own.config)), attn_implementation="eager")
    other = getattr(transformers, family.model_class)(config).double().eval()
    missing, unexpected = other.load_state_dict(family.to_theirs(own.state_dict(), vars(own.config)), strict=False)
    assert (set(missing), unexpected) == (set(family.tied), [])
    expected = torch.cat(other(ids, output_attentions=True).attentions)
    torch.testing.assert_close(attention_maps(own, ids, input_format_of(objective)), expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_cross_attention_maps_are_those_of_transformers(device):
    torch.manual_seed(7)
    own = T5(T5Config(width=21, first_sentinel=V - 1, sentinels=3, **SHAPE)).double()
    source, written = torch.randint(V, (1, T)), torch.randint(V, (1, 7))
    family = FAMILIES["t5"]
    config = transformers.T5Config(**family.their_config(vars(own.config)), attn_implementation="eager")
    other = transformers.T5ForConditionalGeneration(config).double().eval()
    other.load_state_dict(family.to_theirs(own.state_dict(), vars(own.config)), strict=False)
    output = other(source, decoder_input_ids=shifted(written), output_attentions=True)
    maps = cross_attention_maps(own, source, written)
    assert maps.shape == (L, H, 7, T)
    torch.testing.assert_close(maps, torch.cat(output.cross_attentions), rtol=1e-6, atol=1e-6)
