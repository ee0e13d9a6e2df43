"""The likelihood of an option is that of its tokens one by one; which tokens these are; what long prompts lose."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.evaluation import options
from plm_core.evaluation.options import BETWEEN_SHOTS, RULES, Likelihoods, Question, chosen, likelihoods, question
from plm_core.text.special import EOS

CPU = torch.device("cpu")
KINDS = ["bpe", "unigram", "wordpiece", "bytelevel"]
WORDS = st.text(alphabet="bdfgaeioéπ .,\n", max_size=30)
OPTIONS = st.lists(st.text(alphabet="bdfgaeio ", min_size=1, max_size=9).filter(lambda s: s == s.strip()), min_size=1)


@torch.no_grad()
def by_hand(model, prompt, option):
    """The sum of log p of the tokens, each by a reading of its own of all that stands before it."""
    nats, sequence = 0.0, [EOS, *prompt]
    for token in option:
        hidden = model.read(torch.tensor([sequence]))
        nats += float(torch.log_softmax(model.logits(hidden[0, -1]), -1)[token])
        sequence.append(token)
    return nats


@pytest.fixture(scope="module")
def questions():
    """37 prompts of all lengths, with options that begin with each other, and one that stands there twice."""
    draw = torch.Generator().manual_seed(5)

    def tokens(most, least=0):
        length = int(torch.randint(least, most + 1, (1,), generator=draw))
        return torch.randint(7, 37, (length,), generator=draw).tolist()

    made = []
    for i in range(37):
        prompt, option = tokens(8), tokens(3, least=1)
        made.append(Question(prompt, [option, [*option, 7], [9], tokens(5, least=1), [9]][: 2 + i % 4]))
    return [*made, made[3]]


@pytest.mark.parametrize("make", ["make_gpt", "make_xlnet"])
def test_a_sum_is_that_of_the_tokens_one_by_one(request, make, questions):
    model = request.getfixturevalue(make)().eval()
    found = likelihoods(model, questions, CPU)
    for each, said in zip(questions, found, strict=True):
        assert said.nats == pytest.approx([by_hand(model, each.prompt, o) for o in each.options], rel=0, abs=1e-9)
        assert said.tokens == [len(option) for option in each.options]


def test_an_option_alone_is_predicted_from_the_start_of_a_text(make_gpt):
    model = make_gpt().eval()
    (said,) = likelihoods(model, [Question([], [[9, 8], [7]])], CPU)
    assert said.nats == pytest.approx([by_hand(model, [], [9, 8]), by_hand(model, [], [7])], rel=0, abs=1e-9)


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_how_many_rows_go_through_the_model_at_once_changes_nothing(make_gpt, questions, monkeypatch, rows):
    model = make_gpt()
    found = [nats for said in likelihoods(model, questions, CPU) for nats in said.nats]
    monkeypatch.setattr(options, "ROWS", rows)
    other = [nats for said in likelihoods(model, questions, CPU) for nats in said.nats]
    assert other == pytest.approx(found, rel=0, abs=1e-12)


def test_what_begins_another_option_is_read_with_it(make_gpt, monkeypatch):
    """Answers of one token cost one reading of their prompt."""
    model, read = make_gpt(), []
    whole = model.read
    monkeypatch.setattr(model, "read", lambda ids, **how: read.append(tuple(ids.shape)) or whole(ids, **how))
    likelihoods(model, [Question([8, 9], [[7], [10], [11, 12]]), Question([9, 9], [[7], [8]])], CPU)
    assert read == [(2, 4)]


@pytest.mark.parametrize("kind", KINDS)
@given(prompt=WORDS, answers=OPTIONS)
def test_prompt_and_option_have_the_tokens_of_the_joined_text(tokenizers, kind, prompt, answers):
    tokenizer = tokenizers[kind]
    found = question(tokenizer, prompt, answers, context=9999)
    for option, tokens in zip(answers, found.options, strict=True):
        assert [*found.prompt, *tokens] == tokenizer.encode(f"{prompt} {option}")
        assert tokens


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_is_what_lm_evaluation_harness_takes_for_it(tokenizers, kind):
    """Its ``_encode_pair``: the tokens of the joined text but for as many as the prompt has."""
    tokenizer, prompt = tokenizers[kind], "Bafo limu.\nDu so:"
    (found,) = question(tokenizer, prompt, ["gamo du"], context=9999).options
    assert found == tokenizer.encode(f"{prompt} gamo du")[len(tokenizer.encode(prompt)) :]


class Joining:
    """A tokenizer of characters that joins a blank with the character before it: the seam is within a token."""

    def encode(self, text):
        return [ord(c) for c in text.replace("b ", "\u1000")]


def test_a_token_over_the_seam_belongs_to_every_option():
    found = question(Joining(), "ab", ["x", "yz"], context=99)
    assert found == Question([ord("a")], [[0x1000, ord("x")], [0x1000, ord("y"), ord("z")]])


@given(st.lists(st.integers(1, 12), max_size=5), st.integers(1, 20), st.integers(4, 60))
def test_a_long_prompt_loses_the_farthest_shots_and_then_its_beginning(tokenizer, shots, words, context):
    before = [" ".join(["bafo"] * size) for size in shots]
    prompt, answers = " ".join(f"du{i}" for i in range(words)), ["so", "ga gu"]
    found = question(tokenizer, prompt, answers, context, before)

    def whole(held):
        joined = "".join(shot + BETWEEN_SHOTS for shot in reversed(before[:held]))
        return question(tokenizer, joined + prompt, answers, 9999)

    longest = max(map(len, found.options))
    fitting = [held for held in range(len(before) + 1) if len(whole(held).prompt) + longest <= context]
    assert found.shots == max(fitting, default=0)
    assert found.cut == (not fitting)
    kept = whole(found.shots).prompt
    assert found.prompt == (kept[len(kept) - (context - longest) :] if found.cut else kept)
    assert found.options == whole(0).options


def test_more_shots_that_find_no_room_are_as_if_fewer_were_asked_for(tokenizer):
    shots = ["bafo limu so", "du", "gamo " * 20, "so"]
    few, many = (question(tokenizer, "du", ["so"], 40, shots[:n]) for n in (2, 4))
    assert few == many
    assert few.shots == 2


def test_what_cannot_be_an_option_is_refused(tokenizers):
    with pytest.raises(ValueError, match=r"the option 'bafo limu' has .* tokens; expected at most 3"):
        question(tokenizers["bpe"], "du", ["so", "bafo limu"], 3)
    with pytest.raises(ValueError, match=r"the option '\\u200d' has no token"):
        question(tokenizers["wordpiece"], "du", ["so", "\u200d"], 99)


def test_each_rule_by_hand():
    answers = ["a", "bbbb", "cc cc", "d"]
    given = Likelihoods([-2.0, -3.0, -3.5, -9.0], [1, 1, 3, 1])
    alone = [-1.0, -2.0, -2.5, -9.5]
    values = {
        "sum": [-2, -3, -3.5, -9],
        "per_byte": [-2, -3 / 4, -3.5 / 5, -9],
        "per_token": [-2, -3, -3.5 / 3, -9],
        "unconditional": [-1, -1, -1, 0.5],
    }
    assert list(values) == list(RULES)
    best = {name: max(range(4), key=each.__getitem__) for name, each in values.items()}
    assert chosen(answers, given, alone) == best == {"sum": 0, "per_byte": 2, "per_token": 2, "unconditional": 3}


def test_bytes_are_those_of_utf_8_and_of_equals_the_first_is_taken():
    given = Likelihoods([-math.log(8), -math.log(4)], [1, 1])
    assert chosen(["éé", "ab"], given, [0.0, 0.0])["per_byte"] == 0
    assert set(chosen(["ab", "cd"], Likelihoods([-1.0, -1.0], [2, 2]), [-3.0, -3.0]).values()) == {0}
