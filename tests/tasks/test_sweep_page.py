"""The page of a sweep: the best first, the front of cost and score, and pictures once there are trials enough."""

import json
import subprocess
import sys

import pytest

from flows.sweeps.space import Range, Sweep
from flows.sweeps.study import Study
from tasks.sweep_page import front


def trial(number, value, seconds):
    return {"number": number, "value": value, "seconds": seconds}


@pytest.mark.parametrize(
    ("direction", "expected"),
    [(1, [3, 0, 2]), (-1, [1, 2])],
)
def test_the_front_is_what_no_other_trial_beats_in_both(direction, expected):
    trials = [trial(0, 2.0, 20), trial(1, 5.0, 50), trial(2, 4.0, 10), trial(3, 1.0, 30), trial(4, 2.0, 25)]
    assert front(trials, direction) == expected
    assert front(trials[::-1], direction) == expected


@pytest.fixture
def folder(tmp_path):
    """A sweep of two good trials, one that was pruned and one that failed."""
    space = {"a.x": Range(0.0, 6.0), "a.k": ["one", "two|three"]}
    study = Study(tmp_path, "s", Sweep("train/loss", "lower", space, 9))
    for value, reason, pruned in (
        (3.0, "", False),
        (2.0, "", False),
        (None, "at step 3", True),
        (None, "a | b", False),
    ):
        study.end(study.ask(), value, 7.0, reason, pruned)
    write(tmp_path, study)
    return tmp_path


def write(folder, study, most=None):
    trials = [vars(each) for each in study.ended()][:most]
    space = {"a.x": {"low": 0.0, "high": 6.0}, "a.k": ["one", "two|three"]}
    found = {"metric": "train/loss", "direction": "lower", "space": space, "seconds": 90.0, "trials": trials}
    (folder / "trials.json").write_text(json.dumps(found))
    (folder / "winner.diff").write_text("-  x: 1\n+  x: <b>\n")


def page(folder):
    done = subprocess.run([sys.executable, "-m", "tasks.sweep_page", str(folder)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "sweep.html").read_text()


@pytest.mark.slow
def test_the_page_shows_the_best_first_and_what_became_of_the_others(folder):
    text = page(folder)
    assert "The best is trial 1 with 2; <code>dvc exp apply" in text
    assert "+  x: &lt;b&gt;" in text
    assert text.count("<svg") == 3
    rows = [row.partition("</td>")[0] for row in text.split("<tr>\n<td>")[1:]]
    assert rows == ["1", "0", "2", "3"]
    assert "pruned at step 3" in text
    assert "failed a | b" in text


def test_a_sweep_with_one_trial_has_no_picture_and_one_without_says_so(folder):
    study = Study(folder, "s", Sweep("train/loss", "lower", {"a.x": Range(0.0, 6.0), "a.k": ["one", "two|three"]}, 9))
    write(folder, study, 1)
    text = page(folder)
    assert "<svg" not in text
    assert "The best is trial 0 with 3" in text
    write(folder, study, 0)
    assert "No trial has succeeded." in page(folder)
