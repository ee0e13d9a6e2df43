"""The checks of every task: files that are read, rules that change what they say and nothing else."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.behaviour import HERE, MOST, TWICE, checks_of
from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.table import TASKS
from plm_core.config import UserError

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
    found = checks_of(task, examples(task), tmp_path)
    assert len({one.id for one in found}) == len(found)
    assert all((one.b is not None) == (name in PAIRED) for one in found)
    by_hand = [one for one in found if one.id.startswith("check-")]
    assert bool(by_hand) == (HERE / f"{name}.jsonl").is_file()
    # A model that gives one answer to all fails as many as pass: no check can be passed by heart.
    shares = Counter(one.of for one in by_hand)
    assert len(set(shares.values())) <= 1
    assert len(shares) in (0, 2, 3)
    texts = Counter((one.a, one.b) for one in by_hand)
    assert not [text for text, n in texts.items() if n > 1]


def test_every_file_is_of_a_task():
    assert {path.stem for path in HERE.glob("*.jsonl")} < TASKS.keys()


@given(st.text(alphabet="abc ,.é", max_size=60))
def test_a_typo_swaps_two_neighbouring_letters_within_a_word(tmp_path_factory, text):
    task = TASKS["sst2"].task
    found = [
        one for one in checks_of(task, [Example("t", text, None, 0)], tmp_path_factory.getbasetemp()) if one.of == "t"
    ]
    words = "".join(c if c.isalpha() else " " for c in text).split()
    assert bool(found) == any(len(word) > 3 and len(set(word[1:-1])) > 1 for word in words)
    for one in found:
        (first, second) = [i for i, (x, y) in enumerate(zip(text, one.a, strict=True)) if x != y]
        assert second == first + 1
        assert (one.a[first], one.a[second]) == (text[second], text[first])
        assert text[first - 1 : second + 2].isalpha()
        assert (one.check, one.expect) == ("typos", "same")


def test_rules_are_of_the_tasks_for_which_they_hold_and_no_more_than_so_many(tmp_path):
    rules = {
        name: Counter(one.check for one in checks_of(row.task, examples(row.task, 300), tmp_path) if "/" in one.id)
        for name, row in TASKS.items()
    }
    assert rules["cola"] == {}
    assert rules["sst2"] == {"typos": MOST}
    assert rules["mrpc"] == {"typos": MOST, "swapped texts": MOST, "same text twice": MOST}
    assert rules["mnli"] == {"typos": MOST, "same text twice": MOST}
    for name, label in TWICE.items():
        task = TASKS[name].task
        assert label in task.labels if task.labels else task.span[0] <= label <= task.span[1]


def test_swapped_texts_are_those_of_the_example_the_other_way_round(tmp_path):
    task = TASKS["stsb"].task
    (one,) = [c for c in checks_of(task, [Example("t", "so", "as", 1.0)], tmp_path) if c.check == "swapped texts"]
    assert (one.a, one.b, one.expect, one.of) == ("as", "so", "same", "t")


def test_more_examples_move_no_check_but_out(tmp_path):
    """Checks compare to the examples that a smaller test set has too, and an example is changed in one way only."""
    task = TASKS["sst2"].task
    few, many = ({c.id: c for c in checks_of(task, examples(task, n), tmp_path)} for n in (250, 500))
    both = few.keys() & many.keys()
    assert len(both) > 40 + MOST / 4
    assert all(few[name] == many[name] for name in both)


def test_a_teams_own_checks_stand_behind_those_written_by_hand(tmp_path):
    (tmp_path / "checks.jsonl").write_text('{"check": "irony", "a": "great , again", "expect": {"other": "t3"}}\n')
    task = TASKS["sst2"].task
    (own,) = [one for one in checks_of(task, examples(task), tmp_path) if one.check == "irony"]
    assert (own.id, own.expect, own.of) == ("own-1", "other", "t3")


@pytest.mark.parametrize("name", ["conll2003", "squad", "swag"])
def test_a_teams_own_checks_of_a_kind_that_is_not_checked_are_refused(tmp_path, name):
    (tmp_path / "checks.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=rf"checks\.jsonl: checks of {name}, a .*; expected a classification or regr"):
        checks_of(TASKS[name].task, [], tmp_path)
