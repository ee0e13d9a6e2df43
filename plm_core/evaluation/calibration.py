"""Does a model know when it is wrong? Used by the report.

Expected calibration error: the answers are binned by confidence, and the error is the distance between a bin's accuracy
and its mean confidence, the mean over bins weighed by their sizes (Guo et al. 2017, "On Calibration of Modern Neural
Networks", section 2, "Expected Calibration Error").

Bins hold about as many answers each (as those of Nixon et al. 2019, "Measuring Calibration in Deep Learning", section
3), not equal widths of confidence as in Guo et al.: a fine-tuned model is sure of most answers, so that most equal
widths would hold few of them, and a bin of few answers adds its noise to the error (Roelofs et al. 2022, "Mitigating
Bias in Calibration Error Estimation", find less bias with equal masses). What noise remains makes the error of a
perfectly calibrated model larger than 0: with 20 answers a bin of confidence 0.8, about 0.07; with 100, about 0.03.

S seeds, N examples, M bins.
"""

from dataclasses import dataclass

import numpy as np

BINS, LEAST = 10, 20
"""At most so many bins, and on average at least so many answers in one."""
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the confidences of answers compare to how often they are right."""

    accuracy: float
    confidence: float
    """The mean confidence: above the accuracy, the model is too sure of itself."""
    error: float
    """The expected calibration error, from 0 to 1; 0 is best."""
    brier: float
    """The mean of (confidence - 1 if right, else 0)^2, from 0 to 1; 0 is best (Brier 1950, "Verification of Forecasts
    Expressed in Terms of Probability", for the two outcomes right and wrong)."""


def calibration(confidences: Array, right: Array) -> Calibration:
    """The calibration of each seed's answers ``[S, N]``, the mean over seeds.

    Seeds are not pooled: one that is too sure and one that is not sure enough would make up for each other.

    Raises:
        ValueError: there is no answer, or one without a confidence.
    """
    if not confidences.size or np.isnan(confidences).any():
        raise ValueError(f"confidences: {np.isnan(confidences).sum()} of {confidences.size} missing; expected all")
    errors = []
    for sure, true in zip(confidences, right, strict=True):
        counts, means, shares = bins(sure, true)
        errors.append(float(counts @ np.abs(shares - means)) / len(sure))
    return Calibration(
        accuracy=float(right.mean()),
        confidence=float(confidences.mean()),
        error=float(np.mean(errors)),
        brier=float(np.square(confidences - right).mean()),
    )


def bins(confidences: Array, right: Array) -> tuple[Array, Array, Array]:
    """Bins of rising confidence, of answers ``[N]``: how many, their mean confidence, the share that is right, ``[M]``.

    Equal confidences are in one bin.
    """
    count = min(BINS, max(1, len(confidences) // LEAST))
    edges = np.unique(np.quantile(confidences, np.arange(1, count) / count, method="inverted_cdf"))
    _, place = np.unique(np.searchsorted(edges, confidences, side="left"), return_inverse=True)
    counts = np.bincount(place)
    return counts, np.bincount(place, confidences) / counts, np.bincount(place, right) / counts
