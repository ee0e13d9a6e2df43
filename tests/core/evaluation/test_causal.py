"""A causal model's bits per byte are the sum over single predictions, by sliding windows or by memory."""

import math

import pytest
import torch
from torch.nn import functional as F

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood import document_scores, order_bits_per_byte
from plm_core.evaluation.likelihood.bits_per_byte import score
from plm_core.evaluation.likelihood.document_scores import sum_scores, tokenized, windows
from plm_core.text.tokenizers import EOS


def nats_of(model, hidden, token):
    """-log p(token) by the last of the hidden states."""
    return float(F.cross_entropy(model.logits(hidden[:, -1]), torch.tensor([token])))


@torch.no_grad()
def by_hand(model, text, stride):
    """The same sum, token by token."""
    sequence, context = [EOS, *text.ids, EOS], model.config.context
    nats = 0.0
    for start, first, stop in windows(len(sequence) - 1, context, stride):
        for position in range(first, stop):
            window = torch.tensor([sequence[start : position + 1]])
            nats += nats_of(model, model.read(window), sequence[position + 1])
    return nats


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 99])
@pytest.mark.parametrize("stride", [1, 5, 13])
def test_causal_likelihood_sums_single_predictions(make_gpt, make_text, device, length, stride):
    model = make_gpt().eval()
    (likelihood,) = score(model, [make_text(length)], LikelihoodConfig(stride=stride), device)
    assert likelihood.tokens == length + 1
    assert likelihood.nats == pytest.approx(by_hand(model, make_text(length), stride), rel=1e-12)


def test_a_model_of_another_class_without_memory_reads_windows_too(make_xlnet, make_text, device):
    model = make_xlnet(memory=0).eval()
    (likelihood,) = score(model, [make_text(37)], LikelihoodConfig(stride=5), device)
    assert likelihood.nats == pytest.approx(by_hand(model, make_text(37), 5), rel=1e-12)


def test_a_stride_beyond_the_context_is_the_context(make_gpt, make_text, device):
    first, second = (list(score(make_gpt(), [make_text(37)], LikelihoodConfig(stride=n), device)) for n in (13, 99))
    assert first == second


@pytest.mark.parametrize("quantity", ["windows", "segments", "order"])
def test_causal_likelihood_holds_few_logits_in_memory(make_gpt, make_xlnet, make_text, device, monkeypatch, quantity):
    model = make_gpt() if quantity == "windows" else make_xlnet(memory=7)
    method = order_bits_per_byte.score if quantity == "order" else score
    texts = [make_text(length, seed=length) for length in (3, 99, 157)]
    whole = [likelihood.nats for likelihood in method(model, texts, LikelihoodConfig(stride=3), device)]
    sizes = []

    def logits(hidden):
        sizes.append(len(hidden))
        return model.output(hidden).logits()

    monkeypatch.setattr(model, "logits", logits)
    monkeypatch.setattr(document_scores, "AT_ONCE", 5 * model.config.vocab_size + 1)
    assert [
        likelihood.nats for likelihood in method(model, texts, LikelihoodConfig(stride=3), device)
    ] == pytest.approx(whole, rel=1e-13)
    assert max(sizes) == 5


@torch.no_grad()
def with_memory_by_hand(model, text):
    """Token by token, the memory of the segments before it made anew for each."""
    sequence, context = [EOS, *text.ids, EOS], model.config.context
    nats = 0.0
    for position in range(len(sequence) - 1):
        memory = None
        for start in range(0, position + 1, context):
            segment = torch.tensor([sequence[start : min(start + context, position + 1)]])
            hidden, whole = model.read_with_memory(segment, memory=memory)
            memory = whole.last(model.config.memory)
        nats += nats_of(model, hidden, sequence[position + 1])
    return nats


@pytest.mark.parametrize("memory", [1, 7, 19])
@pytest.mark.parametrize("length", [0, 1, 12, 13, 37])
def test_causal_likelihood_carries_memory_between_segments(make_xlnet, make_text, device, memory, length):
    model = make_xlnet(memory=memory).eval()
    (likelihood,) = score(model, [make_text(length)], LikelihoodConfig(stride=5), device)
    assert likelihood.tokens == length + 1
    assert likelihood.nats == pytest.approx(with_memory_by_hand(model, make_text(length)), rel=1e-12)


def test_bits_are_divided_by_utf8_bytes_and_not_by_characters(make_gpt, tokenizer, device):
    text = "Ünïcödé 漢字 🚀"
    assert (len(text), len(text.encode())) == (12, 23)
    (likelihood,) = score(make_gpt(vocab_size=307), [tokenized(text, tokenizer)], LikelihoodConfig(stride=13), device)
    assert sum_scores([likelihood]).bits_per_byte == pytest.approx(likelihood.nats / math.log(2) / 23, rel=1e-12)
