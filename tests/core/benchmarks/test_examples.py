"""An example and its file: what is written is read again, in the same bytes everywhere; a sample hardly moves."""

import hashlib
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import Example, file_of, sample
from plm_core.benchmarks.task import GlueTask, read_examples, read_task, write_examples
from plm_core.config import UserError

TICKETS = GlueTask("tickets", "classification", "Which?", ("bïlling", "other", "c++"), ("accuracy",), "accuracy")
PRICES = GlueTask("prices", "regression", "How much?", (), ("pearson",), "pearson", True, (0.0, 5.0))

EXAMPLES = st.lists(st.integers(0, 10**6), unique=True, max_size=99).map(
    lambda numbers: [Example(f"d#{n}", f"a{n}", None, n % 3) for n in numbers]
)


@given(
    old=EXAMPLES,
    new=EXAMPLES,
    most=st.integers(0, 50),
    order=st.randoms(use_true_random=False),
)
def test_sample_is_stable_under_additions_and_order(old, new, most, order):
    before = sample(old, most)
    old_ids = {e.id for e in old}
    everything = old + [e for e in new if e.id not in old_ids]
    after = sample(everything, most)
    assert len(after) == min(most, len(everything))
    assert [e for e in after if e.id in old_ids] == before[: sum(e.id in old_ids for e in after)]
    assert sample(order.sample(everything, len(everything)), most) == after


def test_the_digest_of_an_example_is_that_of_its_texts():
    assert Example("x", "text", None, 1).sha256 == hashlib.sha256(b"text").hexdigest()
    pairs = {Example("x", a, b, 0).sha256 for a, b in [("ab", "c"), ("a", "bc"), ("abc", ""), ("abc", None)]}
    assert len(pairs) == 4


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def examples_with(labels):
    return st.lists(st.builds(Example, TEXTS, TEXTS, st.none() | TEXTS, labels, st.sampled_from(["", "matched"])))


@given(
    data=st.one_of(
        st.tuples(st.just(TICKETS), examples_with(st.integers(0, 2))),
        st.tuples(st.just(PRICES), examples_with(st.floats(allow_nan=False, allow_infinity=False))),
    )
)
def test_examples_round_trip_any_text(tmp_path_factory, data):
    task, examples = data
    path = tmp_path_factory.mktemp("written") / "train.jsonl"
    write_examples(path, examples, task)
    assert read_examples(path, task) == examples
    assert path.read_bytes().count(b"\n") == len(examples)
    assert b"\r" not in path.read_bytes()


def test_examples_file_has_pinned_bytes(tmp_path):
    examples = [
        Example("x", "a\u2028b", None, 0),
        Example("y", 'd"é', "", 2, "matched", group="d7"),
    ]
    write_examples(tmp_path / "x", examples, TICKETS)
    assert (tmp_path / "x").read_text(encoding="utf-8").split("\n") == [
        '{"id": "x", "a": "a\u2028b", "label": "bïlling"}',
        '{"id": "y", "a": "d\\"é", "b": "", "label": "c++", "subset": "matched", "group": "d7"}',
        "",
    ]
    write_examples(tmp_path / "y", [Example("z", "a", None, 0.1 + 0.2), Example("w", "a", None, 3)], PRICES)
    assert (tmp_path / "y").read_text() == (
        '{"id": "z", "a": "a", "label": 0.30000000000000004}\n{"id": "w", "a": "a", "label": 3.0}\n'
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "x", "a": "a", "label": "biling"}',
        b'{"id": "x", "label": "other"}',
        b'{"id": "x", "a": 3, "label": "other"}',
        b'{"id": "x", "a": "\xff", "label": "other"}',
        b"",
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"id": "w", "a": "a", "label": "other"}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"train\.jsonl:2: .*expected an example of tickets"):
        read_examples(path, TICKETS)


def test_nan_labels_are_neither_written_nor_read(tmp_path):
    path = tmp_path / "train.jsonl"
    with pytest.raises(ValueError):
        write_examples(path, [Example("x", "a", None, float("nan"))], PRICES)
    path.write_text('{"id": "x", "a": "a", "label": NaN}\n')
    with pytest.raises(UserError, match=r"train\.jsonl:1: "):
        read_examples(path, PRICES)


def test_missing_task_or_examples_are_named(tmp_path):
    with pytest.raises(UserError, match=r"task\.json: missing; run the stage"):
        read_task(tmp_path)
    with pytest.raises(UserError, match=r"test\.jsonl: missing; run the stage"):
        read_examples(file_of(tmp_path, "test"), TICKETS)
    (tmp_path / "task.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(UserError, match=r"task\.json.kind: missing"):
        read_task(tmp_path)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"labels": ("other",)}, "labels: found .*at least two"),
        ({"labels": ("other", " x")}, "labels: found ' x'"),
        ({"labels": ("other", "other")}, "labels: 'other' appears twice"),
        ({"score": "f1:bill"}, "score: found 'f1:bill'; expected names among accuracy, macro_f1, matthews, f1:b"),
        ({"score": "accuracy+"}, "score: found ''"),
        ({"kind": "regression"}, "labels: found .*expected none"),
    ],
)
def test_inconsistent_task_is_refused_by_field(changes, error):
    with pytest.raises(ValueError, match=error):
        GlueTask(**(asdict(TICKETS) | changes))
