"""Is the difference between two models more than chance? Intervals, paired tests, effect size, several tasks at once.

Used by the gate and by ``comparison.py``. All of it is a function of the examples' results and a seed; nothing asks for
a distribution of the scores (Dror et al. 2018, "The Hitchhiker's Guide to Testing Statistical Significance in Natural
Language Processing", section 3.2). Examples with equal results are counted together, so that a resample costs as
much as there are different results: this changes no distribution.

Sources:

* bootstrap over examples, percentile interval: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters
  6 and 13; paired, of two systems on the same examples: Koehn 2004, "Statistical Significance Tests for Machine
  Translation Evaluation";
* seeds and examples resampled together, after the Multi-Bootstrap of Sellam et al. 2022, "The MultiBERTs: BERT
  Reproductions for Robustness Analysis", with two differences that make it exact for a mean: of S seeds, S - 1 are
  drawn, for S would understate their variance by (S - 1) / S (Rao and Wu 1988, "Resampling Inference With Complex
  Survey Data"); and the seeds drawn shift the mean of all seeds, so that examples are not counted as if there were
  fewer seeds;
* McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages"; for
  comparing classifiers: Dietterich 1998, "Approximate Statistical Tests", section 3.1;
* Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure";
* Cohen 1988, "Statistical Power Analysis for the Behavioral Sciences", chapter 5.

An interval speaks of other examples of the same kind and, with several seeds, of other seeds of the same fine-tuning.
It says nothing of other pretrainings or other training sets. With few seeds that differ by much it is too narrow: where
their accuracies have a standard deviation of 0.1, intervals at 95 % hold the truth in 83 % of cases with 2 seeds, 88 %
with 3, 92 % with 5 (simulated).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import numpy as np

from plm_core.evaluation.answers import Results, masks

RESAMPLES = 10_000
SEED = 20_260_101
EXACT_BELOW = 25
"""Discordant pairs; with as many or more, McNemar's statistic follows chi squared well enough (its 10 a side)."""
CHUNK = 250_000
"""Weights in memory at once."""
Array = np.ndarray
Draws = dict[str, Array]
"""``[R]`` scores of resamples, by subset; "" is the whole set."""


@dataclass(frozen=True)
class Interval:
    """A percentile interval."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width: about as large a difference could have been seen."""
        return (self.high - self.low) / 2


def generator(seed: int = SEED) -> np.random.Generator:
    """The source of randomness for one comparison or decision."""
    return np.random.default_rng(seed)


def bootstrap(sides: Sequence[Results], rng: np.random.Generator, resamples: int = RESAMPLES) -> list[Draws]:
    """The scores of each side in ``resamples`` resamples of the examples, which are the same ones for all sides.

    Examples are drawn within their subset. Each side's seeds are drawn on their own: a resample is the mean over all
    seeds on the examples drawn, and how far the seeds drawn differ from it on all examples.
    """
    cells, counts = _cells(sides)
    strata = cells[0].strata
    found: list[dict[str, list[Array]]] = [{name: [] for name in masks(side)} for side in cells]
    for size in _chunks(resamples, len(counts)):
        weights = np.zeros((size, len(counts)))
        for stratum in np.unique(strata):
            here = strata == stratum
            total = int(counts[here].sum())
            weights[:, here] = rng.multinomial(total, counts[here] / total, size=size)
        for side, draws in zip(cells, found, strict=True):
            chosen: Array | None = None
            for name, mask in masks(side).items():
                values = side.values(weights * mask)
                chosen = _seeds(values.shape[1], size, rng) if chosen is None else chosen
                (whole,) = side.values(counts * mask[None])
                draws[name].append(values.mean(axis=1) + chosen @ (whole - whole.mean()))
    return [{name: np.concatenate(parts) for name, parts in draws.items()} for draws in found]


def interval(draws: Array, level: float = 0.95) -> Interval:
    """The percentile interval that holds ``level`` of the draws ``[R]``."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def permutation(
    pairs: Sequence[tuple[Results, Results]], rng: np.random.Generator, resamples: int = RESAMPLES
) -> float:
    """The two-sided p-value of the mean difference over tasks, were it chance which model gave which answer.

    ``pairs`` has the two models' results on each task; one for a single score. On each example the two models' answers
    are swapped by a fair coin, all seeds together (Dror et al. 2018, section 3.2); p counts the data themselves once
    (Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero"). It speaks of these very seeds.
    """
    seen = 0.0
    found = np.zeros(resamples)
    for one, two in pairs:
        (a, b), counts = _cells([one, two])
        both = a.joined(cast(Any, b))  # of one kind
        seen += _difference(both, counts[None], 0 * counts[None])[0] / len(pairs)
        parts = []
        for size in _chunks(resamples, 2 * len(counts)):
            swapped = rng.binomial(counts, 0.5, size=(size, len(counts)))
            parts.append(_difference(both, counts - swapped, swapped))
        found += np.concatenate(parts) / len(pairs)
    # Rounding must not make an equal difference a smaller one.
    return float((1 + np.sum(np.abs(found) >= abs(seen) - 1e-12)) / (resamples + 1))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's test on how many examples the first, or the second model alone is right.

    Exact (binomial) below 25 such examples, otherwise by chi squared with continuity correction (Edwards 1948).
    """
    total = only_first + only_second
    if total < EXACT_BELOW:
        return min(1.0, 2 * sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1)) / 2**total)
    statistic = max(abs(only_first - only_second) - 1, 0) ** 2 / total
    return math.erfc(math.sqrt(statistic / 2))


def wilson(share: float, count: int, level: float = 0.95) -> Interval:
    """The score interval of a share of ``count`` trials (Wilson 1927, "Probable Inference, the Law of Succession, and
    Statistical Inference"), which says something of few trials and of shares of 0 and 1 too.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def bootstrap_p(differences: Array) -> float:
    """The two-sided p-value by which the percentile interval of these draws ``[R]`` just touches 0."""
    below = np.sum(differences <= 0)
    above = np.sum(differences >= 0)
    return float(min(1.0, 2 * (1 + min(below, above)) / (len(differences) + 1)))


def effect(one: Results, two: Results) -> float:
    """Cohen's g: of the examples on which one model is better, the share on which the second is, minus one half.

    In [-0.5, 0.5], above 0 where the second is better more often; 0 where no example tells them apart. Better is: more
    seeds right; nearer to the number; fewer nats. Cohen calls 0.05 small, 0.15 medium, 0.25 large.
    """
    wins = np.sign(two.advantage(cast(Any, one)))
    told = np.count_nonzero(wins)
    return float(np.sum(wins > 0) / told - 0.5) if told else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: below alpha are those that hold when all are tested together."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    most = 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = most
    return adjusted


def _difference(both: Results, first: Array, second: Array) -> Array:
    """``[R]``: score of the answers counted by ``first, second`` less that of the others, of both models' joined."""
    one, two = np.concatenate([first, second], axis=1), np.concatenate([second, first], axis=1)
    return both.values(one.astype(np.float64)).mean(axis=1) - both.values(two.astype(np.float64)).mean(axis=1)


def _cells(sides: Sequence[Results]) -> tuple[list[Results], Array]:
    """The distinct results ``K``, and how many examples ``[K]`` have each."""
    columns = np.vstack([sides[0].strata, *(side.columns for side in sides)])
    _, first, counts = np.unique(columns, axis=1, return_index=True, return_counts=True)
    return [side.take(first) for side in sides], counts


def _seeds(seeds: int, size: int, rng: np.random.Generator) -> Array:
    """``[size, seeds]``: the share of each seed in each resample."""
    if seeds == 1:
        return np.ones((size, 1))
    return rng.multinomial(seeds - 1, np.full(seeds, 1 / seeds), size=size) / (seeds - 1)


def _chunks(resamples: int, width: int) -> Iterator[int]:
    most = max(1, CHUNK // width)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)
