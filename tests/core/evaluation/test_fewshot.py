"""A model that was trained on a pattern answers by it; an option's likelihood is that of its tokens one by one."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.prompts import GOES_ON, Prompt
from plm_core.benchmarks.task import GlueTask
from plm_core.checkpoint import CheckpointConfig, Loaded
from plm_core.config import UserError
from plm_core.evaluation.fewshot_scoring import (
    BETWEEN_SHOTS,
    COLUMNS,
    RULES,
    FewshotAnswer,
    PromptedTask,
    Question,
    answers,
    choose_options,
    evidence_rows,
    likelihoods,
    measured,
    question,
)
from plm_core.text.tokenizers import EOS, PAD

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
    """37 prompts of all lengths, with options that begin with each other, one twice, and no prompt."""
    draw = torch.Generator().manual_seed(5)

    def tokens(most, least=0):
        length = int(torch.randint(least, most + 1, (1,), generator=draw))
        return torch.randint(7, 37, (length,), generator=draw).tolist()

    made = []
    for i in range(37):
        prompt, option = tokens(8), tokens(3, least=1)
        made.append(Question(prompt, [option, [*option, 7], [9], tokens(5, least=1), [9]][: 2 + i % 4]))
    return [*made, made[3], Question([], [[9, 8], [7]])]


@pytest.mark.parametrize("make", ["make_gpt", "make_xlnet"])
def test_fewshot_option_likelihood_matches_token_by_token(request, make, questions):
    model = request.getfixturevalue(make)().eval()
    scored = likelihoods(model, questions, CPU)
    for query, sums in zip(questions, scored, strict=True):
        assert sums == pytest.approx([by_hand(model, query.prompt, o) for o in query.options], rel=0, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(prompt=WORDS, answers=OPTIONS)
def test_fewshot_prompt_and_option_tokenize_as_joined_text(tokenizers, kind, prompt, answers):
    tokenizer = tokenizers[kind]
    query = question(tokenizer, prompt, answers, context=9999)
    for option, tokens in zip(answers, query.options, strict=True):
        assert [*query.prompt, *tokens] == tokenizer.encode(f"{prompt} {option}")
        assert tokens


@pytest.mark.parametrize("kind", KINDS)
def test_fewshot_option_tokens_match_lm_evaluation_harness(tokenizers, kind):
    """Its ``_encode_pair``: the tokens of the joined text but for as many as the prompt has."""
    tokenizer, prompt = tokenizers[kind], "Bafo limu.\nDu so:"
    (ids,) = question(tokenizer, prompt, ["gamo du"], context=9999).options
    assert ids == tokenizer.encode(f"{prompt} gamo du")[len(tokenizer.encode(prompt)) :]


class Joining:
    """A tokenizer of characters that joins a blank with the character before it: the seam is within a token."""

    def encode(self, text):
        return [ord(c) for c in text.replace("b ", "\u1000")]


def test_fewshot_token_across_the_seam_is_in_the_option():
    query = question(Joining(), "ab", ["x", "yz"], context=99)
    assert query == Question([ord("a")], [[0x1000, ord("x")], [0x1000, ord("y"), ord("z")]])


@given(st.lists(st.integers(1, 12), max_size=5), st.integers(1, 20), st.integers(4, 60))
def test_fewshot_long_prompt_drops_farthest_shots_first(tokenizer, shots, words, context):
    before = [" ".join(["bafo"] * size) for size in shots]
    prompt, answers = " ".join(f"du{i}" for i in range(words)), ["so", "ga gu"]
    query = question(tokenizer, prompt, answers, context, before)

    def whole(held):
        joined = "".join(shot + BETWEEN_SHOTS for shot in reversed(before[:held]))
        return question(tokenizer, joined + prompt, answers, 9999)

    longest = max(map(len, query.options))
    fitting = [held for held in range(len(before) + 1) if len(whole(held).prompt) + longest <= context]
    assert query.shots == max(fitting, default=0)
    assert query.cut == (not fitting)
    kept = whole(query.shots).prompt
    assert query.prompt == (kept[len(kept) - (context - longest) :] if query.cut else kept)
    assert query.options == whole(0).options


def test_fewshot_refuses_invalid_options(tokenizers):
    with pytest.raises(ValueError, match=r"the option 'bafo limu' has .* tokens; expected at most 3"):
        question(tokenizers["bpe"], "du", ["so", "bafo limu"], 3)
    with pytest.raises(ValueError, match=r"the option '\\u200d' has no token"):
        question(tokenizers["wordpiece"], "du", ["so", "\u200d"], 99)


def test_fewshot_rules_by_hand():
    answers = ["a", "bbbb", "cc cc", "d"]
    given = [1, 1, 3, 1], [-2.0, -3.0, -3.5, -9.0]
    alone = [-1.0, -2.0, -2.5, -9.5]
    values = {
        "sum": [-2, -3, -3.5, -9],
        "per_byte": [-2, -3 / 4, -3.5 / 5, -9],
        "per_token": [-2, -3, -3.5 / 3, -9],
        "unconditional": [-1, -1, -1, 0.5],
    }
    assert tuple(values) == RULES
    best = {name: max(range(4), key=scores.__getitem__) for name, scores in values.items()}
    assert (
        choose_options(answers, *given, alone) == best == {"sum": 0, "per_byte": 2, "per_token": 2, "unconditional": 3}
    )


def test_fewshot_per_byte_counts_utf8_and_ties_take_the_first():
    assert choose_options(["éé", "ab"], [1, 1], [-math.log(8), -math.log(4)], [0.0, 0.0])["per_byte"] == 0
    assert set(choose_options(["ab", "cd"], [2, 2], [-1.0, -1.0], [-3.0, -3.0]).values()) == {0}


TASK = GlueTask("bowls", "classification", "What is in it?", ("salt", "rice"), ("accuracy",), "accuracy")
PROMPT = Prompt("{a} so:", {"salt": "gamo", "rice": "tedi du"})
NOISE = ["bafo", "ka", "nu", "sovi"]


def text(draw, label):
    """Noise with one word by which the class is known."""
    words = draw.choices(NOISE, k=draw.randint(1, 3))
    words.insert(draw.randint(0, len(words)), ["limu", "pesa"][label])
    return " ".join(words)


def trained(make_gpt, tokenizer, lines, steps=150):
    """A tiny GPT that has seen the lines that ``lines(draw)`` draws."""
    model, draw = make_gpt(3, torch.float32, vocab_size=307, context=59, width=24), random.Random(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for step in range(steps):
        ids = [[EOS, *tokenizer.encode(lines(draw)), EOS] for _ in range(32)]
        longest = max(map(len, ids))
        batch = torch.tensor([[*sequence, *[PAD] * (longest - len(sequence))] for sequence in ids])
        logits = model.logits(model(batch[:, :-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / steps)
        optimizer.step()
    config = CheckpointConfig(1, "gpt", "causal", {}, tokenizer.sha256, steps, 0.0)
    return Loaded(model.eval(), tokenizer, config, "", {})


@pytest.fixture(scope="module")
def bowls():
    draw = random.Random(1)
    train = [Example(f"t{i}", text(draw, i % 2), None, i % 2) for i in range(99)]
    test = [Example(f"e{i}", text(draw, i % 3 == 0), None, int(i % 3 == 0)) for i in range(60)]
    return PromptedTask(TASK, PROMPT, test, [0.0] * 60, train, 1, None)


def test_fewshot_model_answers_by_a_learned_pattern(make_gpt, tokenizer, bowls):
    def line(draw):
        labels = [draw.randrange(2) for _ in range(draw.randint(1, 2))]
        return "\n\n".join(bowls.show(Example("", text(draw, label), None, label)) for label in labels)

    loaded = trained(make_gpt, tokenizer, line)
    for shots in (0, 1):
        answered = answers(bowls, shots, loaded, CPU)
        assert {answer.shots for answer in answered} == {shots}
        figures = measured(bowls, shots, answered, 0.5)
        assert figures["score"] > 0.9
        assert figures["baseline"] == pytest.approx(40 / 60)


def test_fewshot_multiple_choice_options_are_of_each_example(make_gpt, tokenizer):
    """What goes on with a text repeats its first word."""
    task = GlueTask("goes-on", "multiple_choice", "Which?", ("0", "1", "2"), ("accuracy",), "accuracy")
    draw, names = random.Random(2), ["limu", "pesa", "gamo"]

    def example(i):
        choices = [f"{name} du" for name in draw.sample(names, 3)]
        return Example(f"e{i}", f"{choices[i % 3][:4]} so", "ka", i % 3, choices=tuple(choices))

    train, test = [example(i) for i in range(33)], [example(i) for i in range(40)]
    goes_on = PromptedTask(task, GOES_ON, test, [0.0] * 40, train, 1, None)
    loaded = trained(make_gpt, tokenizer, lambda draw: goes_on.show(draw.choice(train)))
    assert measured(goes_on, 0, answers(goes_on, 0, loaded, CPU), None)["score"] == 1
    alike = replace(goes_on, test=[replace(test[0], choices=("x", "x", "x"))], overlaps=[0.0])
    (answer,) = answers(alike, 1, loaded, CPU)
    assert set(answer.chosen.values()) == {0}


def test_fewshot_calibration_corrects_for_option_likelihood(make_gpt, tokenizer, bowls):
    """p(salt) is 1 and 0.7 by the two words, and 0.85 by itself: by the sum it is always the answer."""

    def line(draw):
        label = draw.randrange(2)
        answer = Example("", text(draw, label) if draw.random() < 0.7 else "", None, int(draw.random() < 0.3) * label)
        return bowls.show(answer).strip()

    answered = answers(bowls, 0, trained(make_gpt, tokenizer, line, 200), CPU)
    assert {row.chosen["sum"] for row in answered} == {0}
    assert sum(row.chosen["unconditional"] == row.example.label for row in answered) > 54


def test_fewshot_refuses_too_short_context(make_gpt, tokenizer, bowls):
    loaded = trained(make_gpt, tokenizer, lambda _: "bafo", 1)
    long = [replace(example, a=f"{'sovi ' * 40}{example.a}") for example in bowls.test[:7]]
    few = replace(bowls, test=[*long, *bowls.test[7:13]], overlaps=[0.0] * 13)
    answered = answers(few, 9, loaded, CPU)
    assert [answer.cut for answer in answered] == [True] * 7 + [False] * 6
    assert all(answer.shots == 0 for answer in answered[:7])
    assert all(0 < answer.shots < 9 for answer in answered[7:])
    figures = measured(few, 9, answered, 0.5)
    assert (figures["fewer_shots"], figures["no_shot"], figures["cut"]) == (13, 7, 7)
    assert [answer.cut for answer in answers(replace(few, words=2), 0, loaded, CPU)] == [
        len(example.a.split()) > 2 for example in few.test
    ]


def test_fewshot_refuses_indistinguishable_or_long_options(make_gpt, tokenizers, bowls):
    loaded = trained(make_gpt, tokenizers["wordpiece"], lambda _: "bafo", 1)
    for options, error in (
        ({"salt": "\u4e2d", "rice": "\u56fd"}, "fewshot.prompts.bowls.options: to the model's tokenizer '\u56fd' is"),
        ({"salt": "so", "rice": "bafo " * 50 + "."}, "fewshot.tasks: bowls: the option 'bafo "),
    ):
        with pytest.raises(UserError) as refused:
            answers(replace(bowls, prompt=Prompt("{a}", options)), 0, loaded, CPU)
        assert str(refused.value).startswith(error)


def test_fewshot_leaves_out_contaminated_examples(bowls):
    """Of 12 answers 9 are right by the sum; of the 4 contaminated ones all are."""
    wrong = {5, 6, 7}
    answered = []
    for i, example in enumerate(bowls.test[:12]):
        label = int(example.label)
        choices = dict.fromkeys(RULES, label) | {"sum": 1 - label if i in wrong else label}
        answered.append(FewshotAnswer(example, choices, 0, False, 0.5 + 0.1 * i if i < 4 else 0.49 if i == 4 else 0.0))
    figures = measured(bowls, 0, answered, 0.5)
    assert (figures["examples"], figures["excluded"]) == (8, 4)
    assert (figures["score"], figures["all_score"]) == (5 / 8, 9 / 12)
    assert figures["score_per_byte"] == figures["score_per_byte_low"] == figures["score_per_byte_high"] == 1
    assert figures["score_low"] < 5 / 8 < figures["score_high"]
    assert measured(bowls, 0, answered, None)["score"] == measured(bowls, 0, answered, None)["all_score"] == 9 / 12
    nothing = measured(bowls, 0, answered[:4], 0.5)
    assert (nothing["examples"], nothing["all_score"]) == (0, 1.0)
    assert "score" not in nothing
    together = [replace(answer, example=replace(answer.example, group="d")) for answer in answered]
    single = measured(bowls, 0, together, 0.5)
    assert (single["score_low"], single["score"], single["score_high"]) == (0.0, 5 / 8, 1.0)
    row = dict(zip(COLUMNS, evidence_rows(TASK, answered)[5], strict=True))
    right = TASK.labels[int(bowls.test[5].label)]
    assert (row["id"], row["label"], row["per_token"], row["overlap"]) == ("e5", right, right, "0.0")
    assert row["prediction"] != right
