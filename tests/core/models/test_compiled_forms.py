"""What is computed otherwise under a compiler is the same function; BERT's last block can be asked in part."""

import pytest
import torch
from compilers import pretend

from plm_core.models.blocks import SHORT, attend
from plm_core.models.gpt import gelu

B, H, Q, K, D = 3, 2, 7, 7, 5


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def some(*shape):
    """Who sees whom; the first query of the second row sees none."""
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(9)) < 0.6
    seen[..., 0] = True
    if shape[2] > 1:
        seen[1, :, 0] = False
    return seen


CASES = {
    "all": {"attn_mask": None},
    "causal": {"attn_mask": None, "causal": True},
    "padding": {"attn_mask": some(B, 1, 1, K)},
    "any": {"attn_mask": some(B, 1, Q, K)},
    "bias": {"attn_mask": some(B, 1, Q, K), "bias": draws(B, H, Q, K, seed=4)},
    "bias alone": {"attn_mask": None, "bias": draws(B, H, Q, K, seed=4)},
}


@pytest.fixture
def as_compiled(monkeypatch):
    pretend(monkeypatch)


@pytest.mark.parametrize("case", CASES)
def test_compiled_attention_products_match_the_kernel(case, monkeypatch):
    arguments = CASES[case]
    inputs = [draws(B, H, n, D, seed=seed) for seed, n in ((1, Q), (2, K), (3, K))]
    leaves = inputs + ([arguments["bias"]] if "bias" in arguments else [])
    weight = draws(B, H, Q, D, seed=5)

    def values():
        y = attend(*inputs, **arguments)
        return y, *torch.autograd.grad((y * weight).sum(), leaves)

    expected = values()
    kernels = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: kernels.append(1) or kernel(*a, **k)
    )
    pretend(monkeypatch)
    actual = values()
    assert not kernels
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if arguments["attn_mask"] is not None and arguments["attn_mask"].shape[2] > 1:
        assert not actual[0][1, :, 0].any()


@pytest.mark.parametrize("case", [case for case in CASES if "bias" not in case])
def test_attention_in_bfloat16_is_rounded_once(case):
    q, k, v = (draws(B, H, n, D, seed=seed).bfloat16() for seed, n in ((1, Q), (2, K), (3, K)))
    with torch.autocast("cpu", torch.bfloat16):
        ours = attend(q, k, v, **CASES[case])
    assert torch.equal(ours, attend(q.float(), k.float(), v.float(), **CASES[case]).bfloat16())


def test_long_rows_are_left_to_the_kernel(as_compiled, monkeypatch):
    lengths = []
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda q, k, *_: lengths.append(k.shape[2]) or q
    )
    for length in (SHORT, SHORT + 1):
        attend(*(draws(1, 1, length, 2) for _ in range(3)), None)
    assert lengths == [SHORT + 1]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_dropout_rescales_the_rest(as_compiled, dropout):
    torch.manual_seed(3)
    size = 99
    q, k = draws(B, H, size, D, seed=1), draws(B, H, size, D, seed=2)
    eye = torch.eye(size, dtype=torch.float64).expand(B, H, size, size)
    weights = attend(q, k, eye, None, dropout=dropout)
    kept = weights != 0
    assert 1 - float(kept.double().mean()) == pytest.approx(dropout, abs=0.01)
    torch.testing.assert_close(weights[kept] * (1 - dropout), attend(q, k, eye, None)[kept])


def test_the_compiled_gelu_of_gpt_is_its_tanh_form_without_overflow(as_compiled):
    x = torch.linspace(-40, 40, 999, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(gelu(x), expected, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (gelu(x), expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ["plain", "padding", "documents"])
@pytest.mark.parametrize("paper", ["bert", "modernbert"])
def test_bert_gives_the_states_that_are_asked_for_and_their_gradients(make, paper, case):
    model = make(paper)
    draw = torch.Generator().manual_seed(1)
    ids, segments = torch.randint(99, (5, 11), generator=draw), torch.randint(2, (5, 11), generator=draw)
    at = torch.tensor([[0, 3, 3], [10, 0, 1], [2, 4, 6], [5, 5, 5], [9, 8, 0]])
    arguments = {
        "plain": {},
        "padding": {"attention_mask": torch.arange(11) < torch.tensor([11, 7, 3, 9, 5])[:, None]},
        "documents": {"documents": torch.tensor([0, 0, 1, 1, 1, 1, 4, 4, 4, 7, 7]).expand(5, 11)},
    }[case]
    rows = torch.arange(5)[:, None]
    expected = model(ids, segments, **arguments)[rows, at]
    actual = model(ids, segments, **arguments, at=at)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    names, parameters = zip(*model.blocks.named_parameters(), strict=True)
    gradients = [torch.autograd.grad((hidden * weight).sum(), parameters) for hidden in (actual, expected)]
    for name, ours, theirs in zip(names, *gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)
