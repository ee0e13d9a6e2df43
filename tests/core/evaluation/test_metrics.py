"""Scores are scikit-learn's, scipy's, seqeval's and SQuAD's numbers, come without a network, and are never NaN."""

import importlib.util
import math
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from plm_core.evaluation.metrics import baseline, scores

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


NUMBERS = st.floats(-9, 9).map(lambda x: round(x, 1))


@settings(max_examples=13, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=31))
def test_the_correlations_are_those_of_scipy(pairs):
    predictions, labels = zip(*pairs, strict=True)
    assume(len(set(predictions)) > 1 < len(set(labels)))
    each = [pearsonr(labels, predictions).statistic, spearmanr(labels, predictions).statistic]
    found = scores(["pearson", "spearman", "pearson+spearman"], predictions, labels, ())
    assert list(found.values()) == pytest.approx([*each, sum(each) / 2], abs=1e-9)


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
    assert baseline("accuracy", [1, 1, 0], [0, 0, 0, 1], CLASSES) == 0.25
    assert baseline("accuracy+f1:two", [1, 1, 0], [1, 0], CLASSES) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert baseline("pearson+spearman", [1.0, 2.0, 6.0], [1.0, 2.0], ()) == 0.0


@pytest.mark.parametrize(
    ("said", "true", "f1"),
    [
        (["B-PER I-PER O"], ["B-PER I-PER O"], 1.0),
        (["B-PER O O"], ["B-PER I-PER O"], 0.0),  # another end
        (["B-LOC I-LOC O"], ["B-PER I-PER O"], 0.0),  # another type
        (["O O O", "B-LOC O"], ["B-PER O O", "B-LOC O"], 2 / 3),  # all of one, half of two
        (["B-PER B-LOC O", "B-LOC O"], ["B-PER O O", "B-LOC O"], 4 / 5),
        (["O O"], ["O O"], 0.0),  # none to find
        # The same place in another sentence is another entity; both sentences count as one set.
        (["B-PER", "O"], ["O", "B-PER"], 0.0),
    ],
)
def test_entity_f1_of_cases_made_by_hand(said, true, f1):
    sides = ([tags.split() for tags in side] for side in (said, true))
    assert scores(["entity_f1"], *sides, ())["entity_f1"] == pytest.approx(f1)
    with pytest.raises(ValueError, match="1 tags for 2 words"):
        scores(["entity_f1"], [["O"]], [["O", "O"]], ())


def test_the_scores_of_texts_are_means_over_them():
    texts, right = ["the Limu", "", "Bato"], [["limu"], [], ["in Bato", "Dine"]]
    found = scores(["exact_match", "answer_f1", "exact_match+answer_f1"], texts, right, ())
    assert list(found.values()) == [pytest.approx(2 / 3), pytest.approx(8 / 9), pytest.approx(7 / 9)]
    assert baseline("exact_match", right, right, ()) == pytest.approx(1 / 3)
    assert baseline("entity_f1", [["B-X"]], [["B-X", "O"]], ()) == 0.0


def test_metrics_need_no_network_and_leave_nothing_behind(project, tmp_path):
    program = (
        "import socket\n"
        "def refuse(*a): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "from plm_core.evaluation.metrics import scores\n"
        "tags = [['O'], ['B-X']]\n"
        "for score, said, true in (\n"
        "    ('accuracy+f1:b', [0, 1], [0, 1]), ('pearson', [0, 1], [0, 1]), ('entity_f1', tags, tags),\n"
        "    ('exact_match', ['x', 'y'], [['x'], ['y']]),\n"
        "):\n"
        "    print(scores([score], said, true, ['a', 'b'])[score])"
    )
    env = {"PYTHONPATH": str(project), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert run.stdout == "1.0\n" * 4, run.stderr
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
