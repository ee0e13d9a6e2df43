"""What is said of a fine-tuned model's answers as a whole."""

from dataclasses import replace
from math import log, nan, sqrt

import pytest

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.finetuning import task_heads
from plm_core.finetuning.featurize import InputRow, Rows
from plm_core.finetuning.finetune_results import constant_class, measured, require_scorable
from plm_core.finetuning.task_heads import Predicted, example_answers

TASK = GlueTask("t", "classification", "?", ("billing", "other"), ("accuracy",), "accuracy")
NUMBERS = GlueTask("t", "regression", "?", (), ("pearson",), "pearson")


@pytest.mark.parametrize(
    ("task", "answers", "expected"),
    [
        (TASK, [1, 1, 1], "other"),
        (TASK, [0], "billing"),
        (TASK, [0, 1], None),
        (TASK, [], None),
        (NUMBERS, [1.0], None),
    ],
)
def test_constant_class_is_detected(task, answers, expected):
    assert constant_class(task, Predicted(answers, [0.5] * len(answers), 0.0)) == expected


def test_predictions_of_text_parts_are_combined():
    rows = Rows([Example("x", "", None, 0), Example("y", "", None, 0)], [InputRow([], 0)] * 3, [0, 0, 1])
    logs = [[log(p) for p in shares] for shares in ((0.6, 0.4), (0.1, 0.9), (0.7, 0.3))]
    joined = example_answers(TASK, rows, Predicted(logs, [nan] * 3, 0.25), tokenizer=None)
    assert (joined.answers, joined.loss) == ([1, 0], 0.25)
    surer = sqrt(0.4 * 0.9)
    assert joined.confidences == pytest.approx([surer / (surer + sqrt(0.6 * 0.1)), 0.7], rel=1e-12)
    numbers = example_answers(NUMBERS, rows, Predicted([1.0, 2.5, -3.0], [nan] * 3, 0.25), tokenizer=None)
    assert numbers.answers == [1.75, -3.0]


def test_a_subset_whose_labels_are_all_equal_has_no_correlation():
    labels = [("a", 1.0), ("a", 2.0), ("b", 3.0), ("b", 3.0)]
    test = [Example(str(i), "", None, label, subset=subset) for i, (subset, label) in enumerate(labels)]
    figures = measured(NUMBERS, test, test, Predicted([1.0, 2.0, 3.0, 4.0], [nan] * 4, 0.0))
    assert figures["a/score"] == pytest.approx(1.0)
    assert "b/score" not in figures


def test_labels_that_are_all_equal_are_refused_where_a_correlation_is_asked_for():
    same = [Example(str(i), "", None, 3.0) for i in range(2)]
    with pytest.raises(UserError, match=r"^examples\.t: of the 2 test examples that count, all labels are 3\.0; "):
        require_scorable(NUMBERS, "test", same)
    require_scorable(NUMBERS, "test", [*same, Example("x", "", None, 4.0)])
    require_scorable(TASK, "test", [Example("x", "", None, 1)])


def test_examples_without_the_class_whose_f1_is_the_score_are_refused():
    of_billing = replace(TASK, score="accuracy+f1:billing")
    with pytest.raises(
        UserError, match=r"^examples\.t: of the 1 test examples that count, no label is 'billing', whose"
    ):
        require_scorable(of_billing, "test", [Example("x", "", None, 1)])
    require_scorable(of_billing, "test", [Example("x", "", None, 1), Example("y", "", None, 0)])


YEARS = [1991.0, 2003.0, 2019.0]


def rows(labels, owners):
    return Rows([Example(str(y), "", None, y) for y in labels], [InputRow([], labels[i]) for i in owners], owners)


def test_equal_labels_are_scaled_by_one():
    assert task_heads.NUMBERS.scale(rows([7.0, 7.0], [0, 1])) == (7.0, 1.0)
