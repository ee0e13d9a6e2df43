"""Metrics are scikit-learn's numbers, come through `evaluate` without a network, and refuse an empty set."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from plm_core.evaluation.metrics import METRICS, classification_scores, majority_accuracy

ALL = tuple(METRICS)
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


@settings(max_examples=13)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=37))
def test_scores_are_those_of_scikit_learn(pairs):
    predictions, labels = zip(*pairs, strict=True)
    found = classification_scores(ALL, predictions, labels)
    assert found == {
        "accuracy": pytest.approx(accuracy_score(labels, predictions)),
        "macro_f1": pytest.approx(f1_score(labels, predictions, average="macro", zero_division=0.0)),
        "matthews": pytest.approx(matthews_corrcoef(labels, predictions)),
    }


@pytest.mark.parametrize(
    ("predictions", "labels", "accuracy", "macro_f1", "matthews"),
    [
        ([0, 1, 1, 0], [0, 1, 1, 0], 1.0, 1.0, 1.0),
        ([1, 0, 0, 1], [0, 1, 1, 0], 0.0, 0.0, -1.0),
        ([1, 1, 1, 1], [0, 1, 1, 0], 0.5, 1 / 3, 0.0),  # constant: F1 of 2/3 and 0
        ([0, 0, 0], [0, 0, 0], 1.0, 1.0, 0.0),  # one class only
        ([0, 1, 2, 2], [0, 1, 2, 0], 0.75, (2 / 3 + 1 + 2 / 3) / 3, 7 / 10),
        ([2], [0], 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_cases_made_by_hand(predictions, labels, accuracy, macro_f1, matthews):
    found = classification_scores(ALL, predictions, labels)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["macro_f1"] == pytest.approx(macro_f1)
    assert found["matthews"] == pytest.approx(matthews)


def test_labels_and_predictions_are_not_interchangeable():
    """Macro-F1 of a class that is only predicted, and one that is only true, is 0 either way; accuracy is symmetric."""
    found = classification_scores(["macro_f1"], [0, 0, 1, 1, 1], [0, 1, 1, 1, 2])
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize(("predictions", "labels"), [([], []), ([1], []), ([], [1]), ([1, 2], [1])])
def test_an_empty_or_unequal_set_is_an_error(predictions, labels):
    with pytest.raises(ValueError, match=f"^{len(predictions)} predictions for {len(labels)} labels"):
        classification_scores(ALL, predictions, labels)


def test_an_unknown_metric_is_an_error():
    with pytest.raises(KeyError):
        classification_scores(["perplexity"], [1], [1])


def test_the_majority_is_that_of_the_training_set():
    assert majority_accuracy([1, 1, 0], [0, 0, 0, 1]) == 0.25
    assert majority_accuracy([2, 2, 2], [0, 1]) == 0.0


def test_metrics_need_no_network_and_leave_nothing_behind(project, tmp_path):
    program = (
        "import socket\n"
        "def refuse(*a): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "from plm_core.evaluation.metrics import METRICS, classification_scores\n"
        "print(classification_scores(tuple(METRICS), [0, 1], [0, 1])['accuracy'])"
    )
    env = {"PYTHONPATH": str(project), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert run.stdout == "1.0\n", run.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".arrow", ".lock", ".json")]
