"""The pseudo-likelihood masks every token of the excerpt once, alone or with the rest of its word."""

import pytest
import torch
from torch.nn import functional as F

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood.document_scores import Text
from plm_core.evaluation.likelihood.pseudo_bits_per_byte import score, score_shifted
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.text.tokenizers import CLS, EOS, MASK, SEP


@torch.no_grad()
def by_hand(model, text, within_word, shifted):
    """One token at a time: it, and with ``within_word`` what follows of its word, is masked in its window.

    Between CLS and SEP the model says what is there; shifted, behind EOS, the position before it does.
    """
    room, nats = model.config.context - (1 if shifted else 2), 0.0
    for position, token in enumerate(text.ids):
        start = 0 if len(text.ids) <= room else min(position // room * room, len(text.ids) - room)
        masked = text.ids[start : start + room]
        place = position - start
        masked[place] = MASK
        while within_word and (place := place + 1) < len(masked) and not text.starts[start + place]:
            masked[place] = MASK
        if shifted:
            hidden = model.read(torch.tensor([[EOS, *masked]]), bidirectional=torch.tensor([True]))
        else:
            hidden = model(torch.tensor([[CLS, *masked, SEP]]))[:, 1:]
        nats += float(F.cross_entropy(model.logits(hidden[:, position - start]), torch.tensor([token])))
    return nats


@pytest.mark.parametrize("within_word", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7, 11, 12, 29])
def test_pseudo_likelihood_sums_tokens_masked_one_at_a_time(make_bert, make_text, device, length, within_word):
    model, text = make_bert().eval(), make_text(length)
    (likelihood,) = score(model, [text], LikelihoodConfig(stride=1, within_word=within_word), device)
    assert (likelihood.tokens, likelihood.bytes) == (length, sum(text.sizes))
    assert likelihood.nats == pytest.approx(by_hand(model, text, within_word, False), rel=1e-12)


@pytest.mark.parametrize(("kind", "config"), [(GPT, GPTConfig), (Llama, LlamaConfig)])
@pytest.mark.parametrize("within_word", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7, 12, 13, 29])
def test_pseudo_likelihood_shifted_by_one_position(make_text, device, kind, config, within_word, length):
    torch.manual_seed(0)
    model = kind(config(37, context=13, layers=2, heads=3, width=24, initializer_range=0.3)).double().eval()
    text = make_text(length)
    (likelihood,) = score_shifted(model, [text], LikelihoodConfig(stride=1, within_word=within_word), device)
    assert (likelihood.tokens, likelihood.bytes) == (length, sum(text.sizes))
    assert likelihood.nats == pytest.approx(by_hand(model, text, within_word, True), rel=1e-12)


@pytest.mark.parametrize("excerpt", [1, 11, 12, 28, 29, 99])
def test_pseudo_likelihood_excerpt_is_the_beginning_alone(make_bert, make_text, device, excerpt):
    model, text = make_bert(), make_text(29)
    beginning = Text(text.ids[:excerpt], text.sizes[:excerpt], text.starts[:excerpt])
    (likelihood,) = score(model, [text], LikelihoodConfig(stride=1, excerpt=excerpt), device)
    assert [likelihood] == list(score(model, [beginning], LikelihoodConfig(stride=1), device))


def test_pseudo_likelihood_refuses_too_short_context(make_bert, make_text, device):
    with pytest.raises(ValueError, match=r"^context: 2; expected at least 3"):
        list(score(make_bert(context=2), [make_text(5)], LikelihoodConfig(stride=1), device))
    with pytest.raises(ValueError, match=r"^context: 1; expected at least 2"):
        list(score_shifted(make_bert(context=1), [make_text(5)], LikelihoodConfig(stride=1), device))
