"""The results of a fine-tuned model, or of the linear baseline: the answers to examples, their evidence and figures.

Used by the stages finetune and baseline.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.evaluation import metrics
from plm_core.evaluation.answers import parts_of
from plm_core.evaluation.evidence import check_labels
from plm_core.evaluation.spans import answer_f1, exact_match
from plm_core.finetuning.classifier import Predicted
from plm_core.finetuning.featurize import Rows, characters
from plm_core.finetuning.kinds import AnswerSpan
from plm_core.text.tokenizer import Tokenizer


def answered(
    task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer, threshold: float = 0.0
) -> Predicted:
    """Combine answers to rows into answers to examples: class ids, numbers, the tags of all words by name, or texts.

    For a text in parts, numbers and log-probabilities are averaged. The probability of all tags, or that no window
    holds an answer, is the product over the windows. ``threshold`` is that of ``no_answer_threshold``, if a question
    may have no answer.
    """
    answers, confidences = [], []
    for example, own in zip(rows.examples, _windows(rows), strict=True):
        answer: Any
        confidence = math.nan
        said = [predicted.answers[row] for row in own]
        if task.kind in ("classification", "multiple_choice"):
            answer, confidence = _likeliest(said)
        elif task.kind == "regression":
            answer = float(np.mean(said))
        elif task.kind == "token_classification":
            answer = [task.labels[tag] for tags in said for tag in tags]
            confidence = math.prod(predicted.confidences[row] for row in own)
        else:
            found = _found(example, own, rows, predicted, tokenizer)
            none = math.isinf(found.margin) or (task.unanswerable and found.margin > threshold)
            answer, confidence = ("", found.null_probability) if none else (found.text, found.probability)
        answers.append(answer)
        confidences.append(confidence)
    return Predicted(answers, confidences, predicted.loss)


def no_answer_threshold(task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> float:
    """By how much the logits of no answer must exceed those of the best answer to predict no answer: the value with the
    best score on these validation examples (Devlin et al. 2019, section 4.3). 0 if every question has an answer.
    """
    if not task.unanswerable:
        return 0.0
    parts = [exact_match if name == "exact_match" else answer_f1 for name, _ in parts_of(task.score)]
    found = [_found(e, own, rows, predicted, tokenizer) for e, own in zip(rows.examples, _windows(rows), strict=True)]
    margins = np.array([each.margin for each in found])
    # The gain of each example if it is left without an answer.
    gains = np.array(
        [
            sum(part("", true(task, example)) - part(each.text, true(task, example)) for part in parts)
            for example, each in zip(rows.examples, found, strict=True)
        ]
    )
    known = np.unique(margins[np.isfinite(margins)])
    if not len(known):
        return 0.0
    # Halfway between two margins, so that no example is on the edge.
    candidates = np.array([0.0, known[0] - 1, *(known[1:] + known[:-1]) / 2, known[-1] + 1])
    totals = np.array([gains[margins > threshold].sum() for threshold in candidates])
    return float(min(candidates[totals >= totals.max() - 1e-9], key=abs))


def true(task: GlueTask, example: Example) -> Any:
    """The right answer in the form of ``answered``; for a question, the list of right texts."""
    if task.kind == "token_classification":
        return [task.labels[tag] for tag in example.tags]
    if task.kind == "question_answering":
        return [answer.text for answer in example.answers]
    return example.label


def told(task: GlueTask, answer: Any) -> str:
    """A label or an answer in the form of evidence (``plm_core.evaluation.evidence``)."""
    if task.kind == "token_classification":
        return " ".join(answer)
    if task.kind == "question_answering":
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return task.labels[int(answer)] if task.labels else repr(float(answer))


def evidence(task: GlueTask, examples: Sequence[Example], predicted: Predicted, rule: str) -> Iterator[tuple[str, ...]]:
    """One row per example, in the columns of evidence; ``rule`` becomes ``measured``."""
    for e, answer, sure in zip(examples, predicted.answers, predicted.confidences, strict=True):
        confidence = "" if math.isnan(sure) else repr(sure)
        yield (
            *(e.id, e.sha256, e.group, e.subset, told(task, true(task, e)), told(task, answer), confidence),
            *(task.score, rule),
        )


def measured(
    task: GlueTask, train: Sequence[Example], test: Sequence[Example], predicted: Predicted
) -> dict[str, float]:
    """The figures of the answers to ``test``, the score of each of its subsets, and the constant baseline.

    A subset has no score if the score is a correlation and all its labels are equal.
    """
    labels, trained = ([true(task, example) for example in examples] for examples in (test, train))
    parts = task.score.split("+")
    found = metrics.scores([*dict.fromkeys((*task.metrics, *parts))], predicted.answers, labels, task.labels)
    score = float(np.mean([found[part] for part in parts]))
    baseline = metrics.baseline(task.score, trained, labels, task.labels)
    found = {"score": score, "baseline": baseline, **{name: found[name] for name in task.metrics}}
    subsets = [example.subset for example in test]
    for subset in sorted(set(subsets) - {""}):
        chosen = [i for i, each in enumerate(subsets) if each == subset]
        said, right = ([values[i] for i in chosen] for values in (predicted.answers, labels))
        if task.kind != "regression" or len(set(right)) > 1:
            found[f"{subset}/score"] = metrics.scores([task.score], said, right, task.labels)[task.score]
    return found | {"examples": len(test), "train_examples": len(train)}


def require_scorable(task: GlueTask, split: str, examples: Sequence[Example]) -> None:
    """Raise UserError for a correlation if all labels are equal, and for the F1 of a class that no example has."""
    try:
        check_labels(task.score, [told(task, true(task, example)) for example in examples])
    except ValueError as error:
        raise UserError(
            f"examples.{task.name}: of the {len(examples)} {split} examples that count, {error} "
            "(finetune.heldout_examples says how many count)"
        ) from error


def score(task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> float:
    """The task's score on the validation rows, with the best threshold for no answer on them."""
    threshold = no_answer_threshold(task, rows, predicted, tokenizer)
    answers = answered(task, rows, predicted, tokenizer, threshold).answers
    labels = [true(task, example) for example in rows.examples]
    return metrics.scores([task.score], answers, labels, task.labels)[task.score]


def constant(task: GlueTask, predicted: Predicted) -> str | None:
    """The predicted class, if it is the same for every example."""
    given = set(predicted.answers) if task.kind in ("classification", "multiple_choice") else set()
    return task.labels[int(given.pop())] if len(given) == 1 else None


class _Found(NamedTuple):
    """The answer to a question from all windows of its text."""

    text: str
    """The best answer."""
    probability: float
    margin: float
    """By how much the sum of the logits of no answer, the lowest of all windows, exceeds that of the best answer;
    infinite if no window contains text."""
    null_probability: float
    """The probability that no window contains an answer."""


def _windows(rows: Rows) -> list[list[int]]:
    """The rows of each example."""
    windows: list[list[int]] = [[] for _ in rows.examples]
    for row, owner in enumerate(rows.owners):
        windows[owner].append(row)
    return windows


def _likeliest(said: Sequence[Sequence[float]]) -> tuple[int, float]:
    """The class with the largest mean log-probability, and its probability after a softmax over these means."""
    means = np.mean(said, axis=0)
    best = int(means.argmax())
    return best, float(1 / np.exp(means - means[best]).sum())


def _found(example: Example, own: Sequence[int], rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> _Found:
    """The best answer of all windows, cut out of the text."""
    text = example.b or ""
    spans: list[AnswerSpan] = [predicted.answers[row] for row in own]
    best, row = max(zip(spans, own, strict=True), key=lambda pair: pair[0].score)
    none = math.prod(span.null_probability for span in spans)
    margin = min(span.null_score for span in spans) - best.score
    if math.isinf(margin):
        return _Found("", best.probability, margin, none)
    first = rows.encoded[row].first
    places = characters(text, tokenizer.spell(text))
    answer = text[places[first + best.first][0] : places[first + best.last][1]].strip()
    return _Found(answer, best.probability, margin, none)
