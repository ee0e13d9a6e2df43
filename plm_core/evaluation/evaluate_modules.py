"""The scores of ``answers.py`` as local `evaluate` modules: nothing is downloaded at run time.

Used by the stages finetune and baseline.
"""

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np

from plm_core.evaluation.answers import Answers, Results, counted_results, family, parts_of
from plm_core.evaluation.example_counts import counts
from plm_core.evaluation.text_overlap import statistics

sys.modules.setdefault("transformers", None)  # type: ignore[arg-type]  # `evaluate` would import it, which takes seconds
import evaluate  # noqa: E402

if sys.modules["transformers"] is None:
    del sys.modules["transformers"]

Values = Sequence[Any]
"""Class ids, numbers or ranks; the tags of each sentence; texts, whose references are lists of right answers."""
INTEGER, NUMBER, TEXT = (datasets.Value(name) for name in ("int64", "float64", "string"))
FEATURES: dict[str, tuple[Any, Any]] = {
    "classes": (INTEGER, INTEGER),
    "numbers": (NUMBER, NUMBER),
    "tags": (datasets.List(TEXT), datasets.List(TEXT)),
    **dict.fromkeys(("texts", "translations", "summaries"), (TEXT, datasets.List(TEXT))),
    "ranks": (INTEGER, INTEGER),
}
"""The types of a prediction and a reference by the kind of answer."""


class Score(evaluate.Metric):
    """A score as an `evaluate` module: that of predictions against references, as ``{"score": value}``."""

    def __init__(self, name: str, classes: Sequence[str], folder: str) -> None:
        self._name = name
        self._classes = tuple(classes)
        super().__init__(keep_in_memory=True, cache_dir=folder)

    def _info(self) -> evaluate.MetricInfo:
        prediction, reference = FEATURES[family(self._name)]
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions and references: class ids, numbers, lists of tags, or texts",
            features=datasets.Features({"predictions": prediction, "references": reference}),
        )

    def _compute(self, predictions: Values, references: Values) -> dict[str, float]:
        size = len(references)
        whole: dict[str, Any] = {"strata": np.zeros(size, dtype=np.int64), "subsets": ("",), "groups": np.arange(size)}
        of = family(self._name)
        parts = [part for part, _ in parts_of(self._name)]
        if of in ("classes", "numbers"):
            predicted = np.array([predictions])
            results: Results = Answers(self._name, np.array(references), predicted, classes=self._classes, **whole)
        elif of == "translations":
            results = counted_results(self._name, [statistics(parts, predictions, references)], **whole)
        else:
            pairs = zip(predictions, references, strict=True)
            counted = np.array([[counts(part, *pair) for part in parts] for pair in pairs])
            results = counted_results(self._name, [counted.transpose(2, 1, 0)], **whole)
        return {"score": results.values(np.ones((1, size))).item()}


def scores(names: Sequence[str], predictions: Values, references: Values, classes: Sequence[str]) -> dict[str, float]:
    """The named scores of predictions against references, of which there is at least one; ``classes`` are the names of
    the ids."""
    values = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            computed = Score(name, classes, folder).compute(predictions=list(predictions), references=list(references))
        values[name] = computed["score"]
    return values


def baseline(name: str, train: Values, references: Values, classes: Sequence[str]) -> float:
    """The score of a constant answer: the training set's most frequent class (the lowest id of several), the mean of
    its numbers (a correlation with which counts as 0), no entity, no answer, the empty text, or the last rank."""
    of = family(name)
    constant: Values = [""] * len(references)
    if of == "numbers":
        constant = [float(np.mean(train))] * len(references)
    elif of == "classes":
        constant = [int(np.bincount(np.asarray(train)).argmax())] * len(references)
    elif of == "tags":
        constant = [["O"] * len(tags) for tags in references]
    elif of == "ranks":
        constant = [len(references)] * len(references)
    return scores([name], constant, references, classes)[name]
