"""Metrics are scikit-learn's and scipy's numbers, come through `evaluate` without a network, and are never NaN."""

import importlib.util
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from plm_core.evaluation.answers import FAMILIES
from plm_core.evaluation.metrics import METRICS, baseline, scores

CLASSES = ("one", "two", "three", "four", "five")
ALL = ("accuracy", "macro_f1", "matthews", "f1:one", "f1:five")
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


@settings(max_examples=13, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=37))
def test_scores_are_those_of_scikit_learn(pairs):
    predictions, labels = zip(*pairs, strict=True)
    assert scores(ALL, predictions, labels, CLASSES) == {
        "accuracy": pytest.approx(accuracy_score(labels, predictions)),
        "macro_f1": pytest.approx(f1_score(labels, predictions, average="macro", zero_division=0.0)),
        "matthews": pytest.approx(matthews_corrcoef(labels, predictions)),
        "f1:one": pytest.approx(f1_score([i == 0 for i in labels], [i == 0 for i in predictions], zero_division=0.0)),
        "f1:five": pytest.approx(f1_score([i == 4 for i in labels], [i == 4 for i in predictions], zero_division=0.0)),
    }


def test_the_correlations_are_those_of_scipy():
    labels, predictions = [0.0, 1.5, 1.5, 4.0, 5.0], [0.25, 2.0, 1.0, 2.0, 9.0]
    assert scores(["pearson", "spearman", "pearson+spearman"], predictions, labels) == {
        "pearson": pytest.approx(pearsonr(labels, predictions).statistic),
        "spearman": pytest.approx(spearmanr(labels, predictions).statistic),
        "pearson+spearman": pytest.approx(
            (pearsonr(labels, predictions).statistic + spearmanr(labels, predictions).statistic) / 2
        ),
    }


@pytest.mark.parametrize(
    ("predictions", "labels", "accuracy", "f1", "macro_f1", "matthews"),
    [
        ([0, 1, 1, 0], [0, 1, 1, 0], 1.0, 1.0, 1.0, 1.0),
        ([1, 0, 0, 1], [0, 1, 1, 0], 0.0, 0.0, 0.0, -1.0),
        ([1, 1, 1, 1], [0, 1, 1, 0], 0.5, 2 / 3, 1 / 3, 0.0),  # constant predictions
        ([0, 0, 0, 0], [0, 1, 1, 0], 0.5, 0.0, 1 / 3, 0.0),
        ([1, 0, 1, 1], [1, 1, 1, 1], 0.75, 6 / 7, 3 / 7, 0.0),  # constant references
        ([0, 0, 0], [0, 0, 0], 1.0, 0.0, 1.0, 0.0),  # one class only
        ([0, 1, 2, 2], [0, 1, 2, 0], 0.75, 1.0, (2 / 3 + 1 + 2 / 3) / 3, 7 / 10),
        ([2], [0], 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_cases_made_by_hand(predictions, labels, accuracy, f1, macro_f1, matthews):
    found = scores(["accuracy", "f1:two", "macro_f1", "matthews", "accuracy+f1:two"], predictions, labels, CLASSES)
    assert found == {
        "accuracy": pytest.approx(accuracy),
        "f1:two": pytest.approx(f1),
        "macro_f1": pytest.approx(macro_f1),
        "matthews": pytest.approx(matthews),
        "accuracy+f1:two": pytest.approx((accuracy + f1) / 2),
    }


@pytest.mark.parametrize(
    ("predictions", "labels", "pearson", "spearman"),
    [
        ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], 1.0, 1.0),
        ([3.0, 2.0, 1.0], [10.0, 20.0, 30.0], -1.0, -1.0),
        ([1.0, 10.0, 100.0], [1.0, 2.0, 3.0], 99 / math.sqrt(2 * 5994), 1.0),  # monotone, not linear
        ([0.1, 0.1, 0.1], [1.0, 2.0, 3.0], 0.0, 0.0),  # constant predictions
        ([1.0, 1.0, 2.0], [1.0, 2.0, 3.0], math.sqrt(3) / 2, math.sqrt(3) / 2),  # ties: ranks 1.5, 1.5, 3
    ],
)
def test_correlations_of_cases_made_by_hand(predictions, labels, pearson, spearman):
    found = scores(["pearson", "spearman"], predictions, labels)
    assert found == {"pearson": pytest.approx(pearson), "spearman": pytest.approx(spearman)}


def test_labels_and_predictions_are_not_interchangeable():
    """Macro-F1 of a class that is only predicted, and one that is only true, is 0 either way; accuracy is symmetric."""
    found = scores(["macro_f1"], [0, 0, 1, 1, 1], [0, 1, 1, 1, 2])
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize(("predictions", "labels"), [([], []), ([1], []), ([], [1]), ([1, 2], [1])])
def test_an_empty_or_unequal_set_is_an_error(predictions, labels):
    with pytest.raises(ValueError, match=f"^{len(predictions)} predictions for {len(labels)} references"):
        scores(ALL, predictions, labels, CLASSES)


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "message"),
    [
        ("perplexity", [1], [1], "found 'perplexity'; expected accuracy"),
        ("f1:six", [1], [1], "found 'f1:six'; expected one of the classes one, two"),
        ("pearson", [math.nan, 1.0], [1.0, 2.0], "pearson: a prediction or a reference is not finite"),
        ("spearman", [1.0, 2.0], [1.0, math.inf], "spearman: a prediction or a reference is not finite"),
        ("pearson", [1.0, 2.0], [5.0, 5.0], r"pearson: all references are 5\.0; expected different values"),
        ("spearman", [1.0], [5.0], r"spearman: all references are 5\.0"),
    ],
)
def test_what_has_no_score_is_an_error(name, predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        scores([name], predictions, labels, CLASSES)


def test_the_majority_is_that_of_the_training_set():
    assert baseline("accuracy", [1, 1, 0], [0, 0, 0, 1]) == 0.25
    assert baseline("accuracy", [2, 2, 2], [0, 1]) == 0.0
    assert baseline("accuracy+f1:two", [1, 1, 0], [1, 0], CLASSES) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert baseline("matthews", [1, 1, 0], [1, 0]) == 0.0
    assert baseline("pearson+spearman", [1.0, 2.0, 6.0], [1.0, 2.0]) == 0.0


def test_scores_of_tags_and_texts_are_those_of_their_functions():
    """``spans.py`` has them; its tests compare them with seqeval's and SQuAD's rules."""
    said, true = [["O", "B-X"], ["B-X", "I-X"]], [["O", "B-X"], ["B-X", "O"]]
    assert scores(["entity_f1"], said, true) == {"entity_f1": 0.5}
    assert baseline("entity_f1", true, true) == 0.0
    texts, right = ["the Limu", "", "Bato"], [["limu"], [], ["in Bato", "Dine"]]
    found = scores(["exact_match", "answer_f1", "exact_match+answer_f1"], texts, right)
    assert list(found.values()) == [pytest.approx(2 / 3), pytest.approx(8 / 9), pytest.approx(7 / 9)]
    assert baseline("exact_match", right, right) == pytest.approx(1 / 3)


def test_every_score_that_is_resampled_is_a_module_here():
    assert list(METRICS) == [name for names in FAMILIES.values() for name in names]


def test_metrics_need_no_network_and_leave_nothing_behind(project, tmp_path):
    program = (
        "import socket\n"
        "def refuse(*a): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "from plm_core.evaluation.metrics import METRICS, scores\n"
        "from plm_core.evaluation.answers import family\n"
        "given = {'tags': [['O'], ['B-X']], 'texts': ['x', 'y']}\n"
        "for name in METRICS:\n"
        "    score, said = name + ':b' * (name == 'f1'), given.get(family(name + ':b' * (name == 'f1')), [0, 1])\n"
        "    true = [['x'], ['y']] if said == ['x', 'y'] else said\n"
        "    print(round(scores([score], said, true, ['a', 'b'])[score], 9))"
    )
    env = {"PYTHONPATH": str(project), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert run.stdout == "1.0\n" * 9, run.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".arrow", ".lock", ".json")]


def test_metrics_import_no_transformers_and_leave_it_to_be_imported(project):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("nothing to hide")
    program = (
        "import sys, plm_core.evaluation.metrics\n"
        "assert 'transformers' not in sys.modules, 'imported'\n"
        "import transformers"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=project)
    assert run.returncode == 0, run.stderr
