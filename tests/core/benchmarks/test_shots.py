"""Shots are balanced over classes, are the example's own, and depend on nothing but seed, example and training set."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.shots import Shots

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def made(labels):
    return [Example(f"t{i}", f"a{i}", f"b{i}", label) for i, label in enumerate(labels)]


@given(labels=LABELS, asked=st.integers(0, 20), example=st.integers(0, 99), seed=st.integers(0, 5))
def test_classes_take_turns_while_they_have_examples_left(labels, asked, example, seed):
    train = made(labels)
    drawn = Shots(train, seed).draw(Example(f"e{example}", "x", None, 0), asked)
    assert len(drawn) == min(asked, len(train))
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
def test_a_draw_is_a_function_of_seed_example_and_training_set(labels, few, more, order):
    train, example = made(labels), Example("e", "x", None, 0)
    whole = Shots(train, 7).draw(example, few + more)
    shots = Shots(order.sample(train, len(train)), 7)
    shots.draw(Example("other", "y", None, 0), more)
    assert shots.draw(example, few) == whole[:few]
    assert shots.draw(Example("e", "quite", "different", 3), few) == whole[:few]


def test_examples_and_seeds_have_shots_of_their_own():
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
def test_no_shot_has_the_texts_of_the_example(pair):
    train = made([0, 0, 0])
    drawn = Shots(train, 1).draw(Example("e", *pair, 0), 3)
    assert {shot.id for shot in drawn} == {"t0", "t2"}
