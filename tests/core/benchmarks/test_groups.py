"""Examples with a text in common are a group; what is asked of all is none."""

import random

from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.groups import grouped


def sentence(i):
    return f"the {i} sentence of five words"


def pairs(*texts, group=""):
    return [Example(f"e{i}", sentence(a), None if b is None else sentence(b), 0, group=group) for i, (a, b) in texts]


def groups(*texts):
    return [example.group for example in grouped(pairs(*enumerate(texts)))]


def test_a_premise_in_three_examples_is_a_group_named_after_the_first():
    assert groups((1, 2), (3, 4), (1, 5), (1, 6)) == ["e0", "", "e0", "e0"]


def test_texts_connect_over_a_third_in_either_place():
    assert groups((1, 2), (3, 2), (4, 3), (5, 6), (7, None), (7, None)) == ["e0", "e0", "e0", "", "e4", "e4"]


def test_what_is_asked_of_many_or_is_short_is_nothing_in_common():
    asked = [Example(f"e{i}", sentence(i), "Is it good or bad, would you say?", 0) for i in range(40)]
    named = [Example(f"e{i}", sentence(i), "the food", 0) for i in range(3)]
    for examples in (asked, named):
        assert grouped(examples) == examples


def test_a_text_without_spaces_is_one_that_says_something():
    texts = ["我们的账单有误，请再寄一份。", "食物", "我们的账单有误，请再寄一份。", "食物"]
    assert [e.group for e in grouped([Example(f"e{i}", text, None, 0) for i, text in enumerate(texts)])] == [
        *("e0", "", "e0", "")
    ]


def test_choices_are_nothing_in_common():
    examples = [Example(f"e{i}", sentence(i), None, 0, choices=(sentence("yes"), sentence("no"))) for i in range(3)]
    assert grouped(examples) == examples


def test_a_group_that_is_known_stays_and_takes_nobody_in():
    known = pairs((0, (1, 2)), (1, (1, 2)), group="speech")
    assert grouped([*known, *pairs((2, (1, 2)))]) == [*known, *pairs((2, (1, 2)))]
    assert grouped([]) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=60), st.randoms(use_true_random=False))
def test_the_groups_are_the_same_in_any_order(texts, draw):
    examples = [Example(f"e{i}", sentence(a), sentence(b), 0) for i, (a, b) in enumerate(texts)]

    def together(found):
        members = {}
        for example in found:
            members.setdefault(example.group or example.id, set()).add(example.id)
        return {frozenset(each) for each in members.values()}

    shuffled = random.Random(draw.random()).sample(examples, len(examples))
    assert together(grouped(examples)) == together(grouped(shuffled))
    assert {e.id for e in grouped(examples)} == {e.id for e in examples}
