"""Classification metrics as `evaluate` modules that ship here: nothing is downloaded at run time.

Used by the finetune stage. Each is computed by scikit-learn; the edge cases are stated with each.
"""

import tempfile
from collections.abc import Sequence

import datasets
import evaluate
import numpy as np
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


class _Classification(evaluate.Metric):
    """A metric of predicted against true class ids (int64)."""

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions and references: class ids",
            features=datasets.Features({"predictions": label, "references": label}),
        )


class Accuracy(_Classification):
    """The share of correct predictions, in [0, 1]."""

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}


class MacroF1(_Classification):
    """The plain mean of each class's F1, in [0, 1]; a class that is neither predicted nor true does not count."""

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"macro_f1": float(f1_score(references, predictions, average="macro", zero_division=0.0))}


class Matthews(_Classification):
    """Matthews' correlation (Matthews 1975; Gorodkin 2004 for several classes), in [-1, 1]; constant predictions: 0."""

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"matthews": float(matthews_corrcoef(references, predictions))}


METRICS: dict[str, type[_Classification]] = {"accuracy": Accuracy, "macro_f1": MacroF1, "matthews": Matthews}


def classification_scores(names: Sequence[str], predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """The named metrics of predictions against labels.

    Raises:
        ValueError: the set is empty, or the two differ in length.
    """
    if not len(labels) or len(labels) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} labels; expected as many, and at least one")
    scores: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            metric = METRICS[name](keep_in_memory=True, cache_dir=folder)
            scores |= metric.compute(predictions=list(predictions), references=list(labels))
    return scores


def majority_accuracy(train_labels: Sequence[int], labels: Sequence[int]) -> float:
    """The accuracy of always answering the most frequent class of the training set: the score to beat."""
    most = int(np.bincount(np.asarray(train_labels)).argmax())
    return float(np.mean(np.asarray(labels) == most))
