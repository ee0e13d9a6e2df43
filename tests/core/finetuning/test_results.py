"""What is said of a fine-tuned model's answers as a whole."""

import pytest

from plm_core.benchmarks.task import GlueTask
from plm_core.finetuning.classifier import Predicted
from plm_core.finetuning.results import constant

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
def test_a_model_that_always_answers_the_same_class_is_known(task, answers, expected):
    assert constant(task, Predicted(answers, [0.5] * len(answers), 0.0)) == expected
