"""Tiny float64 models of every architecture, and texts whose bytes and words are known."""

import pytest
import torch

from plm_core.configs.architectures import MODELS
from plm_core.evaluation.likelihood.document_scores import Text

SHAPE = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 21, "dropout": 0.0}
"""No two sizes are equal."""


def maker(name, **shape):
    """Makes a tiny float64 model of this architecture; keywords replace its sizes."""
    entry = MODELS[name]

    def make(seed=0, dtype=torch.float64, **sizes):
        torch.manual_seed(seed)
        return louder(entry.model(entry.config(**(SHAPE | shape | sizes))).to(dtype))

    return make


@torch.no_grad()
def louder(model):
    """Weights ten times as large: what a token sees then changes its prediction by more than a rounding error."""
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.mul_(10)
    return model


@pytest.fixture(scope="session")
def make_elmo(device):
    entry, shape = MODELS["elmo"], {"width": 22, "cells": 23, "longest": 8, "filters": ((1, 7), (2, 17))}

    def make(**sizes):
        torch.manual_seed(0)
        given = {name: size for name, size in SHAPE.items() if name != "heads"} | shape | sizes
        return entry.model(entry.config(**given)).double()

    return make


@pytest.fixture(scope="session")
def make_bert(device):
    return maker("bert")


@pytest.fixture(scope="session")
def make_electra(device):
    return maker("electra")


@pytest.fixture(scope="session")
def make_xlnet(device):
    return maker("xlnet", width=18, memory=7)


@pytest.fixture(scope="session")
def make_text():
    """Makes a text of ``length`` tokens of 1 to 5 bytes, in which every third or so begins a word."""

    def make(length, seed=0, vocab_size=37):
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(7, vocab_size, (length,), generator=draw).tolist()
        sizes = torch.randint(1, 6, (length,), generator=draw).tolist()
        starts = (torch.rand(length, generator=draw) < 0.4).tolist()
        return Text(ids, sizes, [True, *starts[1:]][:length])

    return make
