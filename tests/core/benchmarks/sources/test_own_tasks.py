"""A team's own task: what its files say is what its examples say, and whatever is wrong is one line with its place."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import ExamplesConfig
from plm_core.benchmarks.task_sources import read_source
from plm_core.config import UserError, from_dict

TICKETS = {
    "kind": "classification",
    "a": "text",
    "label": "category",
    "labels": ["billing", "other"],
    "score": "accuracy",
}
THREE = ("text", "category", "customer")
ROWS = [("pay me", "billing"), ("hello", "other"), ('a "b', "billing"), ("Ünï", "other")]


def read(folder, name="tickets", **changes):
    given_section = {k: v for k, v in ({"input": str(folder)} | TICKETS | changes).items() if v is not ...}
    return read_source(name, from_dict(ExamplesConfig, given_section, f"examples.{name}"))


def write(path, rows, columns=("text", "category")):
    """The rows in the format that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        elif path.suffix == ".csv":
            csv.writer(file).writerows([columns, *rows])
        else:
            file.writelines("\t".join(map(str, row)) + "\n" for row in [columns, *rows])


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "tickets/train.tsv", ROWS * 9)
    write(tmp_path / "tickets/test.csv", ROWS)
    return tmp_path / "tickets"


def test_custom_task_is_described_in_six_lines(folder):
    source = read(folder)
    assert source.splits["test"] == [
        Example("test-1", "pay me", None, 0),
        Example("test-2", "hello", None, 1),
        Example("test-3", 'a "b', None, 0),
        Example("test-4", "Ünï", None, 1),
    ]
    assert len(source.splits["train"]) + len(source.splits["valid"]) == 36
    assert source.splits["valid"]
    task = source.task
    assert (task.name, task.labels, task.score) == ("tickets", ("billing", "other"), "accuracy")
    assert task.metrics == ("accuracy", "macro_f1", "matthews")
    assert task.question == "category: billing, other?"


def test_group_column_of_custom_task(folder):
    write(folder / "test.csv", [(*row, customer) for row, customer in zip(ROWS, "abba", strict=True)], THREE)
    write(folder / "train.tsv", [(*row, "a") for row in ROWS * 9], THREE)
    source = read(folder, group="customer")
    assert [e.group for e in source.splits["test"]] == ["a", "b", "b", "a"]
    with pytest.raises(UserError, match=r"train\.tsv:2: no column 'custom'; found text, category, customer"):
        read(folder, group="custom")


def test_custom_validation_file_is_taken_whole(folder):
    write(folder / "valid.jsonl", ROWS[:3])
    source = read(folder)
    assert [e.id for e in source.splits["valid"]] == ["valid-1", "valid-2", "valid-3"]
    assert len(source.splits["train"]) == 36


def test_a_regression_of_pairs_with_ids_needs_no_labels(tmp_path):
    columns = ("key", "x", "y", "price")
    write(tmp_path / "train.jsonl", [(7, "a", "b", 1), (8, "a ", "c", -2.5), ("n", "d", "e", "1e-3")], columns)
    write(tmp_path / "test.tsv", [("t1", "a", "b", ".5")], columns)
    described = {"kind": "regression", "a": "x", "b": "y", "label": "price", "labels": ..., "id": "key"}
    source = read(tmp_path, **described, score="pearson+spearman", metrics=["pearson"], symmetric=True)
    assert source.splits["test"] == [Example("t1", "a", "b", 0.5)]
    assert sorted((e.id, e.a, e.b, e.label) for e in source.splits["train"] + source.splits["valid"]) == [
        ("7", "a", "b", 1.0),
        ("8", "a", "c", -2.5),
        ("n", "d", "e", 0.001),
    ]
    assert (source.task.metrics, source.task.symmetric) == (("pearson", "spearman"), True)


def test_classes_may_be_numbers_in_json(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"{split}.jsonl", [("a", 0), ("b", 1), ("c", 0), ("d", 1)] * 5)
    assert [e.label for e in read(tmp_path, labels=["1", "0"]).splits["test"][:2]] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kind": ...}, r"^examples\.tickets: not a task of the table .*kind is missing"),
        ({"score": ...}, r"^examples\.tickets: .*score is missing"),
        ({"kind": "clasification"}, r"^examples\.tickets\.kind: .*one of classification, regression"),
        ({"score": "f1:bills"}, r"^examples\.tickets\.score: found 'f1:bills'.*f1:billing"),
        ({"kind": "regression"}, r"^examples\.tickets\.labels: .*none for a regression"),
        ({"a": "txt"}, r"train\.tsv:2: no column 'txt'; found text, category; did you mean 'text'\?"),
        ({"labels": ["billing", "else"]}, r"train\.tsv:3: the label 'other' .*one of billing, else"),
        ({"labels": ["billing", "other", "spam"]}, r"tickets: no example of the class 'spam' to train on"),
        ({"id": "text"}, r"train\.tsv:6: the id 'pay me' was used before, at .*train\.tsv:2; expected unique ids"),
        ({"input": "nowhere"}, r"^nowhere: not a folder; .*\(examples\.tickets\.input\)"),
    ],
)
def test_invalid_custom_task_is_refused(folder, changes, error):
    with pytest.raises(UserError, match=error):
        read(folder, **changes)


def test_class_with_only_held_out_examples_is_reported(folder):
    train, valid = (read(folder).splits[split] for split in ("train", "valid"))
    rows = sorted((int(e.id.removeprefix("train-")), e.a, e in valid) for e in [*train, *valid])
    write(folder / "train.tsv", [(text, "billing" if held else "other") for _, text, held in rows])
    with pytest.raises(UserError, match=r"'billing' to train on \(all of them were held out for validation\); "):
        read(folder)
    write(folder / "valid.tsv", ROWS)
    write(folder / "train.tsv", [(text, "other") for _, text, _ in rows])
    with pytest.raises(UserError, match=r"no example of the class 'billing' to train on; "):
        read(folder)


def test_misspelt_or_redefined_task_name_is_refused(folder):
    with pytest.raises(UserError, match=r"^examples\.sst: unknown task; did you mean 'sst2'\?"):
        read_source("sst", ExamplesConfig(str(folder)))
    with pytest.raises(UserError, match=r"^examples\.tickets: not a task of the table \(cola, sst2, "):
        read_source("tickets", ExamplesConfig(str(folder)))
    with pytest.raises(UserError, match=r"^examples\.cola: is a task of the table; expected `input` alone"):
        read(folder, "cola")


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("test.tsv", "text\tcategory\nx\n", r"test\.csv: test\.csv exists|test\.tsv: test\.csv exists too"),
        ("train.tsv", "text\tcategory\na\tbilling\n\tother\n", r"train\.tsv:3: nothing in the column 'text'"),
        ("train.tsv", "text\tcategory\n", r"train\.tsv: no example in it"),
        ("train.tsv", "text\tcategory\na\tbiling\n", r"train\.tsv:2: .*did you mean 'billing'\?"),
        ("valid.jsonl", '{"text": 7, "category": "other"}', r"valid\.jsonl:1: found int in the column 'text'"),
        ("valid.jsonl", '{"text": "a\\u0000", "category": "other"}', r"valid\.jsonl:1: a NUL"),
        ("valid.jsonl", '{"text": "a", "category": true}', r"valid\.jsonl:1: the label True"),
    ],
)
def test_invalid_task_file_is_refused_with_its_line(folder, file, content, error):
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=error) as refused:
        read(folder)
    assert "\n" not in str(refused.value)


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\n\r"), max_size=12)
LABEL = st.sampled_from(["billing", "other"])


@given(rows=st.lists(st.tuples(CELL, LABEL), max_size=20), suffix=st.sampled_from([".csv", ".jsonl", ".tsv"]))
def test_custom_task_text_round_trips_through_each_format(tmp_path_factory, rows, suffix):
    folder = tmp_path_factory.mktemp("own")
    good = [("x", "billing"), ("y", "other"), *((text, label) for text, label in rows if text.strip())]
    for split in ("train", "valid", "test"):
        write(folder / f"{split}{suffix}", good)
    for examples in read(folder).splits.values():
        assert [(e.a, TICKETS["labels"][e.label]) for e in examples] == [(a.strip(), label) for a, label in good]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr)


@given(number=NUMBERS | st.text(max_size=6) | st.sampled_from(["nan", "inf", "1_0", "1e999", "٣", "0x1", "1,5", ""]))
def test_custom_task_numbers_are_parsed(tmp_path_factory, number):
    folder = tmp_path_factory.mktemp("own")
    for split in ("train", "valid", "test"):
        write(folder / f"{split}.jsonl", [("a", number)])
    described = {"kind": "regression", "labels": ..., "score": "pearson"}
    try:
        expected = float(number)
        plain = set(number.strip()) <= set("0123456789.eE+-") and abs(expected) < float("inf")
    except ValueError:
        plain = False
    if plain:
        assert read(folder, **described).splits["test"][0].label == expected
    else:
        with pytest.raises(UserError, match=r"train\.jsonl:1: .*expected a number"):
            read(folder, **described)
