"""A model's answers to held-out examples, and its score under any weighting of them, which resampling computes
thousands of times.

R weightings, N examples, S seeds, C classes, P parts of a score. Examples of one group (from one document, or with a
text in common) are not independent observations; results know the group of each example.

A score is written ``accuracy``, ``macro_f1``, ``matthews``, ``f1:<class>``, ``pearson``, ``spearman``, ``entity_f1``,
``exact_match``, ``answer_f1``, ``bleu``, ``chrf``, ``rouge1``, ``rouge2``, ``rougeL``, ``pair_accuracy``,
``ndcg_at_10``, ``mrr_at_10`` or ``recall_at_10``, or as the mean of several of a family: ``accuracy+f1:equivalent``.
No score is ever NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

FAMILIES = {
    "classes": ("accuracy", "f1", "macro_f1", "matthews"),
    "numbers": ("pearson", "spearman"),
    "tags": ("entity_f1",),
    "texts": ("exact_match", "answer_f1"),
    "translations": ("bleu", "chrf"),
    "summaries": ("rouge1", "rouge2", "rougeL"),
    "pairs": ("pair_accuracy",),
    "ranks": ("ndcg_at_10", "mrr_at_10", "recall_at_10"),
}
"""The scores by the kind of answer that they measure."""
_FAMILY_OF = {name: of for of, names in FAMILIES.items() for name in names}
Array = np.ndarray
STATISTICS = {"bleu": 10, "chrf": 18}
"""How many statistics of a translation these scores are computed from."""
SIGNED = {"matthews", "pearson", "spearman"}
CONSTANT = 1e-12
"""Below this, the variance of values that span 1 is rounding error."""


def parts_of(score: str) -> list[tuple[str, str]]:
    """``accuracy+f1:equivalent`` as ``[("accuracy", ""), ("f1", "equivalent")]``.

    Raises:
        ValueError: a part is unknown, F1 names no class, or scores of several families are mixed.
    """
    parts = [(name, of) for name, _, of in (part.partition(":") for part in score.split("+"))]
    for name, of in parts:
        if name not in _FAMILY_OF or (name == "f1") != bool(of):
            names = ", ".join("f1:<class>" if kind == "f1" else kind for kind in _FAMILY_OF)
            raise ValueError(f"score: found {score!r}; expected {names} or several of them, joined with +")
    if len({_FAMILY_OF[name] for name, _ in parts}) > 1:
        raise ValueError(f"score: found {score!r}; expected scores of one family: {', '.join(FAMILIES)}")
    return parts


def family(score: str) -> str:
    """The kind of answer that the score measures: a name in ``FAMILIES``.

    Raises:
        ValueError: it is unknown.
    """
    return _FAMILY_OF[parts_of(score)[0][0]]


def is_numeric_score(score: str) -> bool:
    """Whether the score measures numbers; ValueError if it is unknown."""
    return family(score) == "numbers"


@dataclass(frozen=True, eq=False)
class Examples:
    """What all results of N examples have in common."""

    arrays: ClassVar[tuple[str, ...]]
    """The fields whose last axis is N; in those of several axes the one before it is S."""

    def take(self, chosen: Array) -> Self:
        """The examples at these positions."""
        return replace(self, **{name: getattr(self, name)[..., chosen] for name in self.arrays})

    def joined(self, other: Self) -> Self:
        """This model's results, followed by the other's of the same examples.

        If they have different numbers of seeds, both are repeated up to a common number: a mean over seeds stays the
        same.
        """
        fields = {}
        for name in self.arrays:
            sides = [getattr(self, name), getattr(other, name)]
            if sides[0].ndim > 1:
                seeds = np.lcm(*(side.shape[-2] for side in sides))
                sides = [np.concatenate([side] * (seeds // side.shape[-2]), axis=-2) for side in sides]
            fields[name] = np.concatenate(sides, axis=-1)
        return replace(self, **fields)


@dataclass(frozen=True, eq=False)
class Answers(Examples):
    """The answers of S fine-tuning runs of one model to the N examples of a task."""

    score: str
    labels: Array
    """``[N]``: class ids, or numbers."""
    predictions: Array
    """``[S, N]``, likewise."""
    strata: Array
    """``[N]``: the number of each example's subset in ``subsets``."""
    classes: tuple[str, ...]
    """The class names, of which ids are positions; () for numbers."""
    subsets: tuple[str, ...]
    groups: Array
    """``[N]``: the number of each example's group."""

    arrays = ("labels", "predictions", "strata", "groups")

    @property
    def limits(self) -> tuple[float, float]:
        return -1.0 if {name for name, _ in parts_of(self.score)} & SIGNED else 0.0, 1.0

    @cached_property
    def columns(self) -> Array:
        """``[1 + S, N]``: examples with equal columns may be counted together."""
        return np.vstack([self.labels, self.predictions]).astype(np.float64)

    def joined(self, other: Self) -> Self:
        classes = tuple(sorted({*self.classes, *other.classes}))
        sides = []
        for side in (self, other):
            ids = np.array([classes.index(name) for name in side.classes])
            coded = {"labels": ids[side.labels], "predictions": ids[side.predictions]} if classes else {}
            sides.append(replace(side, classes=classes, **coded))
        return super(Answers, sides[0]).joined(sides[1])

    def values(self, weights: Array) -> Array:
        """The score ``[R, S]`` of each seed, the examples counted by ``weights`` ``[R, N]``."""
        parts = parts_of(self.score)
        if is_numeric_score(self.score):
            scores = [[correlation(name, self.labels, p, weights) for p in self.predictions] for name, _ in parts]
            return np.mean(scores, axis=0).T
        # Class scores depend only on how often each class is true, predicted, and both: three arrays [R, C].
        ids = np.arange(len(self.classes))
        gold = self.labels[:, None] == ids
        marginals = []
        for predictions in self.predictions:
            predicted = predictions[:, None] == ids
            marginals.append([weights @ counted.astype(np.float64) for counted in (gold, predicted, gold & predicted)])
        places = [(name, self.classes.index(of) if of else -1) for name, of in parts]
        return np.mean([[class_score(name, place, *sums) for sums in marginals] for name, place in places], axis=0).T

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 if this model's answer is better: more seeds right, or nearer to the number."""
        if is_numeric_score(self.score):
            ours, theirs = (-np.abs(side.predictions - side.labels).mean(axis=0) for side in (self, other))
        else:
            ours, theirs = (side.right().mean(axis=0) for side in (self, other))
        return ours - theirs

    def right(self) -> Array:
        """``[S, N]``: whether the class is the right one."""
        return self.predictions == self.labels


@dataclass(frozen=True, eq=False)
class Ratios(Examples):
    """The answers of S fine-tuning runs to N examples, with a score whose P parts are ratios of sums over the examples.

    The F1 of entities is 2 right / (answered + true); for a mean, such as that of exact matches, each denominator is 1.
    """

    score: str
    above: Array
    """``[P, S, N]``."""
    below: Array
    """``[P, S, N]``; never less than the number above."""
    strata: Array
    """``[N]``: the number of each example's subset in ``subsets``."""
    subsets: tuple[str, ...]
    groups: Array
    """``[N]``: the number of each example's group."""

    arrays = ("above", "below", "strata", "groups")
    limits = (0.0, 1.0)

    @property
    def columns(self) -> Array:
        """``[2 P S, N]``."""
        return np.concatenate([self.above, self.below]).reshape(-1, len(self.strata))

    def values(self, weights: Array) -> Array:
        """The score ``[R, S]`` of each seed, the examples counted by ``weights`` ``[R, N]``."""
        parts = zip(self.above, self.below, strict=True)
        return np.mean([ratio(weights @ above.T, weights @ below.T) for above, below in parts], axis=0)

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 if this model's answer is better: over all seeds, less is missing from a ratio of 1."""
        ours, theirs = ((side.below - side.above).mean(axis=1).sum(axis=0) for side in (self, other))
        return theirs - ours

    def right(self) -> Array:
        """``[S, N]``: whether the whole answer is the right one."""
        return (self.above == self.below).all(axis=0)


@dataclass(frozen=True, eq=False)
class Translations(Examples):
    """The translations of N texts by S fine-tuning runs, with scores of a whole corpus, which are not means over texts.

    They are computed from sums of K statistics of each text, so that they are exact under any weights.
    """

    score: str
    statistics: Array
    """``[K, S, N]``: those of each part of the score in turn, as ``bleu`` and ``chrf`` have them."""
    strata: Array
    """``[N]``: the number of each example's subset in ``subsets``."""
    subsets: tuple[str, ...]
    groups: Array
    """``[N]``: the number of each example's group."""

    arrays = ("statistics", "strata", "groups")
    limits = (0.0, 1.0)

    @property
    def columns(self) -> Array:
        """``[K S, N]``."""
        return self.statistics.reshape(-1, len(self.strata))

    def values(self, weights: Array) -> Array:
        """The score ``[R, S]`` of each seed, the examples counted by ``weights`` ``[R, N]``."""
        return self._scores(np.moveaxis((weights @ self.columns.T).reshape(-1, *self.statistics.shape[:2]), 1, 2))

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 if this model's translation is better: the mean over seeds of the text's own score."""
        ours, theirs = (side._scores(side.statistics.T, effective=True).mean(axis=1) for side in (self, other))
        return ours - theirs

    def right(self) -> Array:
        """``[S, N]``: whether the translation has the full score."""
        return self._scores(self.statistics.T, effective=True).T >= 1 - CONSTANT

    def _scores(self, sums: Array, effective: bool = False) -> Array:
        """The mean ``[...]`` of the parts of the score, from sums of statistics ``[..., K]``."""
        parts = [name for name, _ in parts_of(self.score)]
        pieces = np.split(sums, np.cumsum([STATISTICS[name] for name in parts])[:-1], axis=-1)
        scores = [bleu(s, effective) if name == "bleu" else chrf(s) for name, s in zip(parts, pieces, strict=True)]
        return np.mean(scores, axis=0)


@dataclass(frozen=True, eq=False)
class Sums(Examples):
    """The likelihood of N documents: bits per byte are the ratio of two sums. One per model, not S; lower is better."""

    nats: Array
    """``[N]``."""
    bytes: Array
    """``[N]``."""
    subsets: tuple[str, ...] = ("",)

    arrays = ("nats", "bytes")

    @property
    def groups(self) -> Array:
        """``[N]``: each document is a group of its own."""
        return np.arange(len(self.nats))

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest bits per byte that other such documents may have."""
        bits = self.nats[self.bytes > 0] / np.log(2) / self.bytes[self.bytes > 0]
        return 0.0, max(8.0, float(bits.max()))

    @property
    def strata(self) -> Array:
        return np.zeros(len(self.nats), dtype=np.int64)

    @property
    def columns(self) -> Array:
        """``[2, N]``."""
        return np.vstack([self.nats, self.bytes])

    def values(self, weights: Array) -> Array:
        """Bits per byte ``[R, 1]``, the documents counted by ``weights`` ``[R, N]``."""
        return ((weights @ self.nats) / np.log(2) / (weights @ self.bytes))[:, None]

    def advantage(self, other: Self) -> Array:
        """``[N]``: above 0 if the document is more likely under this model."""
        return other.nats - self.nats


Results = Answers | Ratios | Translations | Sums


def counted_results(score: str, counted: Sequence[Array], **whole: Any) -> Ratios | Translations:
    """The results of S seeds from what each adds to the score: numerators and denominators ``[2, P, N]`` or, of
    translations, statistics ``[K, N]``; ``whole`` are the other fields."""
    stacked = np.stack(counted, axis=-2)
    return Translations(score, stacked, **whole) if stacked.ndim == 3 else Ratios(score, *stacked, **whole)


def score_by_subset(results: Results) -> dict[str, float]:
    """The score of the whole set (""), and of each named subset that has one: the mean over seeds."""
    return {name: float(results.values(mask[None]).mean()) for name, mask in subset_masks(results).items()}


def subset_masks(results: Results) -> dict[str, Array]:
    """Which examples count, by name: for the whole set (""), and for each named subset that has a score."""
    named = {name: (results.strata == i).astype(np.float64) for i, name in enumerate(results.subsets) if name}
    return {"": np.ones(len(results.strata)), **{name: m for name, m in named.items() if has_score(results, m > 0)}}


def has_score(results: Results, members: Array) -> bool:
    """Whether these examples, ``[N]`` bool, have a score: a correlation needs different labels."""
    return not (isinstance(results, Answers) and is_numeric_score(results.score) and all_equal(results.labels[members]))


def class_score(name: str, position: int, gold: Array, predicted: Array, both: Array) -> Array:
    """A score ``[R]`` of classes from how often each is true, predicted, and both ``[R, C]``.

    ``f1`` is that of the class at ``position``, 0 if it is neither predicted nor true; ``macro_f1`` the plain mean over
    the classes that are predicted or true; ``matthews`` (Matthews 1975; Gorodkin 2004, equation 8) 0 if either side is
    constant.
    """
    if name == "accuracy":
        return ratio(both.sum(axis=1), gold.sum(axis=1))
    if name == "matthews":
        total, right = gold.sum(axis=1), both.sum(axis=1)
        spread = (total**2 - (predicted**2).sum(axis=1)) * (total**2 - (gold**2).sum(axis=1))
        return ratio(right * total - (gold * predicted).sum(axis=1), np.sqrt(np.maximum(spread, 0)))
    f1 = ratio(2 * both, gold + predicted)
    return f1[:, position] if name == "f1" else ratio(f1.sum(axis=1), ((gold + predicted) > 0).sum(axis=1))


def bleu(sums: Array, effective: bool = False) -> Array:
    """BLEU ``[...]`` from 0 to 1 (Papineni et al. 2002), from sums ``[..., 10]``: the lengths of the translation and of
    the nearest reference in tokens, and of n-grams of 1 to 4 tokens how many match, and how many there are.

    An order without a match is smoothed as in mteval-v13a (Chen and Cherry 2014, method 3). Without 4-grams it is 0;
    ``effective`` leaves out orders without n-grams, as one uses it for a single sentence.
    """
    length, wanted = sums[..., 0], sums[..., 1]
    matches = sums[..., 2:6]
    totals = sums[..., 6:]
    there = totals > 0
    without = there & (matches == 0)
    precision = ratio(np.where(without, 0.5 ** np.cumsum(without, axis=-1), matches), totals)
    orders = there.sum(axis=-1) if effective else np.full(length.shape, there.shape[-1])
    mean = np.log(np.where(there, precision, 1.0)).sum(axis=-1) / np.maximum(orders, 1)
    brevity = np.minimum(0.0, 1 - ratio(wanted, length))
    scored = matches.any(axis=-1) & (there.sum(axis=-1) == orders)
    return np.where(scored, np.exp(mean + brevity), 0.0)


def chrf(sums: Array) -> Array:
    """chrF2 ``[...]`` from 0 to 1 (Popović 2015), from sums ``[..., 18]``: of n-grams of 1 to 6 characters, how many
    the translation has, the reference has, and match. Orders that one of the two lacks are left out."""
    ours, theirs, matches = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    both = (ours > 0) & (theirs > 0)
    precision, recall = (ratio((ratio(matches, side) * both).sum(-1), both.sum(-1)) for side in (ours, theirs))
    return ratio(5 * precision * recall, 4 * precision + recall)


def correlation(name: str, labels: Array, predictions: Array, weights: Array) -> Array:
    """Pearson's or Spearman's correlation ``[R]``, ties by their mean rank; 0 if either side is constant."""
    if all_equal(labels) or all_equal(predictions):
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
        mean_x, mean_y, xx, yy, xy = ratio(weights @ np.stack([x, y, x * x, y * y, x * y], 1), total[:, None]).T
        both = xy - mean_x * mean_y
        own_x = xx - mean_x**2
        own_y = yy - mean_y**2
        most = np.ones(1)
    constant = np.minimum(own_x, own_y) <= CONSTANT * most
    return np.clip(ratio(both, np.sqrt(np.where(constant, 0.0, own_x * own_y))), -1.0, 1.0)


def all_equal(values: Array) -> bool:
    """Whether all values are equal."""
    return not (values != values[:1]).any()


def _ranks(side: Array, weights: Array) -> Array:
    """The mean rank ``[R, N]`` of each example if it occurs in the set as often as its weight says."""
    _, group = np.unique(side, return_inverse=True)
    order = np.argsort(group, kind="stable")
    lasts = np.flatnonzero(np.diff(group[order], append=-1))
    below = np.pad(np.cumsum(weights[:, order], axis=1)[:, lasts], ((0, 0), (1, 0)))
    return ((below[:, :-1] + below[:, 1:] + 1) / 2)[:, group]


def ratio(above: Array, below: Array) -> Array:
    """Above / below; 0 if below is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast_shapes(above.shape, below.shape)), where=below > 0)
