"""What is held out stays held out when examples are added; examples with a text in common are a group."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task_sources import assign_groups, counts, hold_out, shared_text_counts
from plm_core.benchmarks.task_table import TASKS

NUMBERS = st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=99)


def made(numbers, groups=None):
    return [Example(f"train-{n}", f"a{n}", None, n % 2, group=f"{n % groups}" if groups else "") for n in numbers]


@pytest.mark.parametrize("groups", [None, 13])
@given(old=NUMBERS, new=NUMBERS)
def test_validation_split_is_stable_under_additions(groups, old, new):
    assume(groups is None or len({n % groups for n in old}) > 1)
    train, valid = hold_out(made(old, groups))
    assert sorted(e.id for e in train + valid) == sorted(e.id for e in made(old))
    assert valid
    assert [e for e in made(old, groups) if e in train] == train
    everything = made(dict.fromkeys(old + new), groups)
    _, valid_after = hold_out(everything)
    assert not {e.id for e in train} & {e.id for e in valid_after}
    if len({e.group or e.id for e in valid}) > 1:  # a single one may be held out only because there must be one
        assert {e.id for e in valid} <= {e.id for e in valid_after}
    assert {e.id for e in hold_out(everything[::-1])[1]} == {e.id for e in valid_after}


def test_validation_split_is_a_tenth_up_to_a_thousand():
    some = made(range(5000))
    assert 430 < len(hold_out(some)[1]) < 570  # within five standard deviations of a tenth
    many = made(range(20_000))
    assert len(hold_out(many)[1]) == 1000
    # Beyond the thousand, additions push out and bring nothing old in.
    assert not {e.id for e in hold_out(many)[0]} & {e.id for e in hold_out(made(range(30_000)))[1]}


def test_validation_split_keeps_groups_whole():
    train, valid = hold_out(made(range(4000), 400))
    assert not {e.group for e in train} & {e.group for e in valid}
    assert 250 < len(valid) < 550
    many, most = hold_out(made(range(40_000), 400))  # a hundred each: the thousandth is the last of its group
    assert not {e.group for e in many} & {e.group for e in most}
    assert len(most) == 1000
    only, _ = hold_out(made(range(99), 1))  # of a single group, examples are
    assert {e.id for e in only} == {e.id for e in hold_out(made(range(99)))[0]}


def pair(identity, a, b, label=0, subset="", group=""):
    return Example(identity, a, b, label, subset, group=group)


def test_texts_that_stand_in_two_splits_are_counted_whatever_their_labels():
    splits = {
        "train": [pair("1", "x", "y"), pair("2", "p", "q")],
        "valid": [pair("3", "p", "q", 1), pair("4", "y", "x")],
        "test": [pair("5", "y", "x"), pair("6", "x", "y"), pair("7", "xy", "")],
    }
    assert shared_text_counts(TASKS["rte"].task, splits) == {
        "test_also_in_train": 1,
        "test_also_in_valid": 1,
        "valid_also_in_train": 1,
        "test_groups_also_in_train": 0,
    }
    assert shared_text_counts(TASKS["mrpc"].task, splits) == {
        "test_also_in_train": 2,
        "test_also_in_valid": 2,
        "valid_also_in_train": 2,
        "test_groups_also_in_train": 0,
    }


def test_groups_of_test_that_are_also_in_train_are_counted():
    train = [pair(str(i), f"a{i}", "b", group=g) for i, g in enumerate(("", "x", "y", "y"))]
    test = [pair(str(9 - i), f"c{i}", "d", group=g) for i, g in enumerate(("y", "", "y", "x", "z"))]
    assert (
        shared_text_counts(TASKS["rte"].task, {"train": train, "valid": [], "test": test})["test_groups_also_in_train"]
        == 2
    )


def test_examples_are_counted_by_split_subset_and_class():
    some = [pair(str(i), "x", "y", i % 3, "matched" if i < 5 else "mismatched") for i in range(13)]
    assert counts(TASKS["mnli"].task, "test", some) == {
        "test_examples": 13,
        "test_matched_examples": 5,
        "test_mismatched_examples": 8,
        "test_label_entailment": 5,
        "test_label_neutral": 4,
        "test_label_contradiction": 4,
    }
    scored = [pair("1", "x", "y", 1.0), pair("2", "x", "y", 4.5)]
    assert counts(TASKS["stsb"].task, "train", scored) == {"train_examples": 2, "train_mean_label": 2.75}
    assert counts(TASKS["stsb"].task, "train", []) == {"train_examples": 0}


def sentence(i):
    return f"the {i} sentence of five words"


def pairs(*texts, group=""):
    return [Example(f"e{i}", sentence(a), None if b is None else sentence(b), 0, group=group) for i, (a, b) in texts]


def groups(*texts):
    return [example.group for example in assign_groups(pairs(*enumerate(texts)))]


def test_a_premise_in_three_examples_is_a_group_named_after_the_first():
    assert groups((1, 2), (3, 4), (1, 5), (1, 6)) == ["e0", "", "e0", "e0"]


def test_groups_connect_texts_transitively():
    assert groups((1, 2), (3, 2), (4, 3), (5, 6), (7, None), (7, None)) == ["e0", "e0", "e0", "", "e4", "e4"]


def test_groups_ignore_common_or_short_texts():
    questions = [Example(f"e{i}", sentence(i), "Is it good or bad, would you say?", 0) for i in range(40)]
    named = [Example(f"e{i}", sentence(i), "the food", 0) for i in range(3)]
    chosen = [Example(f"e{i}", sentence(i), None, 0, choices=(sentence("yes"), sentence("no"))) for i in range(3)]
    for examples in (questions, named, chosen):
        assert assign_groups(examples) == examples
    texts = ["我们的账单有误，请再寄一份。", "食物"] * 2
    result = assign_groups([Example(f"e{i}", text, None, 0) for i, text in enumerate(texts)])
    assert [e.group for e in result] == ["e0", "", "e0", ""]


def test_known_groups_are_unchanged():
    speech = pairs((0, (1, 2)), (1, (1, 2)), group="speech")
    assert assign_groups([*speech, *pairs((2, (1, 2)))]) == [*speech, *pairs((2, (1, 2)))]
    assert assign_groups([]) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=60), st.randoms(use_true_random=False))
def test_the_groups_are_the_same_in_any_order(texts, draw):
    examples = [Example(f"e{i}", sentence(a), sentence(b), 0) for i, (a, b) in enumerate(texts)]

    def together(rows):
        members = {}
        for example in rows:
            members.setdefault(example.group or example.id, set()).add(example.id)
        return {frozenset(ids) for ids in members.values()}

    shuffled = random.Random(draw.random()).sample(examples, len(examples))
    assert together(assign_groups(examples)) == together(assign_groups(shuffled))
    assert {e.id for e in assign_groups(examples)} == {e.id for e in examples}
