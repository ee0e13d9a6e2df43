"""Rotary positions, and what LLaMA and ModernBERT have besides."""

import pytest
import torch

from plm_core.configs import architectures
from plm_core.models.kv_cache import KVCache
from plm_core.models.rotary import angles, rotate

B, T, V = 5, 11, 99


def ids(seed=0, rows=B, length=T):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_rotary_first_frequency_is_one_and_norms_are_kept():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(B, 3, T, 8, dtype=torch.float64, generator=draw)
    by = angles(torch.arange(T), 8, 10_000.0, torch.float64)
    turned = rotate(x, by)
    pairs = [torch.complex(*y.chunk(2, -1)) for y in (x, turned)]
    for place in range(T):
        for i in range(4):
            turn = torch.polar(torch.ones(()).double(), torch.tensor(place * 10_000.0 ** (-2 * i / 8)).double())
            torch.testing.assert_close(pairs[1][:, :, place, i], pairs[0][:, :, place, i] * turn)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("base", [50.0, 10_000.0])
def test_rotary_products_depend_on_distance_alone(base):
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64, generator=draw) for _ in range(2))

    def product(at, other):
        left, right = (angles(torch.tensor([place]), 8, base, torch.float64) for place in (at, other))
        return float((rotate(q, left) * rotate(k, right)).sum())

    assert product(3, 1) == pytest.approx(product(8_003, 8_001), rel=1e-9)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-3)


def test_distant_positions_are_told_apart_in_float32():
    """Angles are counted in float64, whatever they are kept in."""
    place = 10**7 + 1
    result = angles(torch.tensor([place]), 8, 10_000.0, torch.float32)
    expected = torch.tensor([place * 10_000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64).cos()
    assert result.cos.dtype == result.sin.dtype == torch.float32
    torch.testing.assert_close(result.cos.flatten(), expected.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("paper", ["llama", "modernbert"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16 autocast", "bfloat16"])
@torch.no_grad()
def test_logits_have_the_requested_precision(make, paper, kind):
    model, exact = make(paper, dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32), make(paper)
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in kind):
        logits = model.logits(model.encode(ids()))
        if paper == "llama":
            (cache := KVCache(model)).read(ids())
            assert cache.read(ids(1, length=2)).isfinite().all()
            assert {tensor.dtype for layer in cache.layers for tensor in layer.pair} == {logits.dtype}
    assert logits.dtype == (torch.float32 if kind == "float32" else torch.bfloat16)
    expected = exact.logits(exact.encode(ids()))
    assert (logits.double() - expected).norm() < (1e-5 if kind == "float32" else 0.1) * expected.norm()


SHAPE = {"vocab_size": 99, "context": 17, "layers": 2}


def test_gated_feed_forward_has_as_many_weights_as_4x_width():
    """8/3 of the width, as the released models have it, which were rounded to multiples of 256."""
    for width, expected in ((24, 64), (128, 384), (768, 2048), (4096, 10944)):
        config = architectures.LlamaConfig(**SHAPE, heads=4, width=width)
        assert (config.inner, config.kv_heads) == (expected, 4)
        assert 0 <= 3 * config.inner - 8 * width < 3 * 64
    given = architectures.LlamaConfig(**SHAPE, heads=4, width=24, inner=7, kv_heads=2)
    assert (given.inner, given.kv_heads) == (7, 2)
    for preset in ("7B", "13B", "33B", "65B"):
        sizes = architectures.MODELS["llama"].presets[preset]
        assert sizes["inner"] == -(-8 * sizes["width"] // (3 * 256)) * 256


def test_of_three_layers_of_modernbert_one_reads_the_row_and_the_first_needs_no_norm():
    model = architectures.MODELS["modernbert"].model(architectures.ModernBERTConfig(99, 17, 7, 24, heads=4))
    assert [block.whole for block in model.blocks] == [True, False, False, True, False, False, True]
    assert [hasattr(block.norm_1, "weight") for block in model.blocks] == [False] + [True] * 6
    assert model.config.inner == 64
    assert architectures.ModernBERTConfig(99, 17, 7, 24, heads=4, inner=7).inner == 7


@torch.no_grad()
def test_modernbert_reads_no_segments(make):
    model = make("modernbert")
    assert torch.equal(model.encode(ids(), ids(3) % 2), model.encode(ids()))
