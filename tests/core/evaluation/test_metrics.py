"""Scores are scikit-learn's, scipy's, seqeval's and SQuAD's numbers, come without a network, and are never NaN."""

import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from plm_core.evaluation.evaluate_modules import baseline, scores

CLASSES = ("one", "two", "three", "four", "five")
ALL = ("accuracy", "macro_f1", "matthews", "f1:one", "f1:five")
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


@settings(max_examples=13, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=37))
def test_scores_match_scikit_learn(pairs):
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
def test_correlations_match_scipy(pairs):
    predictions, labels = zip(*pairs, strict=True)
    assume(len(set(predictions)) > 1 < len(set(labels)))
    parts = [pearsonr(labels, predictions).statistic, spearmanr(labels, predictions).statistic]
    values = scores(["pearson", "spearman", "pearson+spearman"], predictions, labels, ())
    assert list(values.values()) == pytest.approx([*parts, sum(parts) / 2], abs=1e-9)


def test_a_score_of_several_parts_is_their_mean():
    parts = scores(["accuracy", "f1:two", "accuracy+f1:two"], [1, 1, 1, 1], [0, 1, 1, 0], CLASSES)
    assert parts == {"accuracy": 0.5, "f1:two": pytest.approx(2 / 3), "accuracy+f1:two": pytest.approx(7 / 12)}


def test_majority_baseline_is_of_the_training_set():
    assert baseline("accuracy", [1, 1, 0], [0, 0, 0, 1], CLASSES) == 0.25
    assert baseline("accuracy+f1:two", [1, 1, 0], [1, 0], CLASSES) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert baseline("pearson+spearman", [1.0, 2.0, 6.0], [1.0, 2.0], ()) == 0.0


@pytest.mark.parametrize(
    ("predictions", "gold", "f1"),
    [
        (["B-PER O O", "B-LOC O O"], ["B-PER I-PER O", "B-PER O O"], 0.0),  # another end, another type
        (["B-PER B-LOC O", "B-LOC O"], ["B-PER O O", "B-LOC O"], 4 / 5),
        (["O O"], ["O O"], 0.0),  # none to find
        # The same place in another sentence is another entity; both sentences count as one set.
        (["B-PER", "O"], ["O", "B-PER"], 0.0),
    ],
)
def test_entity_f1_by_hand(predictions, gold, f1):
    sides = ([tags.split() for tags in side] for side in (predictions, gold))
    assert scores(["entity_f1"], *sides, ())["entity_f1"] == pytest.approx(f1)
    with pytest.raises(ValueError, match="1 tags for 2 words"):
        scores(["entity_f1"], [["O"]], [["O", "O"]], ())


def test_the_scores_of_texts_are_means_over_them():
    texts, right = ["the Limu", "", "Bato"], [["limu"], [], ["in Bato", "Dine"]]
    values = scores(["exact_match", "answer_f1", "exact_match+answer_f1"], texts, right, ())
    assert list(values.values()) == [pytest.approx(2 / 3), pytest.approx(8 / 9), pytest.approx(7 / 9)]
    assert baseline("exact_match", right, right, ()) == pytest.approx(1 / 3)
    assert baseline("entity_f1", [["B-X"]], [["B-X", "O"]], ()) == 0.0


def test_metrics_need_no_network_and_no_transformers_and_leave_nothing_behind(project, tmp_path):
    program = (
        "import importlib.util, socket, sys\n"
        "def refuse(*a): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "from plm_core.evaluation.evaluate_modules import scores\n"
        "tags = [['O'], ['B-X']]\n"
        "for score, said, true in (\n"
        "    ('accuracy+f1:b', [0, 1], [0, 1]), ('pearson', [0, 1], [0, 1]), ('entity_f1', tags, tags),\n"
        "    ('exact_match', ['x', 'y'], [['x'], ['y']]),\n"
        "):\n"
        "    print(scores([score], said, true, ['a', 'b'])[score])\n"
        "assert 'transformers' not in sys.modules, 'imported'\n"
        "assert importlib.util.find_spec('transformers'), 'hidden from those who import it later'"
    )
    env = {"PYTHONPATH": str(project), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (run.stdout, run.returncode) == ("1.0\n" * 4, 0), run.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".arrow", ".lock", ".json")]
