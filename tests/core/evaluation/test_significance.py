"""Tests against scipy and published numbers, and in simulation: intervals cover, equal models are rarely told apart."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2, norm, pearsonr
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import permutation_test as scipy_permutation
from scipy.stats import t as student

from plm_core.evaluation.answers import Answers, Sums
from plm_core.evaluation.significance import (
    Draws,
    Part,
    bootstrap,
    bootstrap_p,
    effect,
    generator,
    holm,
    interval,
    interval_of,
    mcnemar,
    mean,
    permutation,
    wilson,
)


def of_classes(labels, *predictions, score="accuracy"):
    return alone(score, labels, np.array(predictions), ("a", "b"))


def alone(score, labels, predictions, classes):
    """Answers to examples without subsets, each a group of its own."""
    return Answers(score, labels, predictions, np.zeros(len(labels), int), classes, ("",), np.arange(len(labels)))


def simulated(rng, *, size=200, right=(0.7, 0.7), seeds=1, spread=0.0, documents=0, grouped=True):
    """Two models of these accuracies on the same examples, some of which are hard for both.

    Seeds differ in accuracy with this standard deviation. Examples come from so many documents (0: each its own), of
    which each model likes some; ``grouped`` says whether the results know of them.
    """
    labels, hard = rng.integers(0, 2, size), rng.normal(size=size) * 0.5
    groups = np.arange(size) % (documents or size)
    sides = []
    for accuracy in right:
        liked = rng.normal(size=size)[groups] if documents else 0.0
        skill = norm.ppf(accuracy) * math.sqrt(2.25 if documents else 1.25) + rng.normal(size=(seeds, 1)) * spread
        correct = skill + hard + liked + rng.normal(size=(seeds, size)) > 0
        answers = of_classes(labels, *np.where(correct, labels, 1 - labels))
        sides.append(replace(answers, groups=groups) if grouped else answers)
    return sides


@pytest.mark.parametrize(("failed", "count"), [(0, 1), (1, 1), (0, 37), (7, 99), (99, 99)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_bootstrap_interval_of_a_share_matches_scipy(failed, count, level):
    expected = binomtest(failed, count).proportion_ci(level, method="wilson")
    result = wilson(failed / count, count, level)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_percentile_interval_matches_scipy():
    rng = np.random.default_rng(5)
    champion, challenger = simulated(rng, size=150, right=(0.6, 0.75))
    first, second = (draws[""] for draws in bootstrap([champion, challenger], generator(1)))
    result = interval(second - first)
    reference = scipy_bootstrap(
        (challenger.right()[0].astype(float) - champion.right()[0],),
        np.mean,
        method="percentile",
        n_resamples=9999,
        rng=7,
    ).confidence_interval
    assert (result.low, result.high) == pytest.approx((reference.low, reference.high), abs=0.01)
    assert result.half == pytest.approx((result.high - result.low) / 2)


def test_interval_of_a_correlation_matches_scipy():
    rng = np.random.default_rng(5)
    x = rng.normal(size=60)
    y = x + rng.normal(size=60)
    (draws,) = bootstrap([alone("pearson", x, y[None], ())], generator(1))
    reference = scipy_bootstrap(
        (x, y),
        lambda a, b: pearsonr(a, b).statistic,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=2999,
        rng=7,
    ).confidence_interval
    result = interval(draws[""])
    assert (result.low, result.high) == pytest.approx((reference.low, reference.high), abs=0.02)


def test_bootstrap_keeps_the_size_of_a_subset():
    labels = np.zeros(40, int)
    strata = np.arange(40) // 30
    results = Answers("accuracy", labels, np.array([strata]), strata, ("a", "b"), ("m", "mm"), np.arange(40))
    (draws,) = bootstrap([results], generator(1), resamples=50)
    assert {name: {*resampled.total} for name, resampled in draws.items()} == {"": {0.75}, "m": {1.0}, "mm": {0.0}}


@pytest.mark.parametrize("seeds", [2, 5])
def test_interval_includes_the_spread_over_seeds(seeds):
    """Every example alike, seeds right or wrong as a whole: the standard error is that of a mean of S seeds."""
    shares = np.linspace(0, 1, seeds) >= 0.5
    results = of_classes(np.zeros(100, int), *(np.full(100, int(not right)) for right in shares))
    (draws,) = bootstrap([results], generator(1))
    assert np.std(draws[""].total) == pytest.approx(np.std(shares, ddof=1) / math.sqrt(seeds), rel=0.03)
    assert draws[""].freedom == pytest.approx(seeds - 1)
    uneven = of_classes(np.zeros(100, int), np.zeros(100, int), np.arange(100) < 10)
    (draws,) = bootstrap([uneven], generator(1))
    assert np.std(draws[""].seeds[0].draws) == pytest.approx(0.1 / 2, rel=0.03)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 9), (12, 12), (24, 0), (13, 12), (150, 86), (1000, 900)])
def test_mcnemar_is_binomial_below_25_and_chi_squared_above(first, second):
    total = first + second
    expected = binomtest(first, total).pvalue if total else 1.0
    if total >= 25:
        expected = chi2.sf(max(abs(first - second) - 1, 0) ** 2 / total, df=1)
    assert mcnemar(first, second) == pytest.approx(expected)
    assert mcnemar(first, second) == mcnemar(second, first)


def test_permutation_test_of_few_examples_is_exact():
    left, right = np.array([1.0, 4.0, 2.5, 7.0, 3.0]), np.array([1.5, 3.0, 4.0, 9.0, 5.0])
    size = np.full(5, 10.0)
    signs = np.array(list(product([1, -1], repeat=5)))
    exact = np.mean(np.abs(signs @ (right - left)) >= abs((right - left).sum()) - 1e-9)
    assert permutation([(Sums(left, size), Sums(right, size))], generator(1)) == pytest.approx(exact, abs=0.01)
    reference = scipy_permutation(
        (left, right), lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples"
    )
    assert exact == pytest.approx(reference.pvalue)


@pytest.mark.parametrize(("worse", "low", "high"), [(0, 1e-6, 3e-6), (2, 1e-5, 1e-4), (4, 1e-3, 1e-2)])
def test_small_p_values_are_those_of_all_swaps(worse, low, high):
    """20 documents, of which the second model is worse at so many: 2 ** 20 swaps."""
    gains = np.linspace(1, 2, 20)
    gains[:worse] *= -1
    sums = np.zeros(1)
    for gain in gains:
        sums = np.concatenate([sums + gain, sums - gain])
    exact = np.mean(np.abs(sums) >= gains.sum() - 1e-9)
    assert low < exact < high
    pair = (Sums(np.full(20, 9.0), np.full(20, 10.0)), Sums(9.0 - gains, np.full(20, 10.0)))
    p = permutation([pair], generator(1), level=1e-5)
    assert p == pytest.approx(exact, rel=0.3, abs=3e-6)
    assert (p == permutation([pair], generator(1))) == (exact > 1e-3)  # no more is drawn


def test_p_values_of_equal_models_that_are_drawn_in_stages_are_rarely_small():
    """Of 1,000 some 10 are at most 0.01; more than 22 less than once in a thousand."""
    rng, size = np.random.default_rng(5), np.full(15, 10.0)
    pairs = [(Sums(rng.normal(9, 1, 15), size), Sums(rng.normal(9, 1, 15), size)) for _ in range(1000)]
    assert 2 < sum(permutation([pair], rng, 50, level=0.01) <= 0.01 for pair in pairs) <= 22


def test_permutation_test_of_other_scores_matches_scipy():
    rng = np.random.default_rng(8)
    left, right = (side.predictions[0] for side in simulated(rng, size=80, right=(0.6, 0.75)))
    labels = simulated(np.random.default_rng(8), size=80, right=(0.6, 0.75))[0].labels
    sides = [of_classes(labels, side, score="f1:b") for side in (left, right)]

    def f1(predictions):
        return 2 * np.sum(predictions & labels) / (np.sum(predictions) + np.sum(labels))

    reference = scipy_permutation(
        (left, right), lambda a, b: f1(a) - f1(b), permutation_type="samples", vectorized=False, n_resamples=4999, rng=7
    )
    assert permutation([tuple(sides)], generator(1)) == pytest.approx(reference.pvalue, abs=0.02)


def test_equal_answers_are_never_significant():
    champion, _ = simulated(np.random.default_rng(4))
    first, second = bootstrap([champion, champion], generator(1))
    assert np.array_equal(first[""].total, second[""].total)
    assert bootstrap_p(second[""] - first[""]) == 1.0
    assert permutation([(champion, champion)], generator(1)) == 1.0
    assert effect(champion, champion) == 0.0
    assert mcnemar(0, 0) == 1.0


def test_bootstrap_p_value_is_where_interval_touches_0():
    values = np.random.default_rng(2).normal(1.5, 1, 10_000)
    for freedom in (3, 1000):
        draws, turned = (Draws((Part(sample, freedom),), (), (-math.inf, math.inf)) for sample in (values, -values))
        p = bootstrap_p(draws)
        assert p == pytest.approx(2 * student.sf(1.5, freedom), abs=0.02)
        assert interval(draws, 1 - p - 0.01).low > 0 > interval(draws, 1 - p + 0.01).low
        assert bootstrap_p(turned) == p


def test_effect_is_cohens_g_of_discordant_examples():
    labels = np.zeros(10, int)
    champion = of_classes(labels, np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]))
    challenger = of_classes(labels, np.array([0, 0, 0, 0, 0, 1, 0, 0, 0, 1]))
    assert effect(champion, challenger) == 3 / 4 - 1 / 2  # of four examples the second wins three
    assert effect(challenger, champion) == -effect(champion, challenger)
    fewer, more = Sums(np.array([1.0, 2.0]), np.ones(2)), Sums(np.array([3.0, 3.0]), np.ones(2))
    assert (effect(more, fewer), effect(fewer, more)) == (0.5, -0.5)


def test_holm_adjusted_values_by_hand():
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.04, 0.01, 0.9, 0.6]) == pytest.approx([0.12, 0.04, 1.0, 1.0])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=7))
def test_holm_keeps_order_and_is_at_most_bonferroni(p_values):
    adjusted = holm(p_values)
    for (left, first), (right, second) in product(zip(p_values, adjusted, strict=True), repeat=2):
        assert left > right or first <= second
    assert all(p <= a <= min(1, len(p_values) * p) for p, a in zip(p_values, adjusted, strict=True))


def p_values(times, of, **how):
    return np.array([of(*simulated(rng, **how), rng) for rng in map(np.random.default_rng, range(times))])


def by_mcnemar(champion, challenger, _rng):
    first, second = champion.right()[0], challenger.right()[0]
    return mcnemar(int(np.sum(first & ~second)), int(np.sum(second & ~first)))


def by_permutation(champion, challenger, rng):
    return permutation([(champion, challenger)], rng, 400)


def by_bootstrap(champion, challenger, rng):
    first, second = bootstrap([champion, challenger], rng, 400)
    return bootstrap_p(second[""] - first[""])


def coverage(times, truth, draw):
    """How often the interval of what ``draw`` gives holds the truth."""
    intervals = [interval(draw(np.random.default_rng(i))) for i in range(times)]
    return np.mean([low.low <= truth <= low.high for low in intervals])


def of_a_difference(**how):
    """Draws the difference of two simulated models."""

    def draw(rng):
        first, second = bootstrap(simulated(rng, **how), rng, 400)
        return second[""] - first[""]

    return draw


def test_intervals_have_nominal_coverage():
    """Of 300 samples at 95 %, 285 are expected, with a standard deviation of 3.8."""
    assert 0.91 <= coverage(300, 0.7, lambda rng: bootstrap([simulated(rng)[0]], rng, 400)[0][""]) <= 0.98
    assert 0.91 <= coverage(300, 0.1, of_a_difference(right=(0.65, 0.75))) <= 0.98


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_over_seeds_has_nominal_coverage(seeds):
    """Seeds of a model whose accuracies differ by more than examples make them."""
    assert coverage(200, 0.0, of_a_difference(seeds=seeds, spread=0.3)) >= 0.91
    assert seeds < 5 or coverage(200, 0.0, of_a_difference(seeds=1, spread=0.3)) <= 0.8


@pytest.mark.parametrize("documents", [6, 24])
def test_interval_over_few_documents_has_nominal_coverage(documents):
    assert 0.91 <= coverage(200, 0.0, of_a_difference(size=240, documents=documents)) <= 0.99
    assert coverage(200, 0.0, of_a_difference(size=240, documents=documents, grouped=False)) <= 0.85


def test_the_permutation_test_swaps_whole_documents():
    """Equal models that like other documents are told apart in one case of twenty; by examples, in many more."""
    by_document, by_example = (
        p_values(200, by_permutation, size=240, documents=24, grouped=grouped) for grouped in (True, False)
    )
    assert np.mean(by_document <= 0.05) <= 0.1
    assert np.mean(by_example <= 0.05) >= 0.2


def test_the_standard_error_of_few_groups_is_that_of_a_mean():
    """Six documents of ten examples each, right in so many of them."""
    right = np.array([1, 9, 4, 6, 7, 3])
    groups = np.repeat(np.arange(6), 10)
    wrong = np.arange(60) % 10 >= right[groups]
    (draws,) = bootstrap([replace(of_classes(np.zeros(60, int), wrong), groups=groups)], generator())
    assert np.std(draws[""].total) == pytest.approx(np.std(right / 10, ddof=1) / math.sqrt(6), rel=0.02)
    assert draws[""].freedom == pytest.approx(5)


def test_groups_of_one_example_change_no_digit():
    champion, challenger = simulated(np.random.default_rng(3), seeds=2, spread=0.2)
    names = np.random.default_rng(4).permutation(len(champion.labels))
    renamed = [replace(side, groups=names) for side in (champion, challenger)]
    assert permutation([(champion, challenger)], generator()) == permutation([tuple(renamed)], generator())
    for plain, named in zip(
        bootstrap([champion, challenger], generator()), bootstrap(renamed, generator()), strict=True
    ):
        assert np.array_equal(plain[""].total, named[""].total)


def test_interval_of_a_single_group_is_the_score_range():
    champion, challenger = (replace(side, groups=np.zeros(200, int)) for side in simulated(np.random.default_rng(3)))
    first, second = (draws[""] for draws in bootstrap([champion, challenger], generator()))
    assert (interval(first).low, interval(first).high) == (0.0, 1.0)
    assert (interval(second - first).low, interval(second - first).high) == (-1.0, 1.0)
    assert bootstrap_p(second - first) == permutation([(champion, challenger)], generator()) == 1.0
    matthews = interval_of(replace(champion, score="matthews"))
    assert (matthews.low, matthews.high) == (-1.0, 1.0)


@pytest.mark.parametrize("freedom", [3, 1000])
def test_intervals_grow_with_the_level_beyond_what_draws_can_say(freedom):
    values = np.random.default_rng(2).normal(1.5, 1, 10_000)
    draws = Draws((Part(values, freedom),), (), (-math.inf, math.inf))
    levels = [1 - 2 * 10**-power for power in np.linspace(1, 6, 40)]
    ends = np.array([[(around := interval(draws, level)).low, around.high] for level in levels])
    assert np.all(np.diff(ends[:, 0]) <= 0)
    assert np.all(np.diff(ends[:, 1]) >= 0)
    wanted = [student.ppf((1 + level) / 2, freedom) for level in levels]
    assert (ends[:, 1] - ends[:, 0]) / 2 == pytest.approx(np.array(wanted), rel=0.06)


def test_interval_lies_within_the_score_range():
    labels = np.zeros(40, int)
    result = interval_of(of_classes(labels, np.arange(40) == 3, np.arange(40) == 4, labels))
    assert 0.9 < result.low < result.high == 1.0


def test_mean_of_tasks_has_satterthwaite_degrees_of_freedom():
    """Satterthwaite 1946: of equal variances, the sum of the degrees of freedom."""
    values = np.random.default_rng(1).normal(size=1000)
    left, right = (Draws((Part(values * sign, freedom),), (), (0.0, 1.0)) for sign, freedom in ((1, 5), (-1, 7)))
    assert mean([left, left]).freedom == pytest.approx(10)
    assert mean([left, right]).freedom == pytest.approx(4 / (1 / 5 + 1 / 7))
    assert (left - right).freedom == pytest.approx(5)
    assert (left - right).limits == (-1.0, 1.0)
    assert np.allclose(mean([left, right]).total, 0.0)


@pytest.mark.parametrize("test", [by_mcnemar, by_permutation, by_bootstrap])
@pytest.mark.parametrize("size", [30, 200])
def test_equal_models_differ_at_the_nominal_rate(test, size):
    """Of 400 pairs 20 are expected, with a standard deviation of 4.4; McNemar's test errs on the safe side."""
    assert np.mean(p_values(400, test, size=size) <= 0.05) <= 0.085


@pytest.mark.parametrize("test", [by_mcnemar, by_permutation, by_bootstrap])
def test_large_difference_is_significant(test):
    assert np.mean(p_values(100, test, right=(0.6, 0.8)) <= 0.05) >= 0.9


def test_mean_over_tasks_is_permuted_task_by_task():
    """A task of few examples weighs as much as one of many; equal means are rarely told apart."""
    values = []
    for rng in map(np.random.default_rng, range(200)):
        pairs = [tuple(simulated(rng, size=40)), tuple(simulated(rng, size=300, right=(0.8, 0.8)))]
        values.append(permutation(pairs, rng, 400))
    assert np.mean(np.array(values) <= 0.05) <= 0.1
    rng = np.random.default_rng(1)
    seen = [permutation([tuple(simulated(rng, right=(0.6, 0.75))) for _ in range(3)], rng) for _ in range(3)]
    assert max(seen) < 0.01
