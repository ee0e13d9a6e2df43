"""Scores as functions of weights on the examples, for R weightings at once. Used by ``answers.py``.

``metrics.py`` computes the same scores with scikit-learn and scipy, and a test compares them. N examples, C classes.
"""

import numpy as np

Array = np.ndarray
CONSTANT = 1e-12
"""Below this, the variance of values that span 1 is rounding."""


def of_classes(name: str, position: int, true: Array, said: Array, both: Array) -> Array:
    """A score ``[R]`` of classes from three marginals ``[R, C]``; edge cases as in ``metrics.py``."""
    if name == "accuracy":
        return ratio(both.sum(axis=1), true.sum(axis=1))
    if name == "matthews":  # Gorodkin 2004, equation 8, in marginals
        total, right = true.sum(axis=1), both.sum(axis=1)
        spread = (total**2 - (said**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1))
        return ratio(right * total - (true * said).sum(axis=1), np.sqrt(np.maximum(spread, 0)))
    f1 = ratio(2 * both, true + said)
    return f1[:, position] if name == "f1" else ratio(f1.sum(axis=1), ((true + said) > 0).sum(axis=1))


def correlation(name: str, labels: Array, predictions: Array, weights: Array) -> Array:
    """Pearson's or Spearman's correlation ``[R]``; 0 if either side is constant."""
    if alike(labels) or alike(predictions):
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


def alike(values: Array) -> bool:
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
