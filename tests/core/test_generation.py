"""A continuation is a function of model, prompt and settings, and holds no special token."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.config import BadInput, from_dict
from plm_core.generation import SamplingConfig, continue_ids, generate, stream
from plm_core.text.special import EOS, PIECES

GREEDY = SamplingConfig(max_new_tokens=13, temperature=0.0)
WILD = SamplingConfig(max_new_tokens=37, temperature=5.0, top_k=0, seed=3)


@pytest.fixture
def model(make_gpt, tokenizer):
    model = make_gpt(vocab_size=tokenizer.vocab_size)
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.7
            )
    return model


class Scripted(torch.nn.Module):
    """Says given tokens, one after the other, with logits that are far above the rest."""

    def __init__(self, script, vocab_size=307):
        super().__init__()
        self.config = SimpleNamespace(context=1000, vocab_size=vocab_size)
        self.device_of = torch.nn.Parameter(torch.zeros(1))
        self.script, self.seen = list(script), []

    def forward(self, ids):
        self.seen.append(ids[0].tolist())
        return torch.zeros(*ids.shape, 1)

    def logits(self, hidden):
        logits = torch.zeros(self.config.vocab_size)
        logits[self.script[len(self.seen) - 1]] = 99.0
        return logits


def test_the_most_likely_token_is_taken_each_time(model):
    prompt = [9, 13, 99]
    ids = [EOS, *prompt]
    for token in continue_ids(model, prompt, GREEDY):
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([ids[-13:]]))[0, -1])
        logits[:3] = logits[4:7] = float("-inf")
        assert token == int(logits.argmax())
        ids.append(token)
    assert len(ids) == 4 + 13 or int(logits.argmax()) == EOS


def test_the_best_of_one_is_greedy_whatever_seed_and_temperature(model):
    greedy = list(continue_ids(model, [9], GREEDY))
    for seed in range(5):
        one = replace(GREEDY, temperature=0.1 + seed, top_k=1, seed=seed)
        assert list(continue_ids(model, [9], one)) == greedy


def test_equal_seeds_give_equal_texts_and_others_do_not(model, tokenizer):
    texts = [generate(model, tokenizer, "a", replace(WILD, seed=seed)) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_sampling_leaves_the_global_random_state_alone(model):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    list(continue_ids(model, [9], WILD))
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_most_likely_k_are_drawn(model):
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([[EOS, 9]]))[0, -1])
    logits[:3] = logits[4:7] = float("-inf")
    allowed = set(logits.topk(5).indices.tolist())
    drawn = Counter()
    for seed in range(99):
        one = SamplingConfig(max_new_tokens=1, temperature=9.0, top_k=5, seed=seed)
        drawn.update(list(continue_ids(model, [9], one)) or [EOS])
    assert set(drawn) == allowed


def test_a_lower_temperature_takes_the_most_likely_more_often():
    class Pair(Scripted):
        def logits(self, hidden):
            logits = torch.full((307,), -1e9)
            logits[13], logits[99] = 1.0, 0.0
            return logits

    shares = []
    for temperature in (0.2, 1.0, 9.0):
        config = SamplingConfig(max_new_tokens=500, temperature=temperature, top_k=0, seed=1)
        shares.append(Counter(continue_ids(Pair([]), [], config))[13] / 500)
    expected = [1 / (1 + 2.718281828 ** (-1 / t)) for t in (0.2, 1.0, 9.0)]
    assert shares == pytest.approx(expected, abs=4 * 0.5 / 500**0.5)


def test_the_end_of_the_document_ends_the_text_and_is_not_part_of_it():
    model = Scripted([9, 13, EOS, 99])
    assert list(continue_ids(model, [7], replace(GREEDY, max_new_tokens=99))) == [9, 13]
    assert model.seen == [[EOS, 7], [EOS, 7, 9], [EOS, 7, 9, 13]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_special_tokens_are_never_said_however_likely(temperature):
    for special in set(range(len(PIECES))) - {EOS}:
        said = list(continue_ids(Scripted([special] * 5), [9], SamplingConfig(5, temperature, 0, 0)))
        assert all(token >= len(PIECES) for token in said)


def test_at_most_so_many_tokens_come_and_the_model_never_reads_more_than_its_context(model):
    prompt = [9] * 99
    assert 0 < len(list(continue_ids(model, prompt, replace(WILD, max_new_tokens=37)))) <= 37
    assert prompt == [9] * 99


@settings(max_examples=60)
@given(script=st.lists(st.integers(len(PIECES), 306), min_size=1, max_size=20), prompt=st.text(max_size=5))
def test_the_pieces_of_a_stream_are_the_text_and_each_is_whole(tokenizer, script, prompt):
    """Any tokens, among them bytes that are no UTF-8 on their own."""
    config = SamplingConfig(max_new_tokens=len(script), temperature=0.0)
    whole = generate(Scripted(script), tokenizer, prompt, config)
    pieces = list(stream(Scripted(script), tokenizer, prompt, config))
    assert "".join(pieces) == whole
    start = tokenizer.encode(prompt)
    assert tokenizer.decode(start) + whole == tokenizer.decode([*start, *script])


def test_a_character_of_several_bytes_is_streamed_when_it_is_whole(tokenizer):
    script = tokenizer.encode("é🚀x")
    assert len(script) > 5
    pieces = list(stream(Scripted(script), tokenizer, "a", SamplingConfig(len(script), 0.0)))
    assert [piece for piece in pieces if piece] == ["é", "🚀", "x"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(change, place):
    with pytest.raises(BadInput, match=rf"^sampling\..*{place}"):
        from_dict(SamplingConfig, change, "sampling")
