"""Tiny models of every paper, with sizes that cannot be confused and every parameter drawn at random."""

import pytest
import torch

from plm_core.configs.architectures import EncoderDecoderConfig
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.electra import ELECTRA, ELECTRAConfig
from plm_core.models.elmo import ELMo, ELMoConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.t5 import T5, T5Config
from plm_core.models.transformer import Transformer
from plm_core.models.xlnet import XLNet, XLNetConfig

GROUPED = {"kv_heads": 2, "inner": 50, "rope_base": 70.0}
LOCAL = {"inner": 50, "global_every": 2, "window": 6, "rope_base": 170.0, "local_rope_base": 50.0}
MODELS = {
    "gpt": (GPT, GPTConfig, {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 21}),
    "llama": (Llama, LlamaConfig, {"vocab_size": 99, "context": 17, "layers": 2, "heads": 6, "width": 36, **GROUPED}),
    "bert": (BERT, BERTConfig, {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 21}),
    "modernbert": (
        ModernBERT,
        ModernBERTConfig,
        {"vocab_size": 99, "context": 17, "layers": 4, "heads": 3, "width": 30, **LOCAL},
    ),
    "electra": (ELECTRA, ELECTRAConfig, {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 21}),
    "transformer": (
        Transformer,
        EncoderDecoderConfig,
        {"vocab_size": 94, "context": 17, "layers": 2, "heads": 3, "width": 21, "inner": 50, "sentinels": 5},
    ),
    "t5": (
        T5,
        T5Config,
        {"vocab_size": 94, "context": 17, "layers": 2, "heads": 4, "width": 21, "head_width": 6, "inner": 50}
        | {"sentinels": 5, "buckets": 8, "max_distance": 12},
    ),
    "elmo": (
        ELMo,
        ELMoConfig,
        {"vocab_size": 99, "context": 17, "layers": 2, "width": 22, "cells": 23, "characters": 5, "longest": 12}
        | {"filters": ((1, 3), (2, 7), (4, 9))},
    ),
    "xlnet": (XLNet, XLNetConfig, {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 30}),
}


@torch.no_grad()
def draw(module, seed=0):
    """Draw every parameter, gains and biases too, so that no term of the formulas is hidden by a zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(noise * 0.3 + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.1))
    return module


@pytest.fixture
def make(device):
    """Makes the model of a paper by name, in evaluation mode; keywords replace its sizes."""

    def made(paper, seed=0, dtype=torch.float64, **sizes):
        model, config, shape = MODELS[paper]
        return draw(model(config(**(shape | {"dropout": 0.0} | sizes))), seed).to(dtype).eval()

    return made
