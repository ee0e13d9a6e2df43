"""Every token is predicted once, bits are divided by bytes, and how windows are cut or batched changes no digit."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from plm_core.evaluation import likelihood
from plm_core.evaluation.likelihood import DocumentScore, score, total
from plm_core.text.special import EOS

LENGTHS = st.integers(1, 199)


class Uniform(torch.nn.Module):
    """Thinks that all of V tokens are alike."""

    def __init__(self, vocab_size=37, context=13):
        super().__init__()
        self.config = SimpleNamespace(context=context, vocab_size=vocab_size)

    def forward(self, ids):
        return torch.zeros(*ids.shape, 3, dtype=torch.float64)

    def logits(self, hidden):
        return torch.zeros(*hidden.shape[:-1], self.config.vocab_size, dtype=torch.float64)


def ids(length, seed=0):
    return torch.randint(7, 37, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@given(length=LENGTHS, stride=st.integers(1, 13), size=st.integers(1, 999))
def test_a_uniform_model_needs_log2_of_v_bits_a_token(device, length, stride, size):
    (found,) = score(Uniform(), [(ids(length), size)], stride, device)
    assert (found.tokens, found.bytes) == (length + 1, size)
    assert found.nats == pytest.approx((length + 1) * math.log(37), rel=1e-12)
    assert total([found]).bits_per_byte == pytest.approx((length + 1) * math.log2(37) / size, rel=1e-12)
    assert total([found]).perplexity == pytest.approx(37, rel=1e-12)


def test_sums_are_divided_once():
    """A short document does not weigh as much as a long one."""
    found = total([DocumentScore(8.0, 2, 4), DocumentScore(2.0, 3, 96)])
    assert (found.nats, found.tokens, found.bytes) == (10.0, 5, 100)
    assert found.nats_per_token == 2.0
    assert found.bits_per_byte == pytest.approx(10 / math.log(2) / 100)
    assert found.perplexity == pytest.approx(math.exp(2))


def test_bytes_are_those_of_utf8_and_not_characters(device, tokenizer):
    text = "Ünïcödé 漢字 🚀"
    assert (len(text), len(text.encode())) == (12, 23)
    (found,) = score(Uniform(307), [(tokenizer.encode(text), len(text.encode()))], 13, device)
    expected = (len(tokenizer.encode(text)) + 1) * math.log2(307) / 23
    assert total([found]).bits_per_byte == pytest.approx(expected, rel=1e-12)


@given(length=LENGTHS, context=st.integers(1, 37), stride=st.integers(1, 37))
def test_windows_predict_every_position_once_and_fit_the_context(length, context, stride):
    assume(stride <= context)
    windows = list(likelihood._windows(length, context, stride))
    predicted = [position for _, first, stop in windows for position in range(first, stop)]
    assert predicted == list(range(length))
    assert all(0 <= start <= first < stop <= length and stop - start <= context for start, first, stop in windows)


def seen_by(length, context, stride):
    """How many tokens each prediction sees."""
    windows = likelihood._windows(length, context, stride)
    return [position - start + 1 for start, first, stop in windows for position in range(first, stop)]


@given(length=LENGTHS, context=st.integers(1, 37), stride=st.integers(1, 37))
def test_a_prediction_sees_all_that_is_before_it_or_at_least_context_less_stride(length, context, stride):
    assume(stride <= context)
    for position, seen in enumerate(seen_by(length, context, stride)):
        assert seen == position + 1 or seen > context - stride


@given(length=LENGTHS, context=st.integers(1, 37), stride=st.integers(1, 12), factor=st.integers(1, 5))
def test_a_finer_stride_never_shows_a_prediction_fewer_tokens(length, context, stride, factor):
    assume(stride * factor <= context)
    coarse, fine = seen_by(length, context, stride * factor), seen_by(length, context, stride)
    assert all(one >= other for one, other in zip(fine, coarse, strict=True))


@torch.no_grad()
def by_hand(model, tokens, stride):
    """The same sum, token by token."""
    sequence, context = [EOS, *tokens, EOS], model.config.context
    nats = 0.0
    for position, seen in enumerate(seen_by(len(sequence) - 1, context, stride)):
        window = torch.tensor([sequence[position + 1 - seen : position + 1]])
        nats += float(F.cross_entropy(model.logits(model(window)[0, -1:]), torch.tensor([sequence[position + 1]])))
    return nats


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 99])
@pytest.mark.parametrize("stride", [1, 5, 13])
def test_the_score_is_the_sum_over_single_predictions(make_gpt, device, length, stride):
    model = make_gpt().eval()
    (found,) = score(model, [(ids(length), 1)], stride, device)
    assert found.tokens == length + 1
    assert found.nats == pytest.approx(by_hand(model, ids(length), stride), rel=1e-12)


def test_how_many_windows_go_through_the_model_at_once_changes_nothing(make_gpt, device, monkeypatch):
    model = make_gpt()
    documents = [(ids(length, seed=length), 7) for length in (3, 99, 157)]
    found = []
    for at_once in (1, 2, 5, 1000):
        monkeypatch.setattr(likelihood, "WINDOWS_AT_ONCE", at_once)
        found.append([s.nats for s in score(model, documents, 3, device)])
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-13)


def test_a_documents_score_does_not_depend_on_the_others(make_gpt, device):
    model, documents = make_gpt(), [(ids(length, seed=length), 7) for length in (3, 99, 37)]
    together = list(score(model, documents, 5, device))
    assert together == [next(iter(score(model, [document], 5, device))) for document in documents]
    assert list(score(model, documents[::-1], 5, device)) == together[::-1]


def test_a_stride_that_is_no_stride_is_an_error(make_gpt, device):
    for stride in (0, -1, 14):
        with pytest.raises(ValueError, match=f"^stride: {stride} is not between 1 and the context 13"):
            list(score(make_gpt(), [(ids(3), 1)], stride, device))


def test_scoring_draws_no_dropout_and_keeps_no_gradient(make_gpt, device):
    model = make_gpt(dropout=0.5).train()
    first, second = (list(score(model, [(ids(99), 7)], 5, device)) for _ in range(2))
    assert first == second
    assert all(parameter.grad is None for parameter in model.parameters())
