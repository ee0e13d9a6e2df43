"""The operations of a step are those that one counts by hand, product by product, and those of the literature."""

import copy

import pytest
import torch

from plm_core.configs.architectures import MODELS
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.objectives.causal import Causal, CausalBatch
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation
from plm_core.training.flops import META, datasheet_flops, measured_flops, step_flops

V, T, L, H, D, B = 307, 29, 2, 3, 24, 5
SIZES = {"vocab_size": V, "context": T, "layers": L, "heads": H, "width": D}
PAPERS = {
    "gpt": (GPT, GPTConfig(**SIZES), Causal()),
    "llama": (Llama, LlamaConfig(**SIZES, kv_heads=1, inner=100), Causal()),
    "bert": (BERT, BERTConfig(**SIZES), Masked(next_sentence=True)),
    "modernbert": (ModernBERT, ModernBERTConfig(**SIZES, inner=100), Masked()),
    "xlnet": (XLNet, XLNetConfig(**SIZES, memory=11), Permutation(predict=3, reuse=17)),
}


def case(paper, store):
    """A model, its objective and a batch."""
    model, config, objective = PAPERS[paper]
    torch.manual_seed(3)
    return model(config), objective, objective.batches(store, config, B).at(7, 0)


def product(m, k, n, times=3):
    """[m, k] x [k, n]: forwards, and backwards once for each of the two; fewer ``times`` where one has no gradient."""
    return times * 2 * m * k * n


def attention(rows, queries, keys):
    """Queries by keys, then weights by values, over all heads together."""
    return rows * (product(queries, D, keys) + product(queries, keys, D))


def test_flops_of_gpt_match_its_products(store):
    model, objective, batch = case("gpt", store)
    block = product(B * T, D, 3 * D) + product(B * T, D, D) + 2 * product(B * T, D, 4 * D) + attention(B, T, T)
    assert step_flops(model, objective.loss, batch) == L * block + product(B * T, D, V)


def test_flops_of_gpt2_match_palm_and_nanogpt():
    """6N + 12LHQT a token (Chowdhery et al. 2022, appendix B); nanoGPT leaves the positions' embedding out of N."""
    config = GPTConfig(**MODELS["gpt"].presets["small"])
    with torch.device("meta"):
        model = GPT(config)
        ids = torch.zeros(2, 1024, dtype=torch.long)
        batch = CausalBatch(ids, ids, torch.ones(2, dtype=torch.bool))
    N = sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()
    published = 6 * N + 12 * config.layers * config.heads * (config.width // config.heads) * 1024
    assert step_flops(model, Causal().loss, batch) / (2 * 1024) == pytest.approx(published, rel=0.002)


def test_flops_of_llama_count_grouped_keys_and_gate(store):
    model, objective, batch = case("llama", store)
    projections = 2 * product(B * T, D, D) + 2 * product(B * T, D, D // H)
    block = projections + 3 * product(B * T, D, 100) + attention(B, T, T)
    assert step_flops(model, objective.loss, batch) == L * block + product(B * T, D, V)


def put_back(chosen):
    """The gradients of the chosen queries and of what they are added to, each by one product to where they belong."""
    return 2 * 2 * B * T * chosen * D


def test_flops_of_bert_count_head_at_masked_positions(store):
    model, objective, batch = case("bert", store)
    N = batch.targets.shape[1]
    assert 0 < N < T
    block = product(B * T, D, 3 * D) + product(B * T, D, D) + 2 * product(B * T, D, 4 * D) + attention(B, T, T)
    # The last block is for the masked positions and the first one alone; all positions are its keys and values.
    last = product(B * T, D, 3 * D) + product(B * (N + 1), D, D) + 2 * product(B * (N + 1), D, 4 * D)
    heads = product(B * N, D, D) + product(B * N, D, V) + product(B, D, D) + product(B, D, 2)
    expected = (L - 1) * block + last + attention(B, N + 1, T) + heads + put_back(N + 1)
    assert step_flops(model, objective.loss, batch) == expected


def test_flops_of_modernbert_count_head_at_masked_positions(store):
    model, objective, batch = case("modernbert", store)
    N = batch.targets.shape[1]
    assert 0 < N < T
    block = product(B * T, D, 3 * D) + product(B * T, D, D) + 3 * product(B * T, D, 100) + attention(B, T, T)
    last = product(B * T, D, 3 * D) + product(B * N, D, D) + 3 * product(B * N, D, 100) + attention(B, N, T)
    head = product(B * N, D, D) + product(B * N, D, V)
    assert step_flops(model, objective.loss, batch) == (L - 1) * block + last + head + put_back(N)


@pytest.mark.parametrize("carried", [False, True])
def test_flops_of_xlnet_count_two_streams_and_memory(store, carried):
    model, objective, batch = case("xlnet", store)
    K, N = T + model.config.memory, batch.queries.shape[1]
    assert 0 < N < T

    def stream(Q, times):
        own = product(B * Q, D, D, times) * 2 + product(B * Q, D, 4 * D, times) * 2
        distances = B * product(Q, D, K + T, times) + product(K + T, D, D, min(times, 2))  # of encodings, no weights
        return own + distances + product(B * Q, D, 2, times) + attention(B, Q, K) * times // 3

    keys = 2 * product(B * K, D, D)
    # The content stream's last states predict nothing, so that nothing comes back from them.
    expected = L * (keys + stream(N, 3)) + (L - 1) * stream(T, 3) + stream(T, 1) + product(B * N, D, V)
    carry = tuple(tensor.to(META) for tensor in objective.loss(model, batch).carry) if carried else None
    assert step_flops(model, lambda there, rows, _: objective.loss(there, rows, carry), batch) == expected


@pytest.mark.parametrize("paper", PAPERS)
def test_flop_count_leaves_training_unchanged(paper, store, device):
    model, objective, batch = case(paper, store)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        step_flops(model.train(), objective.loss, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert model.training


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_device_peak_flops_is_its_best_product(monkeypatch, precision):
    times = iter([0.0, 0.05, 0.05 + 0.02, 0.07 + 0.04, 99.0])
    monkeypatch.setattr("plm_core.training.device.perf_counter", lambda: next(times))
    state = torch.get_rng_state()
    assert measured_flops(torch.device("cpu"), precision) == pytest.approx(2 * 512**3 / 0.02)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_datasheet_of_a_gpu_is_found_by_name(name, teraflops):
    assert datasheet_flops(name) == teraflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A10G",
        "NVIDIA H20",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "",
    ],
)
def test_datasheet_is_not_taken_for_other_names(name):
    assert datasheet_flops(name) is None
