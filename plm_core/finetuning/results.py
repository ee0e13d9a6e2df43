"""What a fine-tuned model said of the test examples: its answers example by example, their evidence and their figures.

Used by the finetune stage.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.evaluation import metrics
from plm_core.finetuning.classifier import Predicted
from plm_core.finetuning.featurize import Rows, characters
from plm_core.finetuning.kinds import AnswerSpan
from plm_core.text.tokenizer import Tokenizer


def answered(task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> Predicted:
    """The answers to examples from those to their rows: class ids, numbers, the tags of all words by name, or texts.

    The probability of all tags, or that no window holds an answer, is the product over the windows.
    """
    if task.kind not in ("token_classification", "question_answering"):
        return predicted
    windows: list[list[int]] = [[] for _ in rows.examples]
    for row, owner in enumerate(rows.owners):
        windows[owner].append(row)
    answers, confidences = [], []
    for example, own in zip(rows.examples, windows, strict=True):
        if task.kind == "token_classification":
            answer: Any = [task.labels[tag] for row in own for tag in predicted.answers[row]]
            confidence = math.prod(predicted.confidences[row] for row in own)
        else:
            spans = [(predicted.answers[row], rows.encoded[row].first) for row in own]
            answer, confidence = _cut_out(example.b or "", spans, task.unanswerable, tokenizer)
        answers.append(answer)
        confidences.append(confidence)
    return Predicted(answers, confidences, predicted.loss)


def true(task: GlueTask, example: Example) -> Any:
    """What is to be answered, as ``answered`` has it; of a question, the list of the right texts."""
    if task.kind == "token_classification":
        return [task.labels[tag] for tag in example.tags]
    if task.kind == "question_answering":
        return [answer.text for answer in example.answers]
    return example.label


def told(task: GlueTask, answer: Any) -> str:
    """A label or an answer as evidence has it (``plm_core.evaluation.evidence``)."""
    if task.kind == "token_classification":
        return " ".join(answer)
    if task.kind == "question_answering":
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return task.labels[int(answer)] if task.labels else repr(float(answer))


def evidence(task: GlueTask, examples: Sequence[Example], predicted: Predicted, rule: str) -> Iterator[tuple[str, ...]]:
    """One row an example, in the columns of evidence; ``rule`` is what goes to ``measured``."""
    for e, answer, sure in zip(examples, predicted.answers, predicted.confidences, strict=True):
        confidence = "" if math.isnan(sure) else repr(sure)
        yield (
            *(e.id, e.sha256, e.subset, told(task, true(task, e)), told(task, answer), confidence),
            *(task.score, rule),
        )


def measured(
    task: GlueTask, train: Sequence[Example], test: Sequence[Example], predicted: Predicted
) -> dict[str, float]:
    """The figures of the answers to ``test``, the score of each of its subsets, and what is had without reading."""
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
        found[f"{subset}/score"] = metrics.scores([task.score], said, right, task.labels)[task.score]
    return found | {"examples": len(test), "train_examples": len(train)}


def constant(task: GlueTask, predicted: Predicted) -> str | None:
    """The class that every example is given, where it is always the same."""
    given = set(predicted.answers) if task.kind in ("classification", "multiple_choice") else set()
    return task.labels[int(given.pop())] if len(given) == 1 else None


def _cut_out(
    text: str, spans: Sequence[tuple[AnswerSpan, int]], unanswerable: bool, tokenizer: Tokenizer
) -> tuple[str, float]:
    """The best answer of all windows, each with the number of its first token, cut out of the text; its probability.

    None ("") where the logits of no answer have a larger sum, if the task knows that (Devlin et al.
    2019, section 4.3, with the threshold 0; as in their released code, the least such sum of the windows).
    """
    best, first = max(spans, key=lambda span: span[0].score)
    null = min(span.null_score for span, _ in spans)
    if math.isinf(best.score) or (unanswerable and null > best.score):
        return "", math.prod(span.null_probability for span, _ in spans)
    places = characters(text, tokenizer.spell(text))
    return text[places[first + best.first][0] : places[first + best.last][1]].strip(), best.probability
