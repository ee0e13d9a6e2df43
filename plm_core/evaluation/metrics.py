"""The scores of GLUE-like tasks as `evaluate` modules that ship here: nothing is downloaded at run time.

Used by the finetune stage. Each is computed by scikit-learn or scipy; the edge cases are stated with each, and no score
is ever NaN. ``answers.py`` explains how a score is written (``accuracy+f1:equivalent``), and has the same scores in the
form that resampling needs.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from plm_core.evaluation import spans
from plm_core.evaluation.answers import family, parts_of


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Hide a package from imports in the block, unless it is already imported."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


with _hidden("transformers"):  # if installed, `evaluate` imports it for its evaluators, which takes seconds
    import evaluate

Values = Sequence[Any]
"""Class ids, or numbers; the tags of each sentence; texts, whose references are lists of right answers."""
INTEGER, NUMBER, TEXT = (datasets.Value(name) for name in ("int64", "float64", "string"))
TEXTS = datasets.List(TEXT)


class Row(NamedTuple):
    """A row of the table."""

    score: Callable[..., float]
    """The score of predictions and references; for F1, also of the class ``positive``."""
    prediction: Any = INTEGER
    """The type of a prediction."""
    reference: Any = None
    """The type of a reference; None: that of a prediction."""


METRICS: dict[str, Row] = {
    # The share of correct predictions, in [0, 1].
    "accuracy": Row(lambda said, true: accuracy_score(true, said)),
    # The F1 of the class ``positive``, in [0, 1]; 0 if it is neither predicted nor true.
    "f1": Row(lambda said, true, positive: f1_score(true, said, labels=[positive], average="macro", zero_division=0.0)),
    # The plain mean of each class's F1, in [0, 1]; a class that is neither predicted nor true does not count.
    "macro_f1": Row(lambda said, true: f1_score(true, said, average="macro", zero_division=0.0)),
    # Matthews' correlation (Matthews 1975; Gorodkin 2004 for several classes), in [-1, 1]; one side constant: 0.
    "matthews": Row(lambda said, true: matthews_corrcoef(true, said)),
    # Pearson's correlation, in [-1, 1]; constant predictions: 0, as for Matthews, because they distinguish nothing.
    "pearson": Row(lambda said, true: 0.0 if np.ptp(said) == 0 else stats.pearsonr(true, said).statistic, NUMBER),
    # Pearson's correlation of the ranks, ties by their mean rank, in [-1, 1]; constant predictions: 0.
    "spearman": Row(lambda said, true: 0.0 if np.ptp(said) == 0 else stats.spearmanr(true, said).statistic, NUMBER),
    # The F1 of the entities of all sentences, tagged in IOB2, in [0, 1]; 0 if none is right.
    "entity_f1": Row(spans.entity_f1, TEXTS),
    # The share of predictions that are one of the right answers, in [0, 1]; if there is none, "" is right.
    "exact_match": Row(lambda said, true: float(np.mean(list(map(spans.exact_match, said, true)))), TEXT, TEXTS),
    # The mean F1 of the words of predictions against the nearest right answer, in [0, 1]; as in SQuAD 2.0.
    "answer_f1": Row(lambda said, true: float(np.mean(list(map(spans.answer_f1, said, true)))), TEXT, TEXTS),
    # The share of minimal pairs whose good text was chosen, a tie counting half, in [0, 1].
    "pair_accuracy": Row(lambda said, true: float(np.mean([spans.RIGHT[answer] for answer in said])), TEXT),
}


class _Metric(evaluate.Metric):
    """A row as an `evaluate` module: the score of predictions against references, as ``{"score": value}``."""

    def __init__(self, row: Row, folder: str) -> None:
        self._row = row
        super().__init__(keep_in_memory=True, cache_dir=folder)

    def _info(self) -> evaluate.MetricInfo:
        reference = self._row.prediction if self._row.reference is None else self._row.reference
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions and references: class ids, numbers, lists of tags, or texts",
            features=datasets.Features({"predictions": self._row.prediction, "references": reference}),
        )

    def _compute(self, predictions: Values, references: Values, **given: int) -> dict[str, float]:
        return {"score": float(self._row.score(predictions, references, **given))}


def scores(
    names: Sequence[str], predictions: Values, references: Values, classes: Sequence[str] = ()
) -> dict[str, float]:
    """The named scores of predictions against references; ``classes`` are the names of the ids, for ``f1:<class>``.

    Raises:
        ValueError: a score or its class is unknown, the set is empty, the two differ in length, a number is not finite,
            or all references of a correlation are equal, so that no prediction could be better than another.
    """
    if not len(references) or len(references) != len(predictions):
        raise ValueError(
            f"{len(predictions)} predictions for {len(references)} references; expected equal numbers, at least one"
        )
    return {name: _mean(name, predictions, references, classes) for name in names}


def baseline(name: str, train: Values, references: Values, classes: Sequence[str] = ()) -> float:
    """The score of ``constant``. A correlation with a constant is undefined, and counts as 0."""
    return scores([name], constant(name, train, references), references, classes)[name]


def constant(name: str, train: Values, references: Values) -> Values:
    """A constant answer: the training set's most frequent class (the lowest id of several), the mean of its numbers, no
    entity, or no answer.
    """
    of = family(name)
    if of == "numbers":
        return [float(np.mean(train))] * len(references)
    if of == "classes":
        return [int(np.bincount(np.asarray(train)).argmax())] * len(references)
    return [["O"] * len(tags) for tags in references] if of == "tags" else [""] * len(references)


def _mean(name: str, predictions: Values, references: Values, classes: Sequence[str]) -> float:
    """The mean of the scores joined with + in ``name``."""
    found = []
    for metric, of in parts_of(name):
        if of and of not in classes:
            raise ValueError(f"score: found {name!r}; expected one of the classes {', '.join(classes)}")
        if family(name) == "numbers":
            if not np.isfinite([*predictions, *references]).all():
                raise ValueError(f"{name}: a prediction or a reference is not finite; expected finite numbers")
            if np.ptp(references) == 0:
                raise ValueError(f"{name}: all references are {references[0]}; expected different values")
        given = {"positive": list(classes).index(of)} if of else {}
        with tempfile.TemporaryDirectory() as folder:
            module = _Metric(METRICS[metric], folder)
            result = module.compute(predictions=list(predictions), references=list(references), **given)
        found.append(result["score"])
    return float(np.mean(found))
