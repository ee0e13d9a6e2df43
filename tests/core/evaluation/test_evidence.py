"""Evidence files are read strictly, in any order of their rows, and a task's seeds are one table."""

import csv

import numpy as np
import pytest

from plm_core.config import UserError
from plm_core.evaluation.evidence import read_cost, read_likelihood, read_task, task_files

TASK = "id,sha256,subset,label,prediction,confidence,score,measured\n"
LIKELIHOOD = "id,sha256,bytes,tokens,nats,quantity,measured\n"


@pytest.fixture
def put(tmp_path):
    """Write a file of these rows; returns its path."""

    def put(name, rows, header=TASK):
        path = tmp_path / name
        path.write_text(header + "".join(f"{row}\n" for row in rows), errors="surrogateescape")
        return path

    return put


def test_evidence_files_are_found_by_task_and_seed(put, tmp_path):
    for name in ("b.10.csv", "b.2.csv", "a-b_c.1.csv", "likelihood.csv", "cost.csv", "old.csv", "x.y.csv", "z.1.txt"):
        put(name, ["1,x,m,yes,no,0.75,accuracy,r"])
    names = {task: [path.name for path in files] for task, files in task_files(tmp_path).items()}
    assert names == {"a-b_c": ["a-b_c.1.csv"], "b": ["b.2.csv", "b.10.csv"]}


def test_evidence_of_seeds_is_one_table_with_their_mean(put):
    first = put("nli.1.csv", ["2,x,mm,yes,no,0.75,accuracy,r", "1,y,m,no,no,0.75,accuracy,r"])
    second = put("nli.2.csv", ["1,y,m,no,maybe,0.75,accuracy,r", "2,x,mm,yes,no,0.75,accuracy,r"])
    table = read_task([first, second])
    assert (table.metric, table.value, table.files) == ("nli/score", 0.25, ("nli.1.csv", "nli.2.csv"))
    assert table.results.classes == ("maybe", "no", "yes")
    assert table.results.subsets == ("m", "mm")
    assert table.results.predictions.tolist() == [[1, 1], [0, 1]]
    assert read_task([first]).examples == table.examples


@pytest.mark.parametrize(("score", "answer"), [("accuracy", "x"), ("entity_f1", "B-A")])
def test_evidence_groups_examples(put, score, answer):
    named = [("4", "d2"), ("1", "d1"), ("2", ""), ("3", "d1")]
    rows = [f"{i},a,{group},,{answer},{answer},,{score},r" for i, group in named]
    table = read_task([put("t.1.csv", rows, TASK.replace("subset", "group,subset"))])
    first, second, third, fourth = table.results.groups
    assert first == third
    assert len({first, second, fourth}) == table.groups == 3
    before = read_task([put("t.1.csv", [f"{i},a,,{answer},{answer},,{score},r" for i, _ in named])])
    assert before.groups == 4
    assert before.examples == table.examples


@pytest.mark.parametrize(
    ("score", "labels", "value"),
    [
        ("accuracy", ["a", "b", "b"], 2 / 3),
        ("pearson", ["1", "2", "4"], 0.0),
        ("entity_f1", ["B-A O", "O O", "O O"], 0.0),
        ("exact_match", ['["x"]', "[]", '["x", "y"]'], 1 / 3),
    ],
)
def test_baseline_is_the_most_frequent_answer_or_none(put, score, labels, value):
    rows = [(str(i), "s", "", label, labels[0], "", score, "r") for i, label in enumerate(labels)]
    with (path := put("t.1.csv", [])).open("a", newline="") as file:
        csv.writer(file).writerows(rows)
    unread = read_task([path]).unread()
    assert unread.values(np.ones((1, 3))).tolist() == [[pytest.approx(value)]]


def test_confidences_are_by_seed_and_example(put):
    first = put("nli.1.csv", [f"2,x,,yes,no,{1 / 3!r},accuracy,r", "1,y,,no,no,1.0,accuracy,r"])
    second = put("nli.2.csv", ["1,y,,no,yes,0.0,accuracy,r", "2,x,,yes,no,,accuracy,r"])
    np.testing.assert_array_equal(read_task([first, second]).confidences, [[1.0, 1 / 3], [0.0, np.nan]])


def test_evidence_numbers_keep_their_digits(put):
    rows = [f"{i},x,,{label!r},{label + 0.1!r},,pearson+spearman,r" for i, label in enumerate([0.1, 1 / 3, 5.0])]
    table = read_task([put("sim.1.csv", rows)])
    assert table.results.labels.tolist() == [0.1, 1 / 3, 5.0]
    assert table.value == pytest.approx(1.0)
    assert table.results.predictions.dtype == np.float64


def test_cost_evidence_is_read(put):
    assert read_cost(put("cost.csv", ["parameters,1234567"], "quantity,value\n")) == {"parameters": 1234567.0}
    with pytest.raises(UserError, match=r"cost\.csv:2: found 'many'; expected a number"):
        read_cost(put("cost.csv", ["parameters,many"], "quantity,value\n"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,a,,x,x,0.75,accuracy,r", "1,b,,x,x,0.75,accuracy,r"], r"t\.1\.csv:3: the id '1' occurs twice"),
        (["1,a"], r"t\.1\.csv:2: too few fields"),
        (["1,a,,\udcff,x,0.75,accuracy,r"], r"t\.1\.csv: damaged"),
        ([], "holds no example"),
        (["1,a,,x,x,0.75,accuracy,r", "2,b,,x,x,0.75,matthews,r"], "the column score does not hold 'accuracy' alone"),
        (["1,a,,x,x,0.75,perplexity,r"], r"t\.1\.csv: score: found 'perplexity'; expected accuracy"),
        (["1,a,,x,x,0.75,f1:y,r"], "no label is 'y', whose F1 is the score; expected it among x"),
        (["1,a,,1.5,2,,pearson,r", "2,b,,x,2,,pearson,r"], "could not convert.*expected numbers in the column label"),
        (["1,a,,1,2,,pearson,r", "2,b,,2,nan,,pearson,r"], "the column prediction holds nan; expected finite numbers"),
        (["1,a,,x,x,1.5,accuracy,r"], r"t\.1\.csv: the column confidence holds 1\.5; expected probabilities"),
        (["1,a,,1,2,,pearson,r", "2,b,,1,3,,pearson,r"], "all labels are 1; expected different labels"),
    ],
)
def test_damaged_task_evidence_is_a_clear_error(put, rows, message):
    with pytest.raises(UserError, match=message):
        read_task([put("t.1.csv", rows)])


def test_evidence_seed_of_other_examples_is_named(put):
    first = put("t.1.csv", ["1,a,,x,x,0.75,accuracy,r"])
    for row in (
        "1,b,,x,x,0.75,accuracy,r",
        "1,a,m,x,x,0.75,accuracy,r",
        "1,a,,y,x,0.75,accuracy,r",
        "1,a,,x,x,0.75,accuracy,q",
        "2,a,,x,x,0.75,accuracy,r",
    ):
        with pytest.raises(UserError, match=r"t\.2\.csv: holds different examples than t\.1\.csv"):
            read_task([first, put("t.2.csv", [row])])
    with pytest.raises(UserError, match=r"t\.2\.csv: the column score does not hold 'accuracy' alone"):
        read_task([first, put("t.2.csv", ["1,a,,x,x,0.75,matthews,r"])])


def test_evidence_missing_column_is_named(put):
    with pytest.raises(UserError, match="lacks the columns subset, score; expected id,sha256,group,subset"):
        read_task([put("t.1.csv", ["1,a,x,x,r"], "id,sha256,label,prediction,measured\n")])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,a,x,1,1,bits_per_byte,r", "invalid literal"),
        ("1,a,0,1,1,bits_per_byte,r", "0 bytes of text"),
        ("1,a,9,1,1,perplexity,r", "holds perplexity"),
    ],
)
def test_a_damaged_likelihood_is_a_clear_error(put, row, message):
    with pytest.raises(UserError, match=message):
        read_likelihood(put("likelihood.csv", [row], LIKELIHOOD))


def test_answers_are_measured_against_every_right_one(put):
    rows = [
        '1,x,,"[""the Limu river"", ""Limu""]",limu,0.5,exact_match+answer_f1,r',
        '2,y,,"[""in Bato""]",Bato,0.5,exact_match+answer_f1,r',
        "3,z,,[],,0.5,exact_match+answer_f1,r",
    ]
    table = read_task([put("qa.1.csv", rows)])
    assert table.results.above.tolist() == [[[1.0, 0.0, 1.0]], [[1.0, pytest.approx(2 / 3), 1.0]]]
    assert table.value == pytest.approx((2 / 3 + (1 + 2 / 3 + 1) / 3) / 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,x,,O O,O,0.5,entity_f1,r", "'1': 1 tags for 2 words; expected what its stage writes"),
        ("1,x,,O,PER,0.5,entity_f1,r", "'1': tag 1: found 'PER'; expected O, B-<type>"),
        ("1,x,,Limu,Limu,0.5,exact_match,r", "'1': Expecting value"),
        ("1,x,,3,Limu,0.5,exact_match,r", "'1': the label 3; expected a JSON list of texts"),
        ("1,x,,good,,0.5,pair_accuracy,r", "'1': the prediction '' is not one of good, tie, bad"),
        ("1,x,,O,O,0.5,entity_f1+exact_match,r", "expected scores of one family"),
    ],
)
def test_damaged_tags_and_answers_are_a_clear_error(put, row, message):
    with pytest.raises(UserError, match=message):
        read_task([put("t.1.csv", [row])])
