"""The results of a fine-tuned model, or of the linear baseline: the answers to examples, their evidence and figures."""

import math
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.config import UserError
from plm_core.evaluation import evaluate_modules
from plm_core.evaluation.answers import is_numeric_score
from plm_core.evaluation.evidence import check_labels
from plm_core.evaluation.text_overlap import signature
from plm_core.finetuning.featurize import Rows
from plm_core.finetuning.task_heads import Predicted, example_answers
from plm_core.text.tokenizers import Tokenizer


def evidence(task: GlueTask, examples: Sequence[Example], predicted: Predicted, rule: str) -> Iterator[tuple[str, ...]]:
    """One row per example, in the columns of evidence; ``rule`` becomes ``measured``."""
    kind = KINDS[task.kind]
    for e, answer, sure in zip(examples, predicted.answers, predicted.confidences, strict=True):
        columns = (kind.written(task, kind.gold(task, e)), kind.written(task, answer))
        confidence = "" if math.isnan(sure) else repr(sure)
        yield (e.id, e.sha256, e.group, e.subset, *columns, confidence, task.score, rule)


def measured(
    task: GlueTask, train: Sequence[Example], test: Sequence[Example], predicted: Predicted
) -> dict[str, float]:
    """The figures of the answers to ``test``, the score of each of its subsets, and the constant baseline.

    A subset has no score if the score is a correlation and all its labels are equal.
    """
    kind = KINDS[task.kind]
    labels, trained = ([kind.gold(task, example) for example in examples] for examples in (test, train))
    scores = evaluate_modules.scores([task.score, *task.metrics], predicted.answers, labels, task.labels)
    baseline = evaluate_modules.baseline(task.score, trained, labels, task.labels)
    figures = {"score": scores[task.score], "baseline": baseline, **{name: scores[name] for name in task.metrics}}
    subsets = [example.subset for example in test]
    for subset in sorted(set(subsets) - {""}):
        chosen = [i for i, own in enumerate(subsets) if own == subset]
        answers, right = ([values[i] for i in chosen] for values in (predicted.answers, labels))
        if not is_numeric_score(task.score) or len(set(right)) > 1:
            figures[f"{subset}/score"] = evaluate_modules.scores([task.score], answers, right, task.labels)[task.score]
    return figures | {"examples": len(test), "train_examples": len(train)}


def signed(task: GlueTask, examples: Sequence[Example]) -> str:
    """The score's name; if texts are compared, also how, so that others can do the same."""
    how = signature(task.score, [KINDS[task.kind].gold(task, example) for example in examples])
    return f"{task.score} ({how})" if how else task.score


def require_scorable(task: GlueTask, split: str, examples: Sequence[Example]) -> None:
    """Raise UserError for a correlation if all labels are equal, and for the F1 of a class that no example has."""
    kind = KINDS[task.kind]
    try:
        check_labels(task.score, [kind.written(task, kind.gold(task, example)) for example in examples])
    except ValueError as error:
        raise UserError(
            f"examples.{task.name}: of the {len(examples)} {split} examples that count, {error} "
            "(finetune.heldout_examples says how many count)"
        ) from error


def score(task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> float:
    """The task's score on the validation rows, with the best threshold for no answer on them."""
    kind = KINDS[task.kind]
    threshold = resolve_name(kind.head).threshold(task, rows, predicted, tokenizer)
    answers = example_answers(task, rows, predicted, tokenizer, threshold).answers
    labels = [kind.gold(task, example) for example in rows.examples]
    return evaluate_modules.scores([task.score], answers, labels, task.labels)[task.score]


def constant_class(task: GlueTask, predicted: Predicted) -> str | None:
    """The predicted class, if it is the same for every example."""
    given = set(predicted.answers) if KINDS[task.kind].has_options else set()
    return task.labels[int(given.pop())] if len(given) == 1 else None
