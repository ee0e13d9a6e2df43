"""Embeddings begin with what stands near each token: as counted by hand, and the same for every paper."""

import numpy as np
import pytest
import torch

from plm_core.configs.architectures import MODELS
from plm_core.text import cooccurrence
from plm_core.text.cooccurrence import begin_with_frequencies, begin_with_neighbours
from plm_core.text.token_store import TokenStore, write_tokens

V = 41


@pytest.fixture
def store(tmp_path):
    """A store of documents that are given as tokens."""

    def made(*documents):
        named = ((f"d{n}", 1, np.array(tokens)) for n, tokens in enumerate(documents))
        write_tokens(tmp_path / "train", named, V, "0" * 64)
        return TokenStore(tmp_path / "train")

    return made


def drawn(size):
    torch.manual_seed(1)
    return torch.randn(V, size) * 0.02


def text(length, low=9, high=V - 5, seed=2):
    """Tokens in no order, some far more frequent than others."""
    return (low + np.random.default_rng(seed).geometric(0.15, length) % (high - low)).tolist()


def test_embedding_products_match_mutual_information(store):
    """At full size nothing is lost but the turn; the root of the singular values gives (M Mᵀ)^½."""
    tokens = store(text(700))
    stream = tokens.tokens(0, len(tokens)).tolist()
    counts = np.zeros((V, V))
    for at, token in enumerate(stream):
        for near in range(max(0, at - 2), min(len(stream), at + 3)):
            if near != at:
                counts[token, stream[near]] += 1 / abs(at - near)
    seen = counts.sum(axis=1) > 0
    rare = counts.sum(axis=0) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = np.log(counts / counts.sum(axis=1, keepdims=True) / (rare / rare.sum()))
    nats = np.where(nats > 0, nats, 0)
    values, vectors = np.linalg.eigh(nats @ nats.T)
    expected = vectors * np.sqrt(values.clip(0)) @ vectors.T
    embedding = drawn(V)
    begin_with_neighbours(embedding, tokens, 0.02)
    products = (embedding[seen] @ embedding[seen].T).double().numpy()
    expected = expected[np.ix_(seen, seen)]
    assert products / products.trace() == pytest.approx(expected / expected.trace(), abs=1e-4)


def test_initial_embeddings_change_tokens_of_the_text_only(store):
    embedding, other, before = drawn(16), drawn(16), drawn(16)
    tokens = store(text(700))
    torch.manual_seed(5)
    begin_with_neighbours(embedding, tokens, 0.02)
    torch.manual_seed(5)
    begin_with_neighbours(other, tokens, 0.02)
    assert torch.equal(embedding, other)
    seen = torch.zeros(V, dtype=torch.bool)
    seen[np.unique(tokens.tokens(0, len(tokens)))] = True
    assert torch.equal(embedding[~seen], before[~seen])
    assert embedding[seen].square().mean().sqrt() == pytest.approx(0.06, rel=1e-4)
    assert (embedding[seen] != before[seen]).any(dim=1).all()
    # No coordinate is much larger than others.
    assert embedding[seen].std(dim=0).max() < 3 * embedding[seen].std(dim=0).min()


def test_cooccurrence_of_long_text_is_sampled_evenly(store, monkeypatch):
    """The first and the last documents have tokens of their own."""
    tokens = store(text(300, 9, 15), text(5000, 16, 25), text(300, 26, 32))
    monkeypatch.setattr(cooccurrence, "PART", 50)
    read = []
    monkeypatch.setattr(
        TokenStore, "tokens", lambda self, *span, read_all=TokenStore.tokens: read.append(span) or read_all(self, *span)
    )
    embedding, before = drawn(16), drawn(16)
    begin_with_neighbours(embedding, tokens, 0.02)
    assert 16 * 50 <= sum(stop - start for start, stop in read) <= 17 * 50
    changed = (embedding != before).any(dim=1).nonzero().flatten().tolist()
    assert changed[0] < 15
    assert changed[-1] > 25


@pytest.mark.parametrize("documents", [[], [[]], [[7]]], ids=["nothing", "an end", "a token"])
def test_a_text_without_neighbours_changes_nothing_or_little(store, documents):
    embedding = drawn(16)
    begin_with_neighbours(embedding, store(*documents), 0.02)
    assert embedding.isfinite().all()
    assert (embedding != drawn(16)).any(dim=1).sum() <= 2


@pytest.mark.parametrize("paper", [paper for paper, entry in MODELS.items() if paper != "elmo"])
def test_initial_embeddings_fit_every_architecture(store, paper):
    """Also where there are fewer tokens than dimensions."""
    entry = MODELS[paper]
    sizes = {"vocab_size": V, "context": 13, "layers": 1, "heads": 2, "width": 64, "initial_embeddings": "neighbours"}
    model = entry.model(entry.config(**sizes))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    begin_with_neighbours(model.tokens.weight, store(text(700)), 0.02)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert "tokens.weight" in changed
    # The output layer's weights are the same tensor.
    assert all(torch.equal(model.state_dict()[name], model.tokens.weight) for name in changed)
    assert model.tokens.weight.isfinite().all()


def test_initial_bias_predicts_token_frequencies(store, monkeypatch):
    monkeypatch.setattr(cooccurrence, "PART", 100)
    tokens = store(text(700))
    counts = np.bincount(tokens.tokens(0, len(tokens)), minlength=V) + 1
    bias = torch.zeros(V)
    begin_with_frequencies(bias, tokens)
    assert bias.softmax(0).numpy() == pytest.approx(counts / counts.sum(), abs=1e-6)
