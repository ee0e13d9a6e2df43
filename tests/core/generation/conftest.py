"""Models that continue texts: tiny, and far from uniform."""

import pytest
import torch

from plm_core.checkpoint import FORMAT, CheckpointConfig, Loaded
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.xlnet import XLNet, XLNetConfig

SHAPE = {"context": 13, "layers": 2, "heads": 3, "dropout": 0.0}


@pytest.fixture(scope="session")
def models(device, tokenizer):
    """``(model, objective)`` of each kind that continues texts, in float64, with weights that make it opinionated."""
    V = tokenizer.vocab_size
    made = {
        "gpt": (GPT(GPTConfig(V, width=21, **SHAPE)), "causal"),
        "llama": (Llama(LlamaConfig(V, width=24, kv_heads=1, **SHAPE)), "causal"),
        "transformer-xl": (XLNet(XLNetConfig(V, width=18, memory=5, **SHAPE)), "causal"),
        "xlnet": (XLNet(XLNetConfig(V, width=18, memory=5, **SHAPE)), "permutation"),
        "gpt-1": (GPT(GPTConfig(V, width=21, norm="post", **SHAPE)), "causal"),
    }
    for model, _ in made.values():
        model.double().eval()
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.7)
    return made


@pytest.fixture(params=["gpt", "gpt-1", "llama", "transformer-xl", "xlnet"])
def any_model(request, models):
    """``(model, objective)``, one kind after the other."""
    return models[request.param]


@pytest.fixture(scope="session")
def loaded(tokenizer):
    """Makes a loaded checkpoint of a model."""

    def make(model, objective="causal"):
        config = CheckpointConfig(FORMAT, "gpt", objective, {}, tokenizer.sha256, step=99, valid_nats=5.25)
        return Loaded(model, tokenizer, config, "", {})

    return make
