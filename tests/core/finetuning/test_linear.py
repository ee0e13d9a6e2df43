"""The linear model on words: what it can learn, what it cannot, and what it says of itself."""

import math
import random
from dataclasses import replace

import pytest

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.finetuning import linear

MOOD = GlueTask("mood", "classification", "?", ("bad", "good"), ("accuracy",), "accuracy")
SAME = GlueTask("same", "classification", "?", ("no", "yes"), ("accuracy",), "accuracy")
LENGTH = GlueTask("length", "regression", "?", (), ("pearson",), "pearson")
WORDS = [f"word{i}" for i in range(40)]


def moods(count, seed, words=(("awful", "poor"), ("lovely", "great"))):
    chance = random.Random(seed)
    for i in range(count):
        label = i % 2
        text = [*chance.choices(WORDS, k=6), chance.choice(words[label])]
        yield Example(f"{seed}-{i}", " ".join(chance.sample(text, 7)), None, label)


def right(answers, examples):
    return sum(a == e.label for a, e in zip(answers, examples, strict=True)) / len(examples)


def test_it_learns_which_words_mean_a_class_and_is_sure_of_them():
    train, valid, test = (list(moods(n, seed)) for n, seed in ((200, 1), (40, 2), (100, 3)))
    answers, sure = linear.predict(MOOD, train, valid, test)
    assert right(answers, test) > 0.95
    assert all(0.5 <= p <= 1 for p in sure)
    assert sum(sure) / len(sure) > 0.8


def test_of_a_script_without_spaces_it_learns_which_characters_mean_a_class():
    characters = {word: chr(0x4E00 + i) for i, word in enumerate([*WORDS, "awful", "poor", "lovely", "great"])}
    train, valid, test = (
        [replace(e, a="".join(characters[word] for word in e.a.split())) for e in moods(n, seed)]
        for n, seed in ((200, 1), (40, 2), (100, 3))
    )
    assert right(linear.predict(MOOD, train, valid, test)[0], test) > 0.9


def test_of_pairs_it_sees_what_both_texts_have():
    def pairs(count, seed):
        chance = random.Random(seed)
        for i in range(count):
            a = chance.sample(WORDS, 5)
            b = chance.sample(a, 5) if i % 2 else chance.sample([w for w in WORDS if w not in a], 5)
            yield Example(f"{seed}-{i}", " ".join(a), " ".join(b), i % 2)

    train, valid, test = (list(pairs(n, seed)) for n, seed in ((400, 1), (50, 2), (100, 3)))
    assert right(linear.predict(SAME, train, valid, test)[0], test) > 0.9


def test_numbers_are_predicted_without_a_confidence():
    def lengths(count, seed):
        chance = random.Random(seed)
        for i in range(count):
            high = chance.randrange(5)
            yield Example(f"{seed}-{i}", " ".join(["high"] * high + ["low"] * (4 - high)), None, float(high))

    train, valid, test = (list(lengths(n, seed)) for n, seed in ((100, 1), (20, 2), (50, 3)))
    answers, sure = linear.predict(LENGTH, train, valid, test)
    assert max(abs(a - e.label) for a, e in zip(answers, test, strict=True)) < 0.6
    assert all(math.isnan(p) for p in sure)


@pytest.mark.parametrize("valid_labels", [[3.0], [3.0, 3.0]])
def test_validation_numbers_that_are_all_the_same_choose_nothing(valid_labels):
    train = [Example(f"t{i}", "high " * i, None, float(i)) for i in range(1, 5)]
    valid = [Example(f"v{i}", "high", None, label) for i, label in enumerate(valid_labels)]
    assert len(linear.predict(LENGTH, train, valid, train)[0]) == 4


@pytest.mark.parametrize("seen", [(0, 1), (2,)], ids=["two of three classes", "one"])
def test_a_class_that_the_sample_does_not_have_is_never_answered(seen):
    task = replace(MOOD, labels=("bad", "good", "odd"))
    examples = [Example(f"{i}", ("awful", "lovely", "strange")[i % 3], None, i % 3) for i in range(30)]
    train = [e for e in examples if e.label in seen]
    answers, sure = linear.predict(task, train, examples, examples)
    assert all(answer == e.label for answer, e in zip(answers, examples, strict=True) if e.label in seen)
    assert set(answers) <= set(seen)
    assert all(0 < p <= 1 for p in sure)
    nothing_known = [e for e in examples if e.label not in seen]
    assert set(linear.predict(task, train, nothing_known, examples)[0]) <= set(seen)


def test_words_that_stand_in_one_example_each_are_enough():
    train = [Example("1", "awful", None, 0), Example("2", "lovely", None, 1)]
    assert linear.predict(MOOD, train, train, train)[0] == [0, 1]


def test_the_same_examples_give_the_same_answers():
    train, valid, test = (list(moods(n, seed)) for n, seed in ((60, 1), (10, 2), (30, 3)))
    assert linear.predict(MOOD, train, valid, test) == linear.predict(MOOD, train, valid, test)
