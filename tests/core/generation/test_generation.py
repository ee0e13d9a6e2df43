"""A continuation is a function of model, prompt and settings, and holds no special token."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted

from plm_core.generation import SamplingConfig, continue_ids, generate, generate_batch, stream
from plm_core.text.tokenizers import EOS, PIECES

GREEDY = SamplingConfig(max_new_tokens=13, temperature=0.0)
WILD = SamplingConfig(max_new_tokens=37, temperature=5.0, top_k=0, seed=3)


def tokens(model, prompt, config, objective="causal"):
    return [row[0] for row in continue_ids(model, objective, [prompt], config)]


def test_greedy_generation_takes_the_most_likely_token(models):
    model, _ = models["gpt"]
    ids = [EOS, 9, 13, 99]
    continuation = tokens(model, ids[1:], replace(GREEDY, max_new_tokens=9, until_end=False))
    assert len(continuation) == 9
    for token in continuation:
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([ids]))[0, -1])
        logits[: len(PIECES)] = float("-inf")
        assert token == int(logits.argmax())
        ids.append(token)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bytelevel"])
def test_stream_equals_generate_for_every_tokenizer(models, loaded, tokenizers, kind):
    checkpoint = replace(loaded(*models["gpt"]), tokenizer=tokenizers[kind])
    for prompt in ("", "Bala ba", "so\n"):
        text = generate(checkpoint, prompt, WILD)
        assert "".join(stream(checkpoint, prompt, WILD)) == text
        assert text


def test_sampling_leaves_the_global_random_state_alone(models):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    tokens(models["gpt"][0], [9], WILD)
    assert torch.equal(torch.get_rng_state(), before)


def test_sampled_frequencies_match_filtered_distribution():
    class Fixed(Scripted):
        def logits(self, hidden):
            logits = torch.full((1, 307), -1e9)
            logits[0, 9:16] = torch.tensor([3.0, 2.0, 1.0, 0.0, -0.5, -1.0, -1.0]) * 1.25
            return logits

    draws = 3000
    config = SamplingConfig(draws, until_end=False, temperature=1.25, top_k=5, top_p=0.97, seed=1)
    counts = Counter(tokens(Fixed([]), [], config))
    weights = [math.exp(logit) for logit in (3.0, 2.0, 1.0, 0.0)]  # four of the five reach 0.97
    assert sum(weights[:3]) / (sum(weights) + math.exp(-0.5)) < 0.97 < 1 - math.exp(-0.5) / sum(weights)
    expected = {9 + i: draws * weight / sum(weights) for i, weight in enumerate(weights)}
    assert set(counts) == set(expected)
    # Chi-square with 3 degrees of freedom: above 16.27 once in a thousand.
    assert sum((counts[token] - e) ** 2 / e for token, e in expected.items()) < 16.27


def test_repetition_penalty_includes_the_prompt(models):
    model, _ = models["gpt"]
    prompt, config = list(range(7, 150)), replace(GREEDY, until_end=False)
    assert set(tokens(model, prompt, config)) & set(prompt)
    assert not set(tokens(model, prompt, replace(config, repetition_penalty=1e9))) & set(prompt)


def test_eos_ends_the_text_and_is_not_part_of_it():
    model = Scripted([9, 13, EOS, 99])
    assert tokens(model, [7], replace(GREEDY, max_new_tokens=99)) == [9, 13]
    assert model.seen == [[[EOS, 7]], [[9]], [[13]]]


def test_eos_ends_each_row_by_itself():
    model = Scripted([9, EOS, 99], [10, 11, 12, EOS, 99])
    rows = list(continue_ids(model, "causal", [[7], [8, 8]], replace(GREEDY, max_new_tokens=99)))
    assert rows == [[9, 10], [None, 11], [None, 12]]


def test_fixed_length_ignores_eos(any_model):
    assert len(tokens(Scripted([EOS] * 5), [7], replace(GREEDY, max_new_tokens=37, until_end=False))) == 37
    model, objective = any_model
    steps = list(continue_ids(model, objective, [[9], [], [7, 8]], replace(WILD, max_new_tokens=29, until_end=False)))
    assert len(steps) == 29
    assert all(token is not None and token >= len(PIECES) for row in steps for token in row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("until_end", [True, False])
def test_special_tokens_are_never_generated(temperature, until_end):
    for special in set(range(len(PIECES))) - {EOS}:
        config = SamplingConfig(5, until_end, temperature, top_k=0)
        assert all(token >= len(PIECES) for token in tokens(Scripted([special] * 5), [9], config))


def test_prompt_is_unchanged_and_max_new_tokens_holds(any_model):
    model, objective = any_model
    prompt = [9] * 99
    assert 0 < len(tokens(model, prompt, WILD, objective)) <= 37
    assert prompt == [9] * 99


def test_batched_prompts_generate_as_alone(any_model, loaded):
    checkpoint, prompts = loaded(*any_model), ["Ba", "", "a longer beginning of a text", "Ba"]
    texts = generate_batch(checkpoint, prompts, WILD)
    assert texts == [generate(checkpoint, p, replace(WILD, seed=WILD.seed + row)) for row, p in enumerate(prompts)]
    assert texts[0] != texts[3]
    assert generate_batch(checkpoint, [], WILD) == []


@settings(max_examples=60)
@given(script=st.lists(st.integers(len(PIECES), 306), min_size=1, max_size=20), prompt=st.text(max_size=5))
def test_streamed_pieces_join_to_the_text(tokenizer, loaded, script, prompt):
    """Any tokens, among them bytes that are no UTF-8 on their own."""
    config = SamplingConfig(max_new_tokens=len(script), temperature=0.0)
    whole = generate(loaded(Scripted(script)), prompt, config)
    pieces = list(stream(loaded(Scripted(script)), prompt, config))
    assert "".join(pieces) == whole
    start = tokenizer.encode(prompt)
    assert tokenizer.decode(start) + whole == tokenizer.decode([*start, *script])


def test_stream_holds_back_incomplete_utf8(tokenizer, loaded):
    script = tokenizer.encode("é🚀x")
    assert len(script) > 5
    pieces = list(stream(loaded(Scripted(script)), "a", SamplingConfig(len(script), temperature=0.0)))
    assert [piece for piece in pieces if piece] == ["é", "🚀", "x"]
