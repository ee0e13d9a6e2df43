"""What is kept of a text changes nothing: the tokens are those of reading the whole window again for each."""

from pkgutil import resolve_name

import pytest
import torch

from plm_core.config import UserError
from plm_core.generation import Decoding, SamplingConfig, continue_ids, left_padded
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.objectives import OBJECTIVES
from plm_core.text.tokenizers import EOS, MASK

GREEDY = SamplingConfig(max_new_tokens=37, temperature=0.0, until_end=False)


@torch.no_grad()
def test_kv_cache_gives_the_same_logits_as_no_cache(any_model):
    model, objective = any_model
    ids = torch.randint(7, 307, (2, 45), generator=torch.Generator().manual_seed(3)).tolist()
    cached, uncached = Decoding(model, objective), Decoding(model, objective)
    for end in range(1, 41):
        texts = [ids[0][:end], ids[1][: end + 4]]
        uncached.state = None
        expected = uncached.logits(texts)
        assert expected.std() > 0.1
        torch.testing.assert_close(cached.logits(texts), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_window_logits_match_a_plain_forward(models):
    prompt = [EOS, 9, 13, 99, 200]
    model, _ = models["gpt"]
    expected = model.logits(model(torch.tensor([prompt]))[:, -1])
    torch.testing.assert_close(Decoding(model, "causal").logits([prompt]), expected)
    model, _ = models["transformer-xl"]
    expected = model.logits(model.read(torch.tensor([prompt]))[:, -1])
    torch.testing.assert_close(Decoding(model, "causal").logits([prompt]), expected)
    model, _ = models["xlnet"]
    for dummy in (MASK, 99):  # nobody sees what it says
        order, queries = torch.arange(6)[None], torch.tensor([[5]])
        query = model(torch.tensor([[*prompt, dummy]]), order, queries=queries).query
        torch.testing.assert_close(Decoding(model, "permutation").logits([prompt]), model.logits(query[:, 0]))


@pytest.mark.parametrize("name", ["transformer-xl", "xlnet"])
@torch.no_grad()
def test_reading_in_pieces_with_state_matches_reading_at_once(models, name):
    model, objective = models[name]
    reader = resolve_name(OBJECTIVES[objective].decoder)
    ids, attention_mask = left_padded([[9 + i for i in range(12)], [99 + i for i in range(5)]], torch.device("cpu"))
    whole, state = reader(model, ids, attention_mask, None)
    for cut in range(1, 12):
        before = None
        if cut > 6:  # in three pieces
            _, before = reader(model, ids[:, :4], attention_mask[:, :4], None)
        start = 4 if cut > 6 else 0
        _, before = reader(model, ids[:, start:cut], attention_mask[:, start:cut], before)
        logits, after = reader(model, ids[:, cut:], attention_mask[:, cut:], before)
        torch.testing.assert_close(logits, whole, rtol=1e-10, atol=1e-10)
        assert torch.equal(after.attention_mask, state.attention_mask)
        kept = state.attention_mask[:, None, :, None]
        torch.testing.assert_close(after.states * kept, state.states * kept, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_window_larger_than_the_context_is_read_in_pieces(models):
    """The window is context + memory; the text of 18 tokens is seen to its first one."""
    for name in ("transformer-xl", "xlnet"):
        model, objective = models[name]
        text = [EOS, *range(50, 67)]
        logits = Decoding(model, objective).logits([text])
        other = Decoding(model, objective).logits([[9, *text[1:]]])
        assert (logits - other).abs().max() > 1e-6


@torch.no_grad()
def test_only_new_tokens_are_read_while_the_text_fits():
    counts = []

    class Counting(GPT):
        def states(self, ids, *more):
            counts.append(ids.shape[1])
            return super().states(ids, *more)

    reading = Decoding(Counting(GPTConfig(vocab_size=37, context=13, layers=1, heads=1, width=5)), "causal")
    for length in range(5, 31):
        reading.logits([list(range(length))])
    # 5 at first, up to 13; then 7 remain, up to 13 again.
    assert counts == [5, *[1] * 8, 7, *[1] * 6, 7, *[1] * 6, 7, 1, 1]


@torch.no_grad()
def test_long_prompt_is_cut_to_what_fits(any_model):
    """At first; the next token makes it outgrow the window."""
    text, other = [20 + i for i in range(30)], [90 + i for i in range(30)]
    window = Decoding(*any_model).window
    read, changed = Decoding(*any_model), Decoding(*any_model)
    for length, least in ((29, window), (30, (window + 1) // 2)):
        cut = length - least
        expected = read.logits([text[:length]])
        torch.testing.assert_close(changed.logits([other[:cut] + text[cut:length]]), expected)
    for kept in (window, window - 1):
        first = Decoding(*any_model).logits([other[: 29 - kept] + text[29 - kept : 29]])
        assert torch.equal(first, Decoding(*any_model).logits([text[:29]])) == (kept == window)


def test_generation_refuses_masked_models(models):
    with pytest.raises(
        UserError,
        match=r"^objective: found 'masked'; expected one of bidirectional, causal, hybrid, permutation.*fills blanks",
    ):
        list(continue_ids(models["gpt"][0], "masked", [[9]], GREEDY))
