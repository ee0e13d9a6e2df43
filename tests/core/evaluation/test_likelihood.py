"""Whatever the objective: a model that knows nothing scores log2(V) bits a token, and documents do not mix."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood import document_scores, scorer_of
from plm_core.evaluation.likelihood.document_scores import sum_scores
from plm_core.objectives import QUANTITIES

CONFIG = LikelihoodConfig(stride=5, excerpt=29, orders=2)
FUNCTIONS = {name: scorer_of(quantity) for name, quantity in QUANTITIES.items()}
CUT_SHORT = tuple(name for name, quantity in QUANTITIES.items() if quantity.excerpt)


@pytest.fixture(scope="module", params=[*FUNCTIONS, "bits_per_byte with memory", "orders without memory"])
def case(request, make_bert, make_electra, make_elmo, make_xlnet):
    """A quantity and how to make a model that has it."""
    from plm_core.models.gpt import GPT, GPTConfig
    from plm_core.models.t5 import T5, T5Config

    def make_gpt(**sizes):
        torch.manual_seed(0)
        shape = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 21, "dropout": 0.0} | sizes
        return GPT(GPTConfig(**shape)).double()

    def make_t5(**sizes):
        torch.manual_seed(0)
        shape = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 21, "dropout": 0.0} | sizes
        return T5(T5Config(**shape, sentinels=3, first_sentinel=shape["vocab_size"] - 1)).double()

    name = request.param
    if name == "bits_per_byte with memory":
        return "bits_per_byte", make_xlnet
    if name == "orders without memory":
        return "mean_order_bits_per_byte", lambda **sizes: make_xlnet(**sizes, memory=0)
    makers = {
        "span_bits_per_byte": make_t5,
        "bits_per_byte": make_gpt,
        "two_way_bits_per_byte": make_elmo,
        "shifted_pseudo_bits_per_byte": make_gpt,
        "pseudo_bits_per_byte": make_bert,
        "generator_pseudo_bits_per_byte": make_electra,
    }
    return name, makers.get(name, make_xlnet)


@settings(max_examples=37)
@given(
    vocab_size=st.integers(8, 99),
    length=st.integers(1, 61),
    stride=st.integers(1, 17),
    excerpt=st.none() | st.integers(1, 70),
    within_word=st.booleans(),
    orders=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_uniform_model_has_likelihood_log2_of_vocab_size(
    case, make_text, device, vocab_size, length, stride, excerpt, within_word, orders, seed
):
    quantity, make = case
    model = make(vocab_size=vocab_size, layers=1)
    with torch.no_grad():
        for weight in (getattr(model, "unembed", getattr(model, "tokens", None)).weight, getattr(model, "bias", None)):
            if weight is not None:
                weight.zero_()
    text = make_text(length, seed, vocab_size)
    config = LikelihoodConfig(stride=stride, excerpt=excerpt, within_word=within_word, orders=orders)
    (likelihood,) = FUNCTIONS[quantity](model, [text], config, device)
    cut = quantity in CUT_SHORT and excerpt is not None and excerpt < length
    scored = excerpt if cut else length
    # EOS is predicted where the document ends, but not by a model that fills in, which does not know where.
    tokens = scored + (not cut and not quantity.endswith(("pseudo_bits_per_byte", "span_bits_per_byte")))
    assert (likelihood.tokens, likelihood.bytes) == (tokens, sum(text.sizes[:scored]))
    assert likelihood.nats == pytest.approx(tokens * math.log(vocab_size), rel=1e-12)
    assert sum_scores([likelihood]).bits_per_byte == pytest.approx(
        tokens * math.log2(vocab_size) / likelihood.bytes, rel=1e-12
    )
    assert sum_scores([likelihood]).perplexity == pytest.approx(vocab_size, rel=1e-12)


@pytest.mark.parametrize("together", [2, 5, 16])
def test_likelihood_of_a_document_ignores_the_others(case, make_text, device, monkeypatch, together):
    monkeypatch.setattr(document_scores, "TEXTS_AT_ONCE", together)
    monkeypatch.setattr(document_scores, "BATCHES_AT_ONCE", together / 16)
    quantity, make = case
    model, score = make(), FUNCTIONS[quantity]
    texts = [make_text(length, seed=length) for length in (3, 41, 11, 29, 12, 13)]
    alone = [next(iter(score(model, [text], CONFIG, device))) for text in texts]
    assert len({likelihood.nats for likelihood in alone}) == len(texts)
    for order in (1, -1):
        beside = list(score(model, texts[::order], CONFIG, device))[::order]
        assert [(likelihood.tokens, likelihood.bytes) for likelihood in beside] == [
            (likelihood.tokens, likelihood.bytes) for likelihood in alone
        ]
        # Read side by side, a text's sums are taken in another order.
        assert [likelihood.nats for likelihood in beside] == pytest.approx(
            [likelihood.nats for likelihood in alone], rel=1e-12
        )


def test_likelihood_uses_no_dropout_and_no_gradient(case, make_text, device):
    quantity, make = case
    model, score = make(dropout=0.5).train(), FUNCTIONS[quantity]
    name = "logits" if hasattr(model, "logits") else "predict"
    made, logits = [], getattr(model, name)
    setattr(model, name, lambda *given: made.append(logits(*given)) or made[-1])
    first, second = (list(score(model, [make_text(29)], CONFIG, device)) for _ in range(2))
    assert first == second
    assert made
    assert not any(output.requires_grad for output in made)
