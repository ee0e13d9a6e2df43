"""Behavioural checks are judged by what they expect, read from files, and made by rules."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.behaviour_checks import (
    HERE,
    MOST,
    TWICE,
    Check,
    Judged,
    check_counts,
    checks_of,
    read_checks,
    run_behaviour_checks,
    write_checks,
)
from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError

SST2, STSB = TASKS["sst2"].task, TASKS["stsb"].task
TEST = [Example("t1", "good", None, 1), Example("t2", "bad", None, 0)]


def words(examples):
    """A model that knows two words."""
    return [float("good" in e.a and "not" not in e.a) for e in examples]


def test_check_expectations_by_hand():
    checks = [
        Check("a", "plain", "a good film", None, "label", "positive"),
        Check("b", "negation", "not good", None, "label", "negative"),
        Check("c", "negation", "hardly good", None, "label", "negative"),
        Check("d", "typos", "godo", None, "same", "t1"),
        Check("e", "typos", "badd", None, "same", "t2"),
        Check("f", "direction", "not good", None, "other", "t1"),
        Check("g", "direction", "goodish", None, "other", "a"),
    ]
    judged = run_behaviour_checks(SST2, checks, TEST, [1.0, 0.0], words)
    assert judged == [
        Judged("a", "plain", "positive", "positive", 1),
        Judged("b", "negation", "negative", "negative", 1),
        Judged("c", "negation", "negative", "positive", 0),
        Judged("d", "typos", "positive", "negative", 0),
        Judged("e", "typos", "negative", "negative", 1),
        Judged("f", "direction", "not positive", "negative", 1),
        Judged("g", "direction", "not positive", "positive", 0),
    ]
    assert check_counts(judged) == {
        **{"checks/plain/asked": 1, "checks/plain/failed": 0, "checks/negation/asked": 2, "checks/negation/failed": 1},
        **{
            "checks/typos/asked": 2,
            "checks/typos/failed": 1,
            "checks/direction/asked": 2,
            "checks/direction/failed": 1,
        },
    }


def test_checks_compare_with_the_models_own_answer():
    (judged,) = run_behaviour_checks(SST2, [Check("a", "typos", "bda", None, "same", "t2")], TEST, [0.0, 1.0], words)
    assert (judged.expected, judged.answered, judged.passed) == ("positive", "negative", 0)


def test_checks_on_unsampled_examples_are_left_out():
    checks = [
        Check("a", "typos", "x", None, "same", "t2"),
        Check("b", "typos", "y", None, "other", "a"),
        Check("c", "plain", "bad", None, "label", "negative"),
    ]
    asked_ids = []

    def ask(examples):
        asked_ids.extend(e.id for e in examples)
        return words(examples)

    assert [check.id for check in run_behaviour_checks(SST2, checks, TEST[:1], [1.0], ask)] == asked_ids == ["c"]
    assert run_behaviour_checks(SST2, checks[:1], TEST[:1], [1.0], lambda _: pytest.fail("nothing to ask")) == []


@pytest.mark.parametrize(("answer", "passed"), [(2.24, 1), (2.26, 0), (1.76, 1)])
def test_numbers_are_the_same_within_a_twentieth_of_the_span(answer, passed):
    test = [Example("t", "a", "b", 1.0), Example("u", "a", "c", 2.0)]
    checks = [Check("s", "swapped", "b", "a", "same", "t"), Check("o", "other", "b", "a", "other", "t")]
    checks.append(Check("l", "twice", "b", "b", "label", 2.0))
    judged = run_behaviour_checks(STSB, checks, test, [2.0, 3.0], lambda some: [answer] * len(some))
    assert [check.passed for check in judged] == [passed, 1 - passed, passed]
    assert judged[0].answered == f"{answer:.4g}"


def test_checks_round_trip_and_default_ids_are_line_numbers(tmp_path):
    path = tmp_path / "checks.jsonl"
    checks = [
        Check("a", "typos", 'naïve \u2028 "', None, "same", "t1"),
        Check("b", "order", "x", "y", "other", "a"),
        Check("c", "plain", "x", "y", "label", "positive"),
    ]
    write_checks(path, checks)
    assert read_checks(path, SST2, ["t1"]) == checks
    path.write_text('{"check": "plain", "a": "x", "expect": {"label": "negative"}}\n')
    assert [check.id for check in read_checks(path, SST2, [], "own")] == ["own-1"]


GOOD = {"id": "a", "check": "plain", "a": "x", "expect": {"label": "negative"}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({k: v for k, v in GOOD.items() if k != "check"}, "lacks 'check'"),
        (GOOD | {"text": "x"}, "unknown fields text"),
        (GOOD | {"a": 3}, "id, check, a, b: expected texts"),
        (GOOD | {"check": "a/b"}, "check: found 'a/b'; expected letters"),
        (GOOD | {"expect": "negative"}, "expect: found 'negative'; expected one of label, same, other"),
        (GOOD | {"expect": {"label": "sad"}}, "expect.label: found 'sad'; expected one of negative, positive"),
        (GOOD | {"expect": {"same": "z"}}, "no test example or earlier check has the id 'z'"),
        (GOOD | {"id": "t1"}, "id: 't1' is already used"),
        ([], "not a JSON object"),
    ],
)
def test_a_damaged_check_is_named_by_its_line(tmp_path, line, message):
    path = tmp_path / "checks.jsonl"
    path.write_text(json.dumps(GOOD | {"id": "first"}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(UserError, match=rf"checks\.jsonl:2: .*{message}"):
        read_checks(path, SST2, ["t1"])


def test_check_expects_a_number_where_labels_are_numbers(tmp_path):
    path = tmp_path / "checks.jsonl"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(UserError, match=r"expect.label: found 'negative'; expected a number"):
        read_checks(path, STSB, [])
    with pytest.raises(UserError, match=r"missing.jsonl: missing; run the stage that writes it"):
        read_checks(tmp_path / "missing.jsonl", STSB, [])


PAIRED = {
    name for name, row in TASKS.items() if row.published and row.published.columns and row.published.columns.b
} | {"next"}


def examples(task, count=9):
    return [
        Example(f"t{i}", f"some words of number {i}", f"other ones {i}" if task.name in PAIRED else None, 1)
        for i in range(count)
    ]


@pytest.mark.parametrize("name", TASKS)
def test_the_files_written_by_hand_are_checks_of_their_tasks(tmp_path, name):
    task = TASKS[name].task
    checks = checks_of(task, examples(task), tmp_path)
    assert len({check.id for check in checks}) == len(checks)
    assert all((check.b is not None) == (name in PAIRED) for check in checks)
    by_hand = [check for check in checks if check.id.startswith("check-")]
    assert bool(by_hand) == (HERE / f"{name}.jsonl").is_file()
    # A model that gives one answer to all fails as many as pass: no check can be passed by heart.
    shares = Counter(check.of for check in by_hand)
    assert len(set(shares.values())) <= 1
    assert len(shares) in (0, 2, 3)
    texts = Counter((check.a, check.b) for check in by_hand)
    assert not [text for text, n in texts.items() if n > 1]


def test_every_file_is_of_a_task():
    assert {path.stem for path in HERE.glob("*.jsonl")} < TASKS.keys()


@given(st.text(alphabet="abc ,.é", max_size=60))
def test_a_typo_swaps_two_neighbouring_letters_within_a_word(tmp_path_factory, text):
    task = TASKS["sst2"].task
    checks = [
        check
        for check in checks_of(task, [Example("t", text, None, 0)], tmp_path_factory.getbasetemp())
        if check.of == "t"
    ]
    words = "".join(c if c.isalpha() else " " for c in text).split()
    assert bool(checks) == any(len(word) > 3 and len(set(word[1:-1])) > 1 for word in words)
    for check in checks:
        (first, second) = [i for i, (x, y) in enumerate(zip(text, check.a, strict=True)) if x != y]
        assert second == first + 1
        assert (check.a[first], check.a[second]) == (text[second], text[first])
        assert text[first - 1 : second + 2].isalpha()
        assert (check.check, check.expect) == ("typos", "same")


def test_check_rules_are_limited_by_task_and_number(tmp_path):
    rules = {
        name: Counter(
            check.check for check in checks_of(row.task, examples(row.task, 300), tmp_path) if "/" in check.id
        )
        for name, row in TASKS.items()
    }
    assert rules["cola"] == {}
    assert rules["sst2"] == {"typos": MOST}
    assert rules["mrpc"] == {"typos": MOST, "swapped texts": MOST, "same text twice": MOST}
    assert rules["mnli"] == {"typos": MOST, "same text twice": MOST}
    for name, label in TWICE.items():
        task = TASKS[name].task
        assert label in task.labels if task.labels else task.span[0] <= label <= task.span[1]


def test_swapped_check_exchanges_the_texts(tmp_path):
    task = TASKS["stsb"].task
    (check,) = [c for c in checks_of(task, [Example("t", "so", "as", 1.0)], tmp_path) if c.check == "swapped texts"]
    assert (check.a, check.b, check.expect, check.of) == ("as", "so", "same", "t")


def test_checks_are_stable_under_more_examples(tmp_path):
    """Checks compare to the examples that a smaller test set has too, and an example is changed in one way only."""
    task = TASKS["sst2"].task
    few, many = ({c.id: c for c in checks_of(task, examples(task, n), tmp_path)} for n in (250, 500))
    both = few.keys() & many.keys()
    assert len(both) > 40 + MOST / 4
    assert all(few[name] == many[name] for name in both)


def test_custom_checks_follow_those_written_by_hand(tmp_path):
    (tmp_path / "checks.jsonl").write_text('{"check": "irony", "a": "great , again", "expect": {"other": "t3"}}\n')
    task = TASKS["sst2"].task
    (own,) = [check for check in checks_of(task, examples(task), tmp_path) if check.check == "irony"]
    assert (own.id, own.expect, own.of) == ("own-1", "other", "t3")


@pytest.mark.parametrize("name", ["conll2003", "squad", "swag"])
def test_custom_checks_of_unsupported_kinds_are_refused(tmp_path, name):
    (tmp_path / "checks.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=rf"checks\.jsonl: checks of {name}, a .*; expected a classification or regr"):
        checks_of(TASKS[name].task, [], tmp_path)
