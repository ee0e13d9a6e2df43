"""Which text of a minimal pair is more likely under a model, as evidence. Used by minimal-pairs and text-baseline.

A model is judged by the likelihood that fits its objective, summed over the whole text (Warstadt et al. 2020, section
5; a masked model's: Salazar et al. 2020, section 3.4). If both texts are equally likely, the answer counts half.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from plm_core.benchmarks.pair_sets import Pair
from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.example_counts import BAD, GOOD, TIE

SCORE = "pair_accuracy"
SEED = 0
"""Nothing is random, so each set has one file, of seed 0."""
ROUNDING = 1e-9
"""A smaller relative difference of likelihoods comes only from the order of summation."""
MOST = 700.0
"""Nats beyond which the exponential of a difference overflows."""


def file_of(name: str) -> str:
    """The evidence file of the set ``name``."""
    return f"{name}.{SEED}.csv"


def pair_rows(
    pairs: Sequence[Pair], nats: Iterable[tuple[float, float]], config: LikelihoodConfig
) -> Iterator[tuple[object, ...]]:
    """The evidence, one row per pair, from -log p of its good and its bad text in nats.

    The confidence is the likelihood of the chosen text, divided by the sum of both.
    """
    for pair, (good, bad) in zip(pairs, nats, strict=True):
        tie = math.isclose(good, bad, rel_tol=ROUNDING)
        answer = TIE if tie else GOOD if good < bad else BAD
        confidence = 1 / (1 + math.exp(-min(abs(good - bad), MOST)))
        yield pair.id, pair.sha256, pair.group, pair.paradigm, GOOD, answer, confidence, SCORE, config.measured
