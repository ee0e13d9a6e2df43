"""Two models side by side: what is said of each task, the averages by their formulas, and what is left out."""

import csv
import math

import numpy as np
import pytest

from plm_core.config import UserError
from plm_core.evaluation.comparison import AVERAGES, MEAN, compare
from plm_core.evaluation.significance import holm, mcnemar

NINE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


def put(folder, task, correct, size=60, seed=1, score="accuracy", turn=0, subsets=("",), sha="s", together=1):
    """A task of which so many examples are right, those first that come after ``turn``; so many are a group."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("id", "sha256", "subset", "label", "prediction", "score", "measured", "group")]
    for i in range(size):
        label = ("no", "yes")[i % 2] if score != "pearson+spearman" else i / 10
        wrong = ("yes", "no")[i % 2] if score != "pearson+spearman" else (i * 7 % size) / 10
        right = (i - turn) % size < correct
        cells = (i, f"{sha}{i}", subsets[i % len(subsets)], label, label if right else wrong, score, "r")
        rows.append((*cells, f"d{i // together}"))
    with (folder / f"{task}.{seed}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def likelihood(folder, nats, quantity="bits_per_byte", size=20, sha="s", length=10):
    folder.mkdir(exist_ok=True)
    rows = [("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured")]
    rows += [(i, f"{sha}{i}", length, 3, nats + i / 100, quantity, "r") for i in range(size)]
    with (folder / "likelihood.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def both(tmp_path):
    return (tmp_path / "a", tmp_path / "b"), ("a", "b")


def test_comparison_row_has_scores_test_effect_and_verdict(tmp_path):
    put(tmp_path / "a", "sst2", 30)
    put(tmp_path / "b", "sst2", 50, turn=5)
    (row,) = compare(*both(tmp_path)).tasks
    assert (row.name, row.score, row.examples, row.test, row.better) == ("sst2", "accuracy", 60, "McNemar", "b")
    assert (row.first.value, row.second.value) == (0.5, pytest.approx(50 / 60))
    assert row.difference.value == pytest.approx(20 / 60)
    assert 0 < row.difference.interval.low < row.difference.value < row.difference.interval.high
    # b is right on 5 to 54, a on 0 to 29.
    assert row.p == row.holm == mcnemar(5, 25)
    assert row.effect == 25 / 30 - 0.5


def test_comparison_of_groups_swaps_documents_without_mcnemar(tmp_path):
    put(tmp_path / "a", "sst2", 30, together=10, subsets=("m", "mm"))
    put(tmp_path / "b", "sst2", 50, turn=5, together=10, subsets=("m", "mm"))
    whole, *parts = compare(*both(tmp_path)).tasks
    assert [(row.examples, row.groups) for row in (whole, *parts)] == [(60, 6), (30, 6), (30, 6)]
    assert (whole.test, whole.better) == ("paired permutation", None)
    assert whole.p > 0.1


def test_comparison_uses_permutation_test_for_several_seeds(tmp_path):
    for folder, correct in ((tmp_path / "a", 30), (tmp_path / "b", 55)):
        put(folder, "rte", correct)
        put(folder, "rte", correct, seed=2, turn=3)
        put(folder, "mrpc", correct, score="accuracy+f1:yes")
        put(folder, "stsb", correct, score="pearson+spearman")
    by_name = {row.name: row for row in compare(*both(tmp_path)).tasks}
    assert {row.test for row in by_name.values()} == {"paired permutation"}
    assert {row.better for row in by_name.values()} == {"b"}
    assert by_name["stsb"].score == "pearson+spearman"


def test_single_lucky_seed_is_not_significant(tmp_path):
    """The test is about these seeds, the interval about others."""
    for folder, correct in ((tmp_path / "a", 30), (tmp_path / "b", 60)):
        put(folder, "rte", 30)
        put(folder, "rte", correct, seed=2)
    (row,) = compare(*both(tmp_path)).tasks
    assert row.p < 0.001
    assert (row.difference.interval.low < 0, row.better) == (True, None)


def test_holms_correction_is_over_the_tasks(tmp_path):
    """With one task of five a little better, it is no longer enough."""
    for task in "vwxyz":
        put(tmp_path / "a", task, 30)
        put(tmp_path / "b", task, 37 if task == "v" else 30)
    rows = compare(*both(tmp_path)).tasks
    assert [row.holm for row in rows] == holm([row.p for row in rows])
    assert rows[0].p == 2 / 2**7 < 0.05 < rows[0].holm
    assert [row.better for row in rows] == [None] * 5
    (alone,) = compare(
        (put(tmp_path / "c", "v", 30), put(tmp_path / "d", "v", 37)),
        ("c", "d"),
    ).tasks
    assert alone.better == "d"


def test_subsets_are_reported_beside_their_task(tmp_path):
    put(tmp_path / "a", "mnli", 20, subsets=("matched", "mismatched"))
    put(tmp_path / "b", "mnli", 50, subsets=("matched", "mismatched"))
    whole, matched, mismatched = compare(*both(tmp_path)).tasks
    assert (matched.name, mismatched.name) == ("mnli matched", "mnli mismatched")
    assert matched.examples + mismatched.examples == whole.examples == 60
    assert (matched.first.value + mismatched.first.value) / 2 == pytest.approx(whole.first.value)
    assert (matched.holm, matched.effect, matched.test) == (None, None, "paired bootstrap")
    assert matched.better == mismatched.better == "b"


def test_a_subset_without_a_score_is_noted(tmp_path):
    for name, turn in (("a", 0), ("b", 5)):
        path = put(tmp_path / name, "sim", 30, score="pearson+spearman", turn=turn, subsets=("x", "y")) / "sim.1.csv"
        rows = list(csv.reader(path.open(newline="")))
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([[*row[:3], "5.0" if row[2] == "y" else row[3], *row[4:]] for row in rows])
    compared = compare(*both(tmp_path))
    assert [row.name for row in compared.tasks] == ["sim", "sim x"]
    assert "sim y: all labels are equal" in compared.notes


def test_the_averages_of_glue_are_named_where_every_task_of_them_is_there(tmp_path):
    for number, task in enumerate(NINE):
        subsets = ("matched", "mismatched") if task == "mnli" else ("",)
        for side, more in (("a", 0), ("b", 4)):
            put(tmp_path / side, task, 20 + 3 * number + more, subsets=subsets)
    result = compare(*both(tmp_path))
    value = {row.name: row.second.value for row in result.tasks}
    without = [value[task] for task in NINE if task != "wnli"]
    apart = [value[t] for t in NINE if t not in ("wnli", "mnli")] + [value["mnli matched"], value["mnli mismatched"]]
    means = {row.name: row.second.value for row in result.averages}
    assert list(means) == [MEAN, *AVERAGES]
    assert list(means.values()) == pytest.approx(
        [np.mean([value[t] for t in NINE]), np.mean(without), np.mean(apart), np.mean([value[t] for t in NINE])]
    )
    assert (len(without), len(apart)) == (8, 9)
    mean = result.averages[0]
    assert (mean.test, mean.better, mean.effect) == ("paired permutation", "b", None)
    assert mean.difference.interval.half < min(row.difference.interval.half for row in result.tasks)
    (tmp_path / "a/wnli.1.csv").unlink()
    fewer = compare(*both(tmp_path))
    assert [row.name for row in fewer.averages] == [MEAN, *list(AVERAGES)[:2]]
    assert fewer.notes[0] == "wnli: only b has it"
    for folder in "ab":
        put(tmp_path / folder, "mnli", 30)
    assert [row.name for row in compare(*both(tmp_path)).averages] == [MEAN, next(iter(AVERAGES))]


def test_comparison_of_likelihoods_prefers_lower(tmp_path):
    likelihood(tmp_path / "a", 2.0)
    likelihood(tmp_path / "b", 1.9)
    result = compare(*both(tmp_path))
    (row,) = result.likelihood
    assert (row.name, row.score, row.better, row.effect) == ("likelihood", "bits_per_byte", "b", 0.5)
    assert row.difference.value == pytest.approx(-0.1 / math.log(2) / 10)
    assert result.tasks == result.averages == []


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [
        ({}, {"quantity": "pseudo_bits_per_byte"}, "bits_per_byte and pseudo_bits_per_byte are not comparable"),
        (
            {"quantity": "lossy_bits_per_byte of 3fb1"},
            {"quantity": "lossy_bits_per_byte of 07aa"},
            "lossy_bits_per_byte of 3fb1 and lossy_bits_per_byte of 07aa are not comparable",
        ),
        ({}, {"length": 9}, "excerpts of different lengths are not comparable"),
        ({}, {"nats": math.nan}, "not a finite number"),
    ],
)
def test_likelihoods_that_cannot_be_compared_are_noted(tmp_path, first, second, note):
    for side, change in (("a", first), ("b", second)):
        put(tmp_path / side, "sst2", 30)
        likelihood(tmp_path / side, **({"nats": 2.0} | change))
    result = compare(*both(tmp_path))
    assert (result.likelihood, result.notes) == ([], [f"likelihood: {note}"])


def test_other_examples_are_refused_by_file(tmp_path):
    put(tmp_path / "a", "sst2", 30)
    put(tmp_path / "b", "sst2", 30, sha="t")
    with pytest.raises(
        UserError, match=r"b/sst2\.1\.csv: holds different examples than .*a/sst2\.1\.csv.*\(0 examples"
    ):
        compare(*both(tmp_path))
    put(tmp_path / "b", "sst2", 30)
    likelihood(tmp_path / "a", 1.0)
    likelihood(tmp_path / "b", 1.0, sha="t")
    with pytest.raises(UserError, match=r"b/likelihood\.csv: holds different documents than .*a/likelihood\.csv"):
        compare(*both(tmp_path))


def test_comparison_without_common_tasks_is_an_error(tmp_path):
    put(tmp_path / "a", "sst2", 30)
    put(tmp_path / "b", "rte", 30)
    with pytest.raises(UserError, match="nothing in common; rte: only b has it; sst2: only a has it; likelihood: not"):
        compare(*both(tmp_path))
