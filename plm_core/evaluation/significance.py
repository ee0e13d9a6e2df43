"""Whether two models differ significantly: intervals, paired tests, effect size, several tasks at once.

Groups of examples are drawn and swapped, because the paragraphs of one document are not independent.
``docs/explanation/gate-statistics.md`` defines every number and gives its source.

R resamples, S seeds, U kinds of groups, which are made of K distinct results.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import stdtr, stdtrit

from plm_core.evaluation.answers import Results, subset_masks

RESAMPLES, MOST = 10_000, 1_000_000
SEED = 20_260_101
TAIL = 10
"""With fewer draws beyond a point, they do not say how many of all possible ones are beyond it."""
EXACT_BELOW = 25
"""The number of discordant pairs from which McNemar's statistic follows chi squared well enough."""
CHUNK = 60_000
"""Weights in memory at once: half a megabyte stays in a core's cache, and the allocator does not return its pages."""
Array = np.ndarray


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

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
    """A score, or a difference, in R resamples: the sum of what each source of randomness contributes."""

    groups: tuple[Part, ...]
    """The contribution of the choice of groups, for each task."""
    seeds: tuple[Part, ...]
    """The contribution of the choice of each model's seeds, around 0."""
    limits: tuple[float, float]

    @property
    def total(self) -> Array:
        """``[R]``."""
        return np.sum([part.draws for part in (*self.groups, *self.seeds)], axis=0)

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the total (Satterthwaite 1946); 0 if nothing is known of a part."""
        parts = (*self.groups, *self.seeds)
        if not all(part.freedom for part in parts):
            return 0.0
        variances = np.array([np.var(part.draws) for part in parts])
        spread = float(np.sum(variances**2 / [part.freedom for part in parts]))
        return float(variances.sum()) ** 2 / spread if spread > 0 else math.inf

    def __sub__(self, other: "Draws") -> "Draws":
        pairs = zip(self.groups, other.groups, strict=True)
        paired = tuple(Part(first.draws - second.draws, min(first.freedom, second.freedom)) for first, second in pairs)
        seeds = (*self.seeds, *(replace(part, draws=-part.draws) for part in other.seeds))
        return Draws(paired, seeds, (self.limits[0] - other.limits[1], self.limits[1] - other.limits[0]))


def mean(several: Sequence[Draws]) -> Draws:
    """The plain mean of independent scores: each was resampled separately, so this is a stratified bootstrap."""

    def scaled(parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(replace(part, draws=part.draws / len(several)) for part in parts)

    groups, seeds = (scaled(part for draws in several for part in getattr(draws, of)) for of in ("groups", "seeds"))
    low, high = np.mean([draws.limits for draws in several], axis=0)
    return Draws(groups, seeds, (float(low), float(high)))


def generator(seed: int = SEED) -> np.random.Generator:
    """The source of randomness of one comparison or decision."""
    return np.random.default_rng(seed)


def bootstrap(sides: Sequence[Results], rng: np.random.Generator, resamples: int = RESAMPLES) -> list[dict[str, Draws]]:
    """The scores of each side by subset ("" is the whole set) in ``resamples`` resamples of the groups of examples, the
    same for all sides.

    Groups are drawn within their subset, those of subsets that share groups together. Each side's seeds are drawn
    separately, after the Multi-Bootstrap (Sellam et al. 2022): a resample is the mean over all seeds on the examples
    drawn, plus the difference between the seeds drawn and that mean on all examples.
    """
    units = units_of(sides)
    # The choice of groups, drawn as how often each kind occurs: the cost depends on the kinds, not on the examples.
    scores: list[dict[str, list[Array]]] = [{name: [] for name in subset_masks(side)} for side in units.cells]
    for size in _chunks(resamples, max(units.rows.shape)):
        drawn = np.zeros((size, len(units.counts)))
        for stratum in np.unique(units.strata):
            members = units.strata == stratum
            total = int(units.counts[members].sum())
            drawn[:, members] = rng.multinomial(total, units.counts[members] / total, size=size)
        weights = drawn @ units.rows
        for side, sums in zip(units.cells, scores, strict=True):
            for name, mask in subset_masks(side).items():
                counted = weights * mask
                # If no group of a subset was drawn, it has no score; below it gets the mean of the others.
                sums[name].append(np.where(counted.any(axis=1), side.values(counted).mean(axis=1), np.nan))
    everything = units.counts @ units.rows
    draws = []
    for side, sums in zip(units.cells, scores, strict=True):
        # The choice of seeds: of S, S - 1 are drawn, because S would understate their variance (Rao and Wu 1988).
        S = side.values(everything[None]).shape[1]
        chosen = rng.multinomial(S - 1, np.full(S, 1 / S), size=resamples) / (S - 1) if S > 1 else None
        by_subset = {}
        for name, mask in subset_masks(side).items():
            values = np.concatenate(sums[name])
            values = np.where(np.isnan(values), np.nanmean(values), values)
            members = units.rows @ mask > 0
            many = int(units.counts[members].sum())
            freedom = many - len(np.unique(units.strata[members]))
            # A resample of this many groups has (many - 1) / many of the variance.
            spread = math.sqrt(many / freedom) if freedom else 1.0
            groups = Part(values.mean() + (values - values.mean()) * spread, freedom)
            (whole,) = side.values(everything * mask[None])
            seeds = () if chosen is None else (Part(chosen @ (whole - whole.mean()), S - 1),)
            by_subset[name] = Draws((groups,), seeds, side.limits)
        draws.append(by_subset)
    return draws


def interval(draws: Draws, level: float = 0.95) -> Interval:
    """The percentile interval that holds ``level`` of the draws, within the limits of the value; for a single group it
    is these limits. Few groups or seeds widen it by Student's t (Hesterberg 2015). At a level at which fewer than
    ``TAIL`` draws lie beyond an end, it reaches at least as far as Student's t times their standard deviation."""
    freedom = draws.freedom
    if not freedom:
        return Interval(*draws.limits)
    values = draws.total
    middle = values.mean()
    t = stdtrit(freedom, (1 + level) / 2)
    wider = t / stdtrit(math.inf, (1 + level) / 2)
    ends = middle + (np.quantile(values, [(1 - level) / 2, (1 + level) / 2]) - middle) * wider
    if (1 - level) / 2 * len(values) < TAIL:
        reach = t * values.std()
        ends = np.array([min(ends[0], middle - reach), max(ends[1], middle + reach)])
    low, high = np.clip(ends, *draws.limits)
    return Interval(float(low), float(high))


def interval_of(results: Results, resamples: int = RESAMPLES) -> Interval:
    """The 95 % interval of one model's score."""
    (draws,) = bootstrap([results], generator(), resamples)
    return interval(draws[""])


def permutation(
    pairs: Sequence[tuple[Results, Results]],
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    level: float = 1.0,
) -> float:
    """The two-sided p-value of the mean difference over tasks, if chance decided which model gave which answer.

    ``pairs`` has the two models' results on each task. On each group of examples their answers are swapped by a fair
    coin, all seeds together, so it holds for these seeds only (Dror et al. 2018, section 3.2); p counts the data
    themselves once (Phipson and Smyth 2010). While fewer than ``TAIL`` draws are as extreme as the data, up to
    ``TAIL / level``, or ``MOST``, are drawn in all, so that p can be compared with ``level``; p of equal models is
    still no more often below a level than that level says (Besag and Clifford 1991).
    """
    seen = 0.0
    tasks = []
    for left, right in pairs:
        units = units_of([left, right])
        first, second = units.cells
        both = first.joined(cast(Any, second))  # of one kind
        counts = units.counts @ units.rows
        seen += _difference(both, counts[None], 0 * counts[None])[0] / len(pairs)
        tasks.append((both, units, counts))
    wanted = min(math.ceil(TAIL / level), MOST)
    drawn = beyond = 0
    more = resamples
    while more > 0:
        differences = np.zeros(more)
        for both, units, counts in tasks:
            parts = []
            for size in _chunks(more, 2 * max(units.rows.shape)):
                # Of the groups of a kind, which are interchangeable, only the number that is swapped matters.
                swapped = rng.binomial(units.counts, 0.5, size=(size, len(units.counts))) @ units.rows
                parts.append(_difference(both, counts - swapped, swapped))
            differences += np.concatenate(parts) / len(pairs)
        # Rounding must not make an equal difference smaller.
        beyond += int(np.sum(np.abs(differences) >= abs(seen) - 1e-12))
        drawn += more
        more = min(9 * drawn, wanted - drawn) if beyond < TAIL else 0
    return (1 + beyond) / (drawn + 1)


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's two-sided p-value, from the numbers of examples on which only one of the models is right: exact
    (binomial) below ``EXACT_BELOW``, otherwise chi squared with continuity correction (Edwards 1948)."""
    total = only_first + only_second
    if total < EXACT_BELOW:
        return min(1.0, 2 * sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1)) / 2**total)
    statistic = max(abs(only_first - only_second) - 1, 0) ** 2 / total
    return math.erfc(math.sqrt(statistic / 2))


def wilson(share: float, count: int, level: float = 0.95) -> Interval:
    """The score interval of a share of ``count`` trials, also for few trials and shares of 0 and 1 (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def bootstrap_p(difference: Draws) -> float:
    """The two-sided p-value: one minus the level at which the interval of these draws just touches 0."""
    draws, freedom = difference.total, difference.freedom
    beyond = min(np.sum(draws <= 0), np.sum(draws >= 0))
    one_side = min(0.5, (1 + beyond) / (len(draws) + 1))
    return float(2 * stdtr(freedom, stdtrit(math.inf, one_side))) if freedom else 1.0


def effect(first: Results, second: Results) -> float:
    """Cohen's g, in [-0.5, 0.5]: among the examples on which one model is better (``Results.advantage``), the share on
    which it is the second, minus one half; 0 if no example tells them apart."""
    wins = np.sign(second.advantage(cast(Any, first)))
    decided = np.count_nonzero(wins)
    return float(np.sum(wins > 0) / decided - 0.5) if decided else 0.0


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
    swapped, back = np.concatenate([first, second], axis=1), np.concatenate([second, first], axis=1)
    return both.values(swapped.astype(np.float64)).mean(axis=1) - both.values(back.astype(np.float64)).mean(axis=1)


def _chunks(resamples: int, width: int) -> Iterator[int]:
    most = max(1, CHUNK // width)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


@dataclass(frozen=True)
class Units:
    """U kinds of groups, made of K distinct results."""

    cells: list[Results]
    """The K results of each side."""
    rows: csr_array
    """``[U, K]``: how many examples of a group have each result."""
    counts: Array
    """``[U]``: how many groups are of each kind."""
    strata: Array
    """``[U]``: groups with the same number are drawn together: they are in one subset, or in several that share
    groups."""


def units_of(sides: Sequence[Results]) -> Units:
    """The distinct results and the distinct groups of them.

    If the sides have different groups, the larger groups are used.
    """
    columns = np.vstack([sides[0].strata, *(side.columns for side in sides)])
    _, first, cell = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    groups = min((side.groups for side in sides), key=lambda names: len(np.unique(names)))
    order = np.lexsort((cell, groups))
    by_group = np.split(cell[order], np.flatnonzero(np.diff(groups[order])) + 1)
    kinds, counts = zip(*sorted(Counter(tuple(cells.tolist()) for cells in by_group).items()), strict=True)
    ends = np.cumsum([0, *map(len, kinds)])
    rows = csr_array((np.ones(ends[-1]), np.concatenate(kinds), ends), shape=(len(kinds), len(first)))
    rows.sum_duplicates()
    # Subsets that share groups, directly or through other subsets, get the same number.
    units, cells = rows.nonzero()
    subsets = sides[0].strata[first]
    size = rows.shape[0] + int(subsets.max()) + 1
    edges = (np.ones(len(units)), (units, rows.shape[0] + subsets[cells]))
    strata = connected_components(coo_array(edges, shape=(size, size)), directed=False)[1][: rows.shape[0]]
    return Units([side.take(first) for side in sides], rows, np.array(counts), strata)
