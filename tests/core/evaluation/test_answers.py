"""A weight is so many copies of an example, for each of several seeds, and two models' answers can be mixed."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plm_core.evaluation import evaluate_modules, example_counts
from plm_core.evaluation.answers import Answers, Ratios, Sums, parts_of, score_by_subset
from plm_core.evaluation.significance import bootstrap, generator

CLASSES = ("a", "b", "c")
OF_CLASSES = ("accuracy", "f1:a", "f1:b", "macro_f1", "matthews", "accuracy+f1:b")
OF_NUMBERS = ("pearson", "spearman", "pearson+spearman")


def answers(score, labels, *predictions, subsets=None):
    kind = np.float64 if score in OF_NUMBERS else np.int64
    names = tuple(sorted(set(subsets))) if subsets else ("",)
    strata = np.array([names.index(name) for name in subsets]) if subsets else np.zeros(len(labels), int)
    return Answers(
        score,
        np.array(labels, dtype=kind),
        np.array(predictions, dtype=kind),
        strata,
        () if score in OF_NUMBERS else CLASSES,
        names,
        np.arange(len(labels)),
    )


EXAMPLES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=31)


@settings(max_examples=37, deadline=None)
@given(EXAMPLES, st.sampled_from(OF_CLASSES + OF_NUMBERS))
def test_answer_weight_equals_copies(examples, score):
    labels, predictions, weights = zip(*examples, strict=True)
    copies = np.repeat(np.arange(len(labels)), weights)
    assume(len({labels[i] for i in copies}) > (score in OF_NUMBERS))
    results = answers(score, labels, predictions)
    expected = evaluate_modules.scores([score], [predictions[i] for i in copies], [labels[i] for i in copies], CLASSES)[
        score
    ]
    assert results.values(np.array([weights], dtype=float)) == pytest.approx(np.array([[expected]]), abs=1e-12)


@pytest.mark.parametrize("score", OF_NUMBERS)
@pytest.mark.parametrize("constant", [0.1, 1e-30, 3e9])
def test_a_correlation_with_a_constant_is_0(score, constant):
    """Also where only a resample is constant, and in whatever unit."""
    labels = [constant] * 3 + [constant * 2]
    weights = np.array([[1.0, 1, 1, 0], [1.0, 2, 0, 4]])
    assert answers(score, labels, labels).values(weights)[:, 0] == pytest.approx([0.0, 1.0])
    assert answers(score, labels, [7.0] * 4).values(weights).tolist() == [[0.0], [0.0]]


def test_batched_weightings_and_seeds_match_each_alone():
    rng = np.random.default_rng(3)
    for score in OF_CLASSES + OF_NUMBERS:
        sides = rng.integers(0, 3, (3, 29))
        weights = rng.integers(0, 3, (5, 29)).astype(float)
        both = answers(score, *sides).values(weights)
        assert both.shape == (5, 2)
        for seed in range(2):
            for row in range(5):
                single = answers(score, sides[0], sides[1 + seed]).values(weights[row : row + 1])
                assert both[row, seed] == pytest.approx(single[0, 0])


def test_task_score_is_the_mean_over_seeds():
    results = answers("accuracy", [0, 1, 1, 2], [0, 1, 1, 0], [1, 1, 0, 0], subsets=["m", "mm", "m", "mm"])
    assert score_by_subset(results) == {"": (0.75 + 0.25) / 2, "m": (1.0 + 0.0) / 2, "mm": (0.5 + 0.5) / 2}


def test_a_subset_of_equal_labels_has_no_correlation():
    labels, predictions, subsets = [1.0, 2.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0], ["m", "m", "mm", "mm"]
    results = answers("pearson", labels, predictions, subsets=subsets)
    assert score_by_subset(results).keys() == {"", "m"}
    (draws,) = bootstrap([results], generator(), 50)
    assert draws.keys() == {"", "m"}
    assert score_by_subset(answers("accuracy", labels, predictions, subsets=subsets)).keys() == {"", "m", "mm"}


def test_the_likelihood_is_a_ratio_of_sums():
    sums = Sums(np.array([10.0, 30.0]), np.array([5.0, 20.0]))
    assert score_by_subset(sums) == {"": pytest.approx(40 / math.log(2) / 25)}
    assert sums.values(np.array([[2.0, 0.0]])) == pytest.approx(np.array([[2 / math.log(2)]]))


def test_models_with_different_classes_are_joined_by_name():
    whole = {"strata": np.zeros(2, int), "subsets": ("",), "groups": np.arange(2)}
    left = Answers("macro_f1", np.array([0, 1]), np.array([[1, 1]]), classes=("a", "c"), **whole)
    right = Answers("macro_f1", np.array([0, 2]), np.array([[0, 2], [0, 1], [0, 2]]), classes=("a", "b", "c"), **whole)
    both = left.joined(right)
    first, second = both.values(np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]])).mean(axis=1)
    assert (first, second) == pytest.approx((score_by_subset(left)[""], score_by_subset(right)[""]))
    assert both.predictions.shape == (3, 4)


def test_advantage_is_more_seeds_right_or_fewer_nats():
    left = answers("accuracy", [0, 0, 0], [0, 1, 0], [0, 1, 1])
    right = answers("accuracy", [0, 0, 0], [0, 0, 1], [1, 1, 1])
    assert left.advantage(right).tolist() == [0.5, -0.5, 0.5]
    near, far = (answers("pearson", [1.0, 2.0], guess) for guess in ([1.5, 2.0], [0.0, 2.0]))
    assert near.advantage(far).tolist() == [0.5, 0.0]
    assert Sums(np.array([1.0]), np.ones(1)).advantage(Sums(np.array([3.0]), np.ones(1))).tolist() == [2.0]


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("f2", "score: found 'f2'; expected accuracy, f1:<class>, macro_f1"),
        ("f1", "score: found 'f1'; expected accuracy, f1:<class>"),
        ("accuracy:a", "found 'accuracy:a'"),
        ("", "found ''"),
        ("accuracy+", "found 'accuracy"),
        ("accuracy+pearson", "of one family: classes, numbers, tags, texts"),
    ],
)
def test_a_score_that_does_not_exist_is_refused(score, message):
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        parts_of(score)


def ratios(score, above, below):
    size = above.shape[-1]
    return Ratios(score, above, below, np.zeros(size, int), ("",), np.arange(size))


def tagged(draw, sentences, seeds):
    """Sentences with tags, S answers to each, and the counts of entity F1 for them."""
    tags = ["O", "B-X", "I-X", "B-Y"]
    lengths = draw.integers(1, 6, sentences)
    gold, *predictions = [[draw.choice(tags, n).tolist() for n in lengths] for _ in range(1 + seeds)]
    counts = [
        [example_counts.counts("entity_f1", a, b) for a, b in zip(predicted, gold, strict=True)]
        for predicted in predictions
    ]
    above, below = np.moveaxis(np.array(counts, dtype=float), 2, 0)
    return gold, predictions, ratios("entity_f1", above[None], below[None])


@pytest.mark.parametrize("seed", range(5))
def test_ratio_weight_equals_copies(seed):
    draw = np.random.default_rng(seed)
    gold, predictions, results = tagged(draw, 23, 2)
    weights = draw.integers(0, 3, (5, 23))
    for row, copies in enumerate(weights):
        chosen = np.repeat(np.arange(23), copies)
        for s, answers_of in enumerate(predictions):
            sides = ([side[i] for i in chosen] for side in (answers_of, gold))
            expected = evaluate_modules.scores(["entity_f1"], *sides, ())["entity_f1"]
            assert results.values(weights.astype(float))[row, s] == pytest.approx(expected, abs=1e-12)
    some = np.array([3, 1, 1])
    assert results.take(some).values(np.ones((1, 3))).shape == (1, 2)
    assert results.right().tolist() == [
        [
            set(example_counts.entities(a)) == set(example_counts.entities(b))
            for a, b in zip(predicted, gold, strict=True)
        ]
        for predicted in predictions
    ]


def test_ratios_of_two_models_are_joined():
    _, _, left = tagged(np.random.default_rng(1), 9, 2)
    _, _, right = tagged(np.random.default_rng(2), 9, 3)
    both = left.joined(right)
    assert both.above.shape == (1, 6, 18)
    first, second = both.values(np.eye(2).repeat(9, axis=1)).mean(axis=1)
    assert (first, second) == pytest.approx((score_by_subset(left)[""], score_by_subset(right)[""]))
    good, bad = (ratios("exact_match", np.array([[[a, 1.0]]]), np.ones((1, 1, 2))) for a in (1.0, 0.5))
    assert good.advantage(bad).tolist() == [0.5, 0.0]
    assert left.advantage(right).tolist() == (-right.advantage(left)).tolist()


def test_mean_of_ratios_matches_each_alone():
    above, below = np.array([[[1.0, 0.0, 1.0]], [[1.0, 0.5, 0.75]]]), np.ones((2, 1, 3))
    results = Ratios("exact_match+answer_f1", above, below, np.array([0, 0, 1]), ("", "new"), np.arange(3))
    assert score_by_subset(results) == {"": pytest.approx((2 / 3 + 0.75) / 2), "new": pytest.approx(0.875)}
    assert results.right().tolist() == [[True, False, False]]
