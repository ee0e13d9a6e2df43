"""Every task of the table but the regression has a prompt; what a team writes of its own is checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.prompts import PROMPTS, Prompt, prompt_of
from plm_core.benchmarks.table import TASKS
from plm_core.config import UserError, from_dict

CLASSIFIED = [name for name, row in TASKS.items() if row.task.kind == "classification"]
PAIRS = {"mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "next"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("name", CLASSIFIED)
def test_a_classification_of_the_table_has_a_prompt_with_an_option_for_each_class(name):
    prompt = prompt_of(TASKS[name].task, {})
    assert set(prompt.options) == set(TASKS[name].task.labels)
    assert ("{b}" in prompt.template) == (name in PAIRS)


def test_no_prompt_is_left_over():
    assert set(PROMPTS) == set(CLASSIFIED)


@given(a=TEXTS, b=TEXTS)
def test_texts_stand_in_the_prompt_as_they_are(a, b):
    """Also one that holds the mark of the other."""
    prompt = Prompt("<{b}> {c} <{a}> <{a}>?", {"x": "yes"})
    assert prompt.ask(Example("i", a, b, 0)) == "<" + b + "> {c} <" + a + "> <" + a + ">?"
    assert prompt.ending == ">?"


def test_of_what_follows_and_what_it_follows_the_words_between_which_it_does_are_told():
    asked = PROMPTS["next"].ask(Example("i", "a b c d", "e f g h", 1), 2)
    assert asked == "First: c d\nThen: e f\nDoes it follow?"
    assert PROMPTS["rte"].ask(Example("i", "a b c d", "e f g h", 1), 2).startswith("a b\nClaim: e f\n")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "p.template: missing"),
        ({"template": "Why?", "options": {}}, "p.template: found 'Why?'; expected {a}"),
        ({"template": "{a}: ", "options": {}}, "p.template: found '{a}: '; expected no whitespace at its end"),
        ({"template": "{a}", "options": {"x": " yes"}}, "p.options.x: found ' yes'; expected text without"),
        ({"template": "{a}", "options": {"x": ""}}, "p.options.x: found ''"),
        ({"template": "{a}", "options": {"x": "yes", "y": "yes"}}, "p.options: found yes, yes; expected texts that"),
        ({"template": "{a}", "option": {}}, "p.option: unknown parameter; did you mean 'options'"),
    ],
)
def test_a_prompt_that_is_none_is_refused(given, error):
    with pytest.raises(UserError) as refused:
        from_dict(Prompt, given, "p")
    assert str(refused.value).startswith(error)


def test_a_prompt_of_ones_own_wins_and_fits_the_classes():
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


def test_a_multiple_choice_needs_no_prompt_and_brings_its_options():
    task = TASKS["swag"].task
    assert prompt_of(task, {}).ask(Example("i", "She sits.", "She", 0)) == "She sits. She"
    assert prompt_of(task, {}).ask(Example("i", "She sits.", None, 0)) == "She sits."
    own = Prompt("Q: {a}\nA: {b}")
    assert prompt_of(task, {"swag": own}) is own
    with pytest.raises(UserError, match=r"fewshot\.prompts\.swag\.options: found some; expected none"):
        prompt_of(task, {"swag": Prompt("{a}", {"0": "yes"})})
    with pytest.raises(UserError, match=r"fewshot\.tasks: squad is of the kind question_answering"):
        prompt_of(TASKS["squad"].task, {})
