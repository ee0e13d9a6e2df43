"""What a model answered to held-out examples, and its score on any weighting of them.

Used by ``evidence.py`` and ``significance.py``: resampling needs a score thousands of times. Each here is a function of
weights on the examples, for R weightings at once; ``metrics.py`` has the same scores by scikit-learn and scipy, and a
test compares them.

R weightings, N examples, S seeds, C classes, P parts of a score.

A score is written ``accuracy``, ``macro_f1``, ``matthews``, ``f1:<class>``, ``pearson``, ``spearman``, ``entity_f1``,
``exact_match`` or ``answer_f1``, or as the plain mean of several of one family: ``accuracy+f1:equivalent``,
``pearson+spearman``, ``exact_match+answer_f1``.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

OF_CLASSES = ("accuracy", "f1", "macro_f1", "matthews")
OF_NUMBERS = ("pearson", "spearman")
OF_TAGS = ("entity_f1",)
OF_TEXTS = ("exact_match", "answer_f1")
FAMILIES = {"classes": OF_CLASSES, "numbers": OF_NUMBERS, "tags": OF_TAGS, "texts": OF_TEXTS}
"""The scores by what they are of."""
_FAMILY_OF = {name: of for of, names in FAMILIES.items() for name in names}
Array = np.ndarray
CONSTANT = 1e-12
"""A variance below this, of what spans 1, is rounding."""


def parts_of(score: str) -> list[tuple[str, str]]:
    """``accuracy+f1:equivalent`` as ``[("accuracy", ""), ("f1", "equivalent")]``.

    Raises:
        ValueError: a part is unknown, F1 names no class, or scores of several families are mixed.
    """
    parts = [(name, of) for name, _, of in (part.partition(":") for part in score.split("+"))]
    for name, of in parts:
        if name not in _FAMILY_OF or (name == "f1") != bool(of):
            known = ", ".join("f1:<class>" if each == "f1" else each for each in _FAMILY_OF)
            raise ValueError(f"score: found {score!r}; expected {known} or several of them, joined with +")
    if len({_FAMILY_OF[name] for name, _ in parts}) > 1:
        raise ValueError(f"score: found {score!r}; expected scores of one family: {', '.join(FAMILIES)}")
    return parts


def family(score: str) -> str:
    """What the score is of: the name in ``FAMILIES``.

    Raises:
        ValueError: it is unknown.
    """
    return _FAMILY_OF[parts_of(score)[0][0]]


def of_numbers(score: str) -> bool:
    """Whether the score is of numbers; ValueError for one that is unknown."""
    return family(score) == "numbers"


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of S fine-tunings of one model to the N examples of a task."""

    score: str
    labels: Array
    """``[N]``: class ids, or numbers."""
    predictions: Array
    """``[S, N]``, alike."""
    strata: Array
    """``[N]``: the number of each example's subset in ``subsets``."""
    classes: tuple[str, ...] = ()
    """Of which the ids are positions; () for numbers."""
    subsets: tuple[str, ...] = ("",)

    @cached_property
    def columns(self) -> Array:
        """``[1 + S, N]``: examples with equal columns may be counted together."""
        return np.vstack([self.labels, self.predictions]).astype(np.float64)

    def take(self, chosen: Array) -> Self:
        """The examples at these positions."""
        return replace(
            self, labels=self.labels[chosen], predictions=self.predictions[:, chosen], strata=self.strata[chosen]
        )

    def joined(self, other: Self) -> Self:
        """This model's answers, and behind them the other's to the same examples.

        Where they have different numbers of seeds, each is repeated until they have as many: a mean over seeds is the
        same.
        """
        classes = tuple(sorted({*self.classes, *other.classes}))
        one, two = self._coded_by(classes), other._coded_by(classes)
        sides = _as_many(one.predictions, two.predictions)
        return replace(
            one,
            labels=np.concatenate([one.labels, two.labels]),
            predictions=np.concatenate(sides, axis=1),
            strata=np.concatenate([one.strata, two.strata]),
        )

    def values(self, weights: Array) -> Array:
        """The score ``[R, S]`` of each seed, the examples counted by ``weights`` ``[R, N]``."""
        parts = parts_of(self.score)
        if of_numbers(self.score):
            found = [[_correlation(name, self.labels, p, weights) for p in self.predictions] for name, _ in parts]
        else:
            marginals = [self._marginals(p, weights) for p in self.predictions]
            at = {name: i for i, name in enumerate(self.classes)}
            found = [[_of_classes(name, at[of] if of else -1, *m) for m in marginals] for name, of in parts]
        return np.mean(found, axis=0).T

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 where this model's answer is better: more seeds right, or nearer to the number."""
        return self._quality() - other._quality()

    def right(self) -> Array:
        """``[S, N]``: whether the class is the right one."""
        return self.predictions == self.labels

    def _coded_by(self, classes: tuple[str, ...]) -> Self:
        """The same, with these classes, among which are its own."""
        if classes == self.classes:
            return self
        ids = np.array([classes.index(name) for name in self.classes])
        return replace(self, labels=ids[self.labels], predictions=ids[self.predictions], classes=classes)

    def _quality(self) -> Array:
        if of_numbers(self.score):
            return -np.abs(self.predictions - self.labels).mean(axis=0)
        return self.right().mean(axis=0)

    def _marginals(self, predictions: Array, weights: Array) -> tuple[Array, Array, Array]:
        """How often each class is true, predicted, and both: three times ``[R, C]``."""
        ids = np.arange(len(self.classes))
        true = self.labels[:, None] == ids
        said = predictions[:, None] == ids
        return weights @ true.astype(np.float64), weights @ said.astype(np.float64), weights @ (true & said)


@dataclass(frozen=True, eq=False)
class Ratios:
    """The answers of S fine-tunings to N examples, by a score whose P parts are ratios of sums over the examples.

    The F1 of entities is 2 right / (answered + true); a mean, as of exact matches, has 1 a example below.
    """

    score: str
    above: Array
    """``[P, S, N]``."""
    below: Array
    """``[P, S, N]``; none is less than above."""
    strata: Array
    """``[N]``: the number of each example's subset in ``subsets``."""
    subsets: tuple[str, ...] = ("",)

    @property
    def columns(self) -> Array:
        """``[2 P S, N]``."""
        return np.concatenate([self.above, self.below]).reshape(-1, len(self.strata))

    def take(self, chosen: Array) -> Self:
        """The examples at these positions."""
        return replace(self, above=self.above[..., chosen], below=self.below[..., chosen], strata=self.strata[chosen])

    def joined(self, other: Self) -> Self:
        """This model's answers, and behind them the other's; seeds as in ``Answers.joined``."""
        above, below = (
            np.stack([np.concatenate(_as_many(*part), axis=1) for part in zip(one, two, strict=True)])
            for one, two in ((self.above, other.above), (self.below, other.below))
        )
        return replace(self, above=above, below=below, strata=np.concatenate([self.strata, other.strata]))

    def values(self, weights: Array) -> Array:
        """The score ``[R, S]`` of each seed, the examples counted by ``weights`` ``[R, N]``."""
        parts = zip(self.above, self.below, strict=True)
        return np.mean([_ratio(weights @ above.T, weights @ below.T) for above, below in parts], axis=0)

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 where this model's answer is better: less is lacking to a ratio of 1, over all seeds."""
        ours, theirs = ((side.below - side.above).mean(axis=1).sum(axis=0) for side in (self, other))
        return theirs - ours

    def right(self) -> Array:
        """``[S, N]``: whether the whole answer is the right one."""
        return (self.above == self.below).all(axis=0)


@dataclass(frozen=True, eq=False)
class Sums:
    """The likelihood of N documents: bits a byte are the ratio of two sums. A model has one; lower is better."""

    nats: Array
    """``[N]``."""
    bytes: Array
    """``[N]``."""
    subsets: tuple[str, ...] = ("",)

    @property
    def strata(self) -> Array:
        """``[N]``: documents have no subsets."""
        return np.zeros(len(self.nats), dtype=np.int64)

    @property
    def columns(self) -> Array:
        """``[2, N]``."""
        return np.vstack([self.nats, self.bytes])

    def take(self, chosen: Array) -> Self:
        """The documents at these positions."""
        return replace(self, nats=self.nats[chosen], bytes=self.bytes[chosen])

    def joined(self, other: Self) -> Self:
        """These documents, and behind them the other's."""
        return replace(
            self, nats=np.concatenate([self.nats, other.nats]), bytes=np.concatenate([self.bytes, other.bytes])
        )

    def values(self, weights: Array) -> Array:
        """Bits a byte ``[R, 1]``, the documents counted by ``weights`` ``[R, N]``."""
        return ((weights @ self.nats) / np.log(2) / (weights @ self.bytes))[:, None]

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 where this model is less surprised."""
        return other.nats - self.nats


Results = Answers | Ratios | Sums


def score_by_subset(results: Results) -> dict[str, float]:
    """The score of the whole set (""), and of each named subset: the mean over seeds."""
    every = np.ones((1, len(results.strata)))
    return {name: float(results.values(every * mask).mean()) for name, mask in masks(results).items()}


def masks(results: Results) -> dict[str, Array]:
    """By name, which examples count: for the whole set (""), and for each named subset."""
    named = {name: (results.strata == i).astype(np.float64) for i, name in enumerate(results.subsets) if name}
    return {"": np.ones(len(results.strata)), **named}


def _of_classes(name: str, position: int, true: Array, said: Array, both: Array) -> Array:
    """A score ``[R]`` of classes from three marginals ``[R, C]``; the edge cases are those of ``metrics.py``."""
    if name == "accuracy":
        return _ratio(both.sum(axis=1), true.sum(axis=1))
    if name == "matthews":  # Gorodkin 2004, equation 8, in marginals
        total, right = true.sum(axis=1), both.sum(axis=1)
        spread = (total**2 - (said**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1))
        return _ratio(right * total - (true * said).sum(axis=1), np.sqrt(np.maximum(spread, 0)))
    f1 = _ratio(2 * both, true + said)
    return f1[:, position] if name == "f1" else _ratio(f1.sum(axis=1), ((true + said) > 0).sum(axis=1))


def _correlation(name: str, labels: Array, predictions: Array, weights: Array) -> Array:
    """Pearson's or Spearman's correlation ``[R]``; 0 where either side is constant."""
    if min(np.ptp(labels), np.ptp(predictions)) == 0:
        return np.zeros(len(weights))
    total = weights.sum(axis=1)
    if name == "spearman":
        middle = (total[:, None] + 1) / 2
        x, y = _ranks(labels, weights) - middle, _ranks(predictions, weights) - middle
        counted = weights * x
        both, own_x = np.einsum("rn,rn->r", counted, y), np.einsum("rn,rn->r", counted, x)
        own_y = np.einsum("rn,rn,rn->r", weights, y, y)
        most = total**2
    else:
        x, y = (labels - labels.mean()) / np.ptp(labels), (predictions - predictions.mean()) / np.ptp(predictions)
        mean_x, mean_y, xx, yy, xy = _ratio(weights @ np.stack([x, y, x * x, y * y, x * y], 1), total[:, None]).T
        both = xy - mean_x * mean_y
        own_x = xx - mean_x**2
        own_y = yy - mean_y**2
        most = np.ones(1)
    constant = np.minimum(own_x, own_y) <= CONSTANT * most
    return np.clip(_ratio(both, np.sqrt(np.where(constant, 0.0, own_x * own_y))), -1.0, 1.0)


def _ranks(side: Array, weights: Array) -> Array:
    """The mean ranks ``[R, N]`` that each example has where it stands so often in the set as its weight says."""
    _, group = np.unique(side, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(sizes, axis=1) - sizes / 2 + 0.5)[:, group]


def _as_many(one: Array, two: Array) -> list[Array]:
    """Both ``[S, N]`` with as many seeds, each repeated until they have."""
    seeds = np.lcm(len(one), len(two))
    return [np.tile(side, (seeds // len(side), 1)) for side in (one, two)]


def _ratio(above: Array, below: Array) -> Array:
    """Above / below, and 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast_shapes(above.shape, below.shape)), where=below > 0)
