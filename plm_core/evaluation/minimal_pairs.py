"""Which text of a minimal pair a model finds likelier, as evidence. Used by minimal-pairs and text-baseline.

A model is asked by the likelihood that its objective has: a causal model by the chain rule, a permutation model in the
order of reading, a masked model by its pseudo-log-likelihood (Salazar et al. 2020, "Masked Language Model Scoring",
section 3.4), each summed over the whole text (Warstadt et al. 2020, section 5). Nobody is fine-tuned. Where both are
equally likely, the answer is half right: a tie that counts as right rewards a model that knows nothing.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from plm_core.benchmarks.pairs import Pair
from plm_core.evaluation.spans import BAD, GOOD, TIE
from plm_core.sections.evaluation import LikelihoodConfig

SCORE = "pair_accuracy"
SEED = 0
"""Nothing is drawn: the one file of a set is that of no seed."""
ROUNDING = 1e-9
"""Likelihoods that differ relatively by less are the same sum in another order."""
MOST = 700.0
"""Nats beyond which the exponential of a difference is no number."""


def file_of(name: str) -> str:
    """The evidence file of the set ``name``."""
    return f"{name}.{SEED}.csv"


def rows(
    pairs: Sequence[Pair], nats: Iterable[tuple[float, float]], config: LikelihoodConfig
) -> Iterator[tuple[object, ...]]:
    """The evidence, a row a pair, from -log p of its good and of its bad text in nats.

    The confidence is the share of the text chosen in the sum of both likelihoods.
    """
    for pair, (good, bad) in zip(pairs, nats, strict=True):
        tie = math.isclose(good, bad, rel_tol=ROUNDING)
        answer = TIE if tie else GOOD if good < bad else BAD
        confidence = 1 / (1 + math.exp(-min(abs(good - bad), MOST)))
        yield pair.id, pair.sha256, pair.group, pair.paradigm, GOOD, answer, confidence, SCORE, config.measured
