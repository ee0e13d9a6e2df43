"""LLaMA computes what ``LlamaForCausalLM`` of transformers computes: logits, loss and every parameter's gradient."""

import pytest
import torch
from compilers import pretend
from references import TOLERANCE, agree, agree_on_gradients, exactly, reference_of
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from plm_core.generation.decoding import KVCache
from plm_core.models.blocks import places_in, same_document
from plm_core.models.rotary import angles, rotate
from plm_core.objectives.loss import IGNORED
from plm_core.sections import models

B, T, V = 5, 11, 99
BOTH = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
GROUPS = pytest.mark.parametrize("kv_heads", [6, 2, 1])


def ids(seed=0, rows=B, length=T):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair(make):
    """Our model and the reference with the same random weights."""

    def made(dtype, **sizes):
        ours = make("llama", seed=7, dtype=dtype, **sizes)
        return ours, reference_of("llama", ours, LlamaConfig, LlamaForCausalLM, dtype)

    return made


@BOTH
@GROUPS
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_logits_loss_and_gradients_are_those_of_the_reference(pair, dtype, kv_heads, padding):
    ours, theirs = pair(dtype, kv_heads=kv_heads)
    lengths = torch.tensor([11, 7, 3, 9, 5])[:, None]
    places = torch.arange(T).expand(B, T)
    attention_mask = {"none": places >= 0, "right": places < lengths, "left": places >= T - lengths}[padding]
    # A label whose predecessor is padding is predicted from what sees nothing.
    predicted = attention_mask[:, 1:] & attention_mask[:, :-1]
    labels = torch.where(F.pad(predicted, (1, 0)), ids(), IGNORED)
    with exactly(dtype):
        expected = theirs(
            ids(),
            attention_mask=attention_mask.long(),
            position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0),
            labels=labels,
        )
        expected.loss.backward()
    logits = ours.logits(ours(ids(), None if padding == "none" else attention_mask))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    agree(logits[attention_mask], expected.logits[attention_mask])
    agree(loss, expected.loss, "loss")
    loss.backward()
    agree_on_gradients("llama", ours, theirs)


@BOTH
@torch.no_grad()
def test_a_text_is_continued_as_the_reference_continues_it(pair, dtype):
    ours, theirs = pair(dtype)
    attention_mask = torch.arange(T) >= torch.tensor([0, 2, 5, 0, 1])[:, None]
    places = (attention_mask.cumsum(1) - 1).clamp(min=0)
    ours_cache, cache = KVCache(ours), None
    for part in torch.arange(T).split([6, 3, 1, 1]):
        until = int(part[-1]) + 1
        with exactly(dtype):
            expected = theirs(
                ids()[:, part],
                attention_mask=attention_mask[:, :until].long(),
                position_ids=places[:, part],
                past_key_values=cache,
                use_cache=True,
            )
        cache = expected.past_key_values
        hidden = ours_cache.read(ids()[:, part], attention_mask[:, part])
        real = attention_mask[:, part]
        agree(ours.logits(hidden)[real], expected.logits[real])
    keys, values = ours_cache.layers[0].pair
    assert keys.shape == values.shape == (B, 2, T, 6)  # of the heads of keys alone


@BOTH
def test_documents_side_by_side_are_what_the_reference_makes_of_their_mask_and_places(pair, dtype):
    ours, theirs = pair(dtype)
    documents = torch.tensor([[0] * 11, [0] * 5 + [1] * 6, [0, 1, 1, 4, 4, 4, 4, 4, 4, 7, 7]])
    tokens = ids(rows=3)
    seen = same_document(documents).tril()
    assert places_in(documents).max() == 10
    with exactly(dtype):
        expected = theirs(
            tokens,
            attention_mask=torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min),
            position_ids=places_in(documents),
            use_cache=False,
        ).logits
        F.cross_entropy(expected.flatten(0, 1), ids(3, rows=3).flatten()).backward()
    logits = ours.logits(ours.read(tokens, documents=documents))
    agree(logits, expected)
    F.cross_entropy(logits.flatten(0, 1), ids(3, rows=3).flatten()).backward()
    agree_on_gradients("llama", ours, theirs)


@torch.no_grad()
def test_what_dropout_drops_is_what_the_reference_drops(pair, monkeypatch):
    """The weights of attention and nothing else: those it keeps are drawn from one seed here and there."""
    ours, theirs = pair(torch.float64, dropout=0.3)
    assert theirs.config.attention_dropout == 0.3
    pretend(monkeypatch)  # as two products, of which one is dropped
    torch.manual_seed(5)
    found = ours.train().logits(ours(ids()))
    torch.manual_seed(5)
    with exactly(torch.float64):
        expected = theirs.train()(ids()).logits
    agree(found, expected)
    assert (found - ours.eval().logits(ours(ids()))).abs().max() > 0.1


def test_the_first_base_turns_by_radians_and_a_rotation_keeps_lengths():
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
def test_a_product_of_a_query_and_a_key_depends_on_their_distance_alone(base):
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64, generator=draw) for _ in range(2))

    def product(at, other):
        one, two = (angles(torch.tensor([place]), 8, base, torch.float64) for place in (at, other))
        return float((rotate(q, one) * rotate(k, two)).sum())

    assert product(3, 1) == pytest.approx(product(8_003, 8_001), rel=1e-9)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-3)


def test_distant_positions_are_told_apart_in_float32():
    """Angles are counted in float64, whatever they are kept in."""
    place = 10**7 + 1
    found = angles(torch.tensor([place]), 8, 10_000.0, torch.float32)
    expected = torch.tensor([place * 10_000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64).cos()
    assert found.cos.dtype == found.sin.dtype == torch.float32
    torch.testing.assert_close(found.cos.flatten(), expected.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16 autocast", "bfloat16"])
def test_it_computes_in_the_precision_that_it_is_asked_for(make, kind):
    model = make("llama", dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in kind):
        cache = KVCache(model)
        logits = model.logits(cache.read(ids()))
        following = cache.read(ids(1, length=2))
    assert {tensor.dtype for layer in cache.layers for tensor in layer.pair} == {logits.dtype}
    assert logits.dtype == (torch.float32 if kind == "float32" else torch.bfloat16)
    assert following.isfinite().all()
    exact = make("llama").logits(make("llama")(ids()))
    assert (logits.double() - exact).abs().max() < (1e-4 if kind == "float32" else 0.1) * exact.abs().max()


SHAPE = {"vocab_size": 99, "context": 17, "layers": 2}


def test_the_feed_forward_layer_has_the_weights_of_four_times_the_width():
    """8/3 of the width, as the released models have it, which were rounded to multiples of 256."""
    for width, expected in ((24, 64), (128, 384), (768, 2048), (4096, 10944)):
        config = models.LlamaConfig(**SHAPE, heads=4, width=width)
        assert (config.inner, config.kv_heads) == (expected, 4)
        assert 0 <= 3 * config.inner - 8 * width < 3 * 64
    given = models.LlamaConfig(**SHAPE, heads=4, width=24, inner=7, kv_heads=2)
    assert (given.inner, given.kv_heads) == (7, 2)
    for preset in ("7B", "13B", "33B", "65B"):
        sizes = models.MODELS["llama"].presets[preset]
        assert sizes["inner"] == -(-8 * sizes["width"] // (3 * 256)) * 256
