"""Whether two models differ significantly: intervals, paired tests, effect size, several tasks at once.

Used by the gate and by ``comparison.py``. All of it is a function of the examples' results and a seed; nothing assumes
a distribution of the scores (Dror et al. 2018, "The Hitchhiker's Guide to Testing Statistical Significance in Natural
Language Processing", section 3.2). What is drawn and swapped are groups of examples: the paragraphs of one document are
not independent observations. Groups with equal results are counted together, so that the cost of a resample depends on
the number of distinct results; this changes no distribution.

Sources:

* bootstrap over examples, percentile interval: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters
  6 and 13; paired, of two systems on the same examples: Koehn 2004, "Statistical Significance Tests for Machine
  Translation Evaluation";
* seeds and examples resampled together, after the Multi-Bootstrap of Sellam et al. 2022, "The MultiBERTs: BERT
  Reproductions for Robustness Analysis", with two differences that make it exact for a mean: of S seeds, S - 1 are
  drawn, because S would understate their variance by (S - 1) / S (Rao and Wu 1988, "Resampling Inference With Complex
  Survey Data"); and the seeds drawn shift the mean of all seeds, so that examples are not counted as if there were
  fewer seeds;
* groups drawn whole: Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8; swapped whole:
  Winkler et al. 2014, "Permutation Inference for the General Linear Model", on exchangeability blocks;
* intervals of few groups or seeds are widened by the ratio of Student's t to the normal distribution (Hesterberg 2015,
  "What Teachers Should Know About the Bootstrap"), with the degrees of freedom of a sum of variances by Satterthwaite
  1946, "An Approximate Distribution of Estimates of Variance Components";
* McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages"; for
  comparing classifiers: Dietterich 1998, "Approximate Statistical Tests", section 3.1;
* Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure";
* Cohen 1988, "Statistical Power Analysis for the Behavioral Sciences", chapter 5.

An interval covers other groups of the same kind and, with several seeds, other seeds of the same fine-tuning. It does
not cover other pretraining runs or other training sets.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from scipy.special import stdtr, stdtrit

from plm_core.evaluation.answers import Results, masks
from plm_core.evaluation.units import Units, units_of

RESAMPLES = 10_000
SEED = 20_260_101
EXACT_BELOW = 25
"""The number of discordant pairs from which McNemar's statistic follows chi squared well enough."""
CHUNK = 60_000
"""Weights in memory at once: half a megabyte stays in a core's cache, and the allocator does not return its pages."""
Array = np.ndarray


@dataclass(frozen=True)
class Interval:
    """A percentile interval."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width: a difference of about this size could have been detected."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Part:
    """The contribution of one source of randomness to a score."""

    draws: Array
    """``[R]``."""
    freedom: int
    """The degrees of freedom of their variance: one less than the number of groups or seeds drawn from."""


@dataclass(frozen=True)
class Draws:
    """A score, or a difference, in R resamples: the sum of the contributions of chance."""

    groups: tuple[Part, ...]
    """The contribution of the choice of groups, for each task."""
    seeds: tuple[Part, ...]
    """The contribution of the choice of each model's seeds, around 0."""
    limits: tuple[float, float]
    """The lowest and the highest possible value."""

    @property
    def total(self) -> Array:
        """``[R]``."""
        return np.sum([part.draws for part in (*self.groups, *self.seeds)], axis=0)

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the total; 0 if nothing is known of a part."""
        parts = (*self.groups, *self.seeds)
        if not all(part.freedom for part in parts):
            return 0.0
        variances = np.array([np.var(part.draws) for part in parts])
        each = float(np.sum(variances**2 / [part.freedom for part in parts]))
        return float(variances.sum()) ** 2 / each if each > 0 else math.inf

    def __sub__(self, other: "Draws") -> "Draws":
        """The difference of two models' scores, drawn from the same groups."""
        pairs = zip(self.groups, other.groups, strict=True)
        paired = tuple(Part(one.draws - two.draws, min(one.freedom, two.freedom)) for one, two in pairs)
        seeds = (*self.seeds, *(replace(part, draws=-part.draws) for part in other.seeds))
        return Draws(paired, seeds, (self.limits[0] - other.limits[1], self.limits[1] - other.limits[0]))


def mean(several: Sequence[Draws]) -> Draws:
    """The plain mean of independent scores: each was resampled separately, so this is a stratified bootstrap."""

    def scaled(parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(replace(part, draws=part.draws / len(several)) for part in parts)

    groups = scaled(part for draws in several for part in draws.groups)
    seeds = scaled(part for draws in several for part in draws.seeds)
    low, high = np.mean([draws.limits for draws in several], axis=0)
    return Draws(groups, seeds, (float(low), float(high)))


def generator(seed: int = SEED) -> np.random.Generator:
    """The source of randomness for one comparison or decision."""
    return np.random.default_rng(seed)


def bootstrap(sides: Sequence[Results], rng: np.random.Generator, resamples: int = RESAMPLES) -> list[dict[str, Draws]]:
    """The scores of each side by subset ("" is the whole set) in ``resamples`` resamples of the groups of examples, the
    same for all sides.

    Groups are drawn within their subset, those of subsets that share groups together. Each side's seeds are drawn
    separately: a resample is the mean over all seeds on the examples drawn, plus the difference between the seeds drawn
    and that mean on all examples.
    """
    units = units_of(sides)
    found: list[dict[str, list[Array]]] = [{name: [] for name in masks(side)} for side in units.cells]
    for size in _chunks(resamples, max(units.rows.shape)):
        drawn = np.zeros((size, len(units.counts)))
        for stratum in np.unique(units.strata):
            here = units.strata == stratum
            total = int(units.counts[here].sum())
            drawn[:, here] = rng.multinomial(total, units.counts[here] / total, size=size)
        weights = drawn @ units.rows
        for side, draws in zip(units.cells, found, strict=True):
            for name, mask in masks(side).items():
                counted = weights * mask
                # If no group of a subset was drawn, nothing is known of it.
                draws[name].append(np.where(counted.any(axis=1), side.values(counted).mean(axis=1), np.nan))
    return [_drawn(units, side, draws, rng) for side, draws in zip(units.cells, found, strict=True)]


def interval(draws: Draws, level: float = 0.95) -> Interval:
    """The percentile interval that holds ``level`` of the draws, widened if there are few groups or seeds.

    It lies within the limits of the value; for a single group it is these limits.
    """
    freedom = draws.freedom
    if not freedom:
        return Interval(*draws.limits)
    values = draws.total
    wider = stdtrit(freedom, (1 + level) / 2) / stdtrit(math.inf, (1 + level) / 2)
    ends = values.mean() + (np.quantile(values, [(1 - level) / 2, (1 + level) / 2]) - values.mean()) * wider
    low, high = np.clip(ends, *draws.limits)
    return Interval(float(low), float(high))


def interval_of(results: Results, resamples: int = RESAMPLES) -> Interval:
    """The 95 % interval of one model's score."""
    (draws,) = bootstrap([results], generator(), resamples)
    return interval(draws[""])


def permutation(
    pairs: Sequence[tuple[Results, Results]], rng: np.random.Generator, resamples: int = RESAMPLES
) -> float:
    """The two-sided p-value of the mean difference over tasks, if chance decided which model gave which answer.

    ``pairs`` has the two models' results on each task; one for a single score. On each group of examples the two
    models' answers are swapped by a fair coin, all seeds together (Dror et al. 2018, section 3.2); p counts the data
    themselves once (Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero"). It holds for these seeds
    only.
    """
    seen = 0.0
    found = np.zeros(resamples)
    for one, two in pairs:
        units = units_of([one, two])
        first, second = units.cells
        both = first.joined(cast(Any, second))  # of one kind
        counts = units.counts @ units.rows
        seen += _difference(both, counts[None], 0 * counts[None])[0] / len(pairs)
        parts = []
        for size in _chunks(resamples, 2 * max(units.rows.shape)):
            swapped = rng.binomial(units.counts, 0.5, size=(size, len(units.counts))) @ units.rows
            parts.append(_difference(both, counts - swapped, swapped))
        found += np.concatenate(parts) / len(pairs)
    # Rounding must not make an equal difference smaller.
    return float((1 + np.sum(np.abs(found) >= abs(seen) - 1e-12)) / (resamples + 1))


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's two-sided p-value, from the numbers of examples on which only one of the models is right.

    Exact (binomial) below 25 such examples, otherwise by chi squared with continuity correction (Edwards 1948).
    """
    total = only_first + only_second
    if total < EXACT_BELOW:
        return min(1.0, 2 * sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1)) / 2**total)
    statistic = max(abs(only_first - only_second) - 1, 0) ** 2 / total
    return math.erfc(math.sqrt(statistic / 2))


def wilson(share: float, count: int, level: float = 0.95) -> Interval:
    """The score interval of a share of ``count`` trials (Wilson 1927, "Probable Inference, the Law of Succession, and
    Statistical Inference"), which also works for few trials and for shares of 0 and 1.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def bootstrap_p(difference: Draws) -> float:
    """The two-sided p-value by which the interval of these draws just touches 0."""
    draws, freedom = difference.total, difference.freedom
    beyond = min(np.sum(draws <= 0), np.sum(draws >= 0))
    one_side = min(0.5, (1 + beyond) / (len(draws) + 1))
    return float(2 * stdtr(freedom, stdtrit(math.inf, one_side))) if freedom else 1.0


def effect(one: Results, two: Results) -> float:
    """Cohen's g: among the examples on which one model is better, the share on which it is the second, minus one half.

    In [-0.5, 0.5], above 0 if the second is better more often; 0 if no example tells them apart. Better means more
    seeds right, nearer to the number, or fewer nats. Cohen calls 0.05 small, 0.15 medium, 0.25 large.
    """
    wins = np.sign(two.advantage(cast(Any, one)))
    told = np.count_nonzero(wins)
    return float(np.sum(wins > 0) / told - 0.5) if told else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: those below alpha are significant with all tested together."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    most = 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = most
    return adjusted


def _difference(both: Results, first: Array, second: Array) -> Array:
    """``[R]``: the score of the answers counted by ``first, second`` minus that of the others, in joined answers."""
    one, two = np.concatenate([first, second], axis=1), np.concatenate([second, first], axis=1)
    return both.values(one.astype(np.float64)).mean(axis=1) - both.values(two.astype(np.float64)).mean(axis=1)


def _drawn(units: Units, side: Results, draws: dict[str, list[Array]], rng: np.random.Generator) -> dict[str, Draws]:
    """The draws of a side by subset, with the contribution of the seeds drawn to each."""
    total = units.counts @ units.rows
    found = {}
    chosen = None
    for name, mask in masks(side).items():
        values = np.concatenate(draws[name])
        values = np.where(np.isnan(values), np.nanmean(values), values)
        here = units.rows @ mask > 0
        many = int(units.counts[here].sum())
        freedom = many - len(np.unique(units.strata[here]))
        # A resample of this many groups has (many - 1) / many of the variance.
        spread = math.sqrt(many / freedom) if freedom else 1.0
        groups = Part(values.mean() + (values - values.mean()) * spread, freedom)
        (whole,) = side.values(total * mask[None])
        chosen = _seeds(len(whole), len(values), rng) if chosen is None else chosen
        seeds = (Part(chosen @ (whole - whole.mean()), len(whole) - 1),) if len(whole) > 1 else ()
        found[name] = Draws((groups,), seeds, side.limits)
    return found


def _seeds(seeds: int, size: int, rng: np.random.Generator) -> Array:
    """``[size, seeds]``: the weight of each seed in each resample."""
    if seeds == 1:
        return np.ones((size, 1))
    return rng.multinomial(seeds - 1, np.full(seeds, 1 / seeds), size=size) / (seeds - 1)


def _chunks(resamples: int, width: int) -> Iterator[int]:
    most = max(1, CHUNK // width)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)
