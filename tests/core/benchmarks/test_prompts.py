"""The tasks of the table have prompts, a team's own are checked; shots are balanced over classes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.prompts import PROMPTS, Prompt, Shots, prompt_of
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError, from_dict

CLASSIFIED = [name for name, row in TASKS.items() if row.task.kind == "classification"]
PAIRS = {"mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "next"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("name", CLASSIFIED)
def test_a_classification_of_the_table_has_a_prompt_with_an_option_for_each_class(name):
    prompt = prompt_of(TASKS[name].task, {})
    assert set(prompt.options) == set(TASKS[name].task.labels)
    assert ("{b}" in prompt.template) == (name in PAIRS)


def test_every_prompt_belongs_to_a_task():
    assert set(PROMPTS) == set(CLASSIFIED)


@given(a=TEXTS, b=TEXTS)
def test_texts_stand_in_the_prompt_as_they_are(a, b):
    """Also one that holds the mark of the other."""
    prompt = Prompt("<{b}> {c} <{a}> <{a}>?", {"x": "yes"})
    assert prompt.ask(Example("i", a, b, 0)) == "<" + b + "> {c} <" + a + "> <" + a + ">?"
    assert prompt.ending == ">?"


def test_prompt_of_next_passage_shows_the_words_at_the_seam():
    prompt = PROMPTS["next"].ask(Example("i", "a b c d", "e f g h", 1), 2)
    assert prompt == "First: c d\nThen: e f\nDoes it follow?"
    assert PROMPTS["rte"].ask(Example("i", "a b c d", "e f g h", 1), 2).startswith("a b\nClaim: e f\n")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"template": "Why?", "options": {}}, "p.template: found 'Why?'; expected {a}"),
        ({"template": "{a}: ", "options": {}}, "p.template: found '{a}: '; expected no whitespace at its end"),
        ({"template": "{a}", "options": {"x": " yes"}}, "p.options.x: found ' yes'; expected text without"),
        ({"template": "{a}", "options": {"x": "yes", "y": "yes"}}, "p.options: found yes, yes; expected texts that"),
    ],
)
def test_invalid_prompt_is_refused(given, error):
    with pytest.raises(UserError) as refused:
        from_dict(Prompt, given, "p")
    assert str(refused.value).startswith(error)


def test_custom_prompt_overrides_and_fits_the_classes():
    task = TASKS["rte"].task
    own = Prompt("{a}; {b}", {"entailment": "so", "not_entailment": "but"})
    assert prompt_of(task, {"rte": own}) is own
    for options, error in (
        ({"entailment": "so"}, "fewshot.prompts.rte.options: nothing for the class 'not_entailment'"),
        (
            own.options | {"maybe": "hm"},
            "fewshot.prompts.rte.options.maybe: no class of rte; expected one of entailment",
        ),
    ):
        with pytest.raises(UserError) as refused:
            prompt_of(task, {"rte": Prompt("{a}; {b}", options)})
        assert str(refused.value).startswith(error)
    with pytest.raises(UserError, match=r"fewshot\.tasks: stsb is of the kind regression"):
        prompt_of(TASKS["stsb"].task, {})


def test_multiple_choice_needs_no_prompt():
    task = TASKS["swag"].task
    assert prompt_of(task, {}).ask(Example("i", "She sits.", "She", 0)) == "She sits. She"
    assert prompt_of(task, {}).ask(Example("i", "She sits.", None, 0)) == "She sits."
    own = Prompt("Q: {a}\nA: {b}")
    assert prompt_of(task, {"swag": own}) is own
    with pytest.raises(UserError, match=r"fewshot\.prompts\.swag\.options: found some; expected none"):
        prompt_of(task, {"swag": Prompt("{a}", {"0": "yes"})})
    with pytest.raises(UserError, match=r"fewshot\.tasks: squad is of the kind question_answering"):
        prompt_of(TASKS["squad"].task, {})


LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def made(labels):
    return [Example(f"t{i}", f"a{i}", f"b{i}", label) for i, label in enumerate(labels)]


@given(labels=LABELS, most=st.integers(0, 20), example=st.integers(0, 99), seed=st.integers(0, 5))
def test_shots_alternate_between_classes(labels, most, example, seed):
    train = made(labels)
    drawn = Shots(train, seed).draw(Example(f"e{example}", "x", None, 0), most)
    assert len(drawn) == min(most, len(train))
    assert len({shot.id for shot in drawn}) == len(drawn)
    assert set(drawn) <= set(train)
    counts, there = Counter(shot.label for shot in drawn), Counter(labels)
    for label in there:
        for other in there:
            assert counts[label] >= counts[other] - 1 or counts[label] == there[label]


@given(labels=LABELS, most=st.integers(1, 12), start=st.integers(0, 12))
def test_shots_next_to_each_other_are_balanced_too(labels, most, start):
    """So a prompt that loses its farthest shots stays as balanced as it can be."""
    classes = sorted(set(labels))
    train = made(labels + classes * 20)
    window = Shots(train, 1).draw(Example("e", "x", None, 0), start + most)[start:]
    counts = [Counter(shot.label for shot in window)[label] for label in classes]
    assert max(counts) - min(counts) <= 1


@given(labels=LABELS, few=st.integers(0, 9), more=st.integers(0, 9), order=st.randoms(use_true_random=False))
def test_shots_depend_on_seed_example_and_training_set(labels, few, more, order):
    train, example = made(labels), Example("e", "x", None, 0)
    whole = Shots(train, 7).draw(example, few + more)
    shots = Shots(order.sample(train, len(train)), 7)
    shots.draw(Example("other", "y", None, 0), more)
    assert shots.draw(example, few) == whole[:few]
    assert shots.draw(Example("e", "quite", "different", 3), few) == whole[:few]


def test_shots_differ_by_example_and_seed():
    train = made([0, 1, 2] * 99)
    draws = [
        tuple(shot.id for shot in Shots(train, seed).draw(Example(f"e{i}", "x", None, 0), 4))
        for seed in (1, 2)
        for i in range(50)
    ]
    assert len(set(draws)) == 100
    nearest = Counter(train[int(ids[0][1:])].label for ids in draws)
    assert min(nearest.values()) > 15


@pytest.mark.parametrize("pair", [("a1", "b1"), ("b1", "a1")])
def test_shots_exclude_the_texts_of_the_example(pair):
    train = made([0, 0, 0])
    drawn = Shots(train, 1).draw(Example("e", *pair, 0), 3)
    assert {shot.id for shot in drawn} == {"t0", "t2"}
