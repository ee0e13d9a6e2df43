"""The baseline for a task without a language model: a linear model on words (TF-IDF). Used by the stage baseline.

TF-IDF of words and of pairs of adjacent words, logistic regression for classes and ridge regression for numbers, by
scikit-learn. For a pair, the words of either text, those of both, and the cosine of the two. N examples, W features.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.finetuning import linear_kinds

STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Inverse regularisation strengths, 1 / lambda: the one with the least loss on the validation examples is used."""


def predict(
    task: GlueTask, train: Sequence[Example], valid: Sequence[Example], test: Sequence[Example]
) -> tuple[list[Any], list[float]]:
    """The answers to the test examples as in ``results.answered``, and the probability of each (NaN for a number).

    For answers other than classes and numbers, see ``linear_kinds``.
    """
    with threadpool_limits(1):  # more threads would sum vectors in another order, and mostly wait for each other
        if task.kind == "token_classification":
            return linear_kinds.tags(task, train, test)
        if task.kind == "multiple_choice":
            return linear_kinds.choices(train, test)
        if task.kind == "question_answering":
            return linear_kinds.spans(task, train, test)
        return _texts(task, train, valid, test)


def _texts(
    task: GlueTask, train: Sequence[Example], valid: Sequence[Example], test: Sequence[Example]
) -> tuple[list[Any], list[float]]:
    """The answers for one text or two, from the words."""
    weigh = TfidfVectorizer(token_pattern=linear_kinds.WORD.pattern, ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    try:
        weigh.fit(chain.from_iterable((e.a, e.b or "") for e in train))
    except ValueError:  # no feature occurs in two examples
        weigh.set_params(min_df=1).fit(chain.from_iterable((e.a, e.b or "") for e in train))
    features = _features(weigh, train)
    labels = np.array([e.label for e in train])
    if task.kind == "classification" and len(np.unique(labels)) == 1:  # a sample may lack classes that the task has
        return [int(labels[0])] * len(test), [1.0] * len(test)
    held_out = _features(weigh, valid)
    truth = [e.label for e in valid]
    fitted = [_model(task, strength).fit(features, labels) for strength in STRENGTHS]
    best = min(fitted, key=lambda model: _loss(task, model, held_out, truth))
    read = _features(weigh, test)
    answers = best.predict(read).tolist()
    if task.kind == "regression":
        return answers, [math.nan] * len(answers)
    return answers, best.predict_proba(read).max(axis=1).tolist()


def _features(weigh: TfidfVectorizer, examples: Sequence[Example]) -> csr_matrix:
    """``[N, W]``; for pairs ``[N, 3 W + 1]``: the first text, the second, what they share, and their similarity."""
    first = weigh.transform([e.a for e in examples])
    if all(e.b is None for e in examples):
        return first
    second = weigh.transform([e.b or "" for e in examples])
    both = first.multiply(second)
    return hstack([first, second, both, both.sum(axis=1)], format="csr")


def _model(task: GlueTask, strength: float) -> Any:
    if task.kind == "regression":
        return Ridge(alpha=1 / strength)
    return LogisticRegression(C=strength, max_iter=2000)


def _loss(task: GlueTask, model: Any, features: csr_matrix, truth: Sequence[int] | Sequence[float]) -> float:
    """The mean loss on examples: squared, or in nats over those whose class it has seen."""
    if task.kind == "regression":
        return float(np.square(model.predict(features) - np.array(truth)).mean())
    seen = np.isin(truth, model.classes_)
    if not seen.any():
        return math.inf
    return float(log_loss(np.array(truth)[seen], model.predict_proba(features[seen]), labels=model.classes_))
