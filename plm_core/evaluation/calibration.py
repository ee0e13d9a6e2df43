"""Does a model know when it is wrong? Used by the report.

Expected calibration error (Guo et al. 2017, "On Calibration of Modern Neural Networks", section 2), by bins of about
the same number of answers (Nixon et al. 2019, "Measuring Calibration in Deep Learning", section 3): most bins of equal
width would hold few answers, whose noise adds to the error (Roelofs et al. 2022).

S seeds, N examples, M bins.
"""

from dataclasses import dataclass

import numpy as np

BINS, LEAST = 10, 20
"""At most this many bins, with on average at least this many answers each."""
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the confidences of answers compare with how often the answers are right."""

    accuracy: float
    confidence: float
    """The mean confidence; if it exceeds the accuracy, the model is overconfident."""
    error: float
    """The distance between a bin's accuracy and its mean confidence, averaged over bins, weighted by their sizes."""
    brier: float
    """The mean of (confidence - 1 if right, else 0)^2, from 0 to 1; 0 is best (Brier 1950)."""


def calibration(confidences: Array, right: Array) -> Calibration:
    """The calibration of each seed's answers ``[S, N]``, all with a confidence; the mean over seeds.

    Seeds are not pooled: an overconfident and an underconfident one would cancel out.
    """
    errors = []
    for sure, correct in zip(confidences, right, strict=True):
        counts, means, shares = bins(sure, correct)
        errors.append(float(counts @ np.abs(shares - means)) / len(sure))
    return Calibration(
        accuracy=float(right.mean()),
        confidence=float(confidences.mean()),
        error=float(np.mean(errors)),
        brier=float(np.square(confidences - right).mean()),
    )


def bins(confidences: Array, right: Array) -> tuple[Array, Array, Array]:
    """Bin answers ``[N]`` by rising confidence: their number, mean confidence and share that is right, each ``[M]``.

    Equal confidences are in one bin.
    """
    count = min(BINS, max(1, len(confidences) // LEAST))
    edges = np.unique(np.quantile(confidences, np.arange(1, count) / count, method="inverted_cdf"))
    _, place = np.unique(np.searchsorted(edges, confidences, side="left"), return_inverse=True)
    counts = np.bincount(place)
    return counts, np.bincount(place, confidences) / counts, np.bincount(place, right) / counts
