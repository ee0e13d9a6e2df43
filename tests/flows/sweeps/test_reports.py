"""What a training run reports: each report once, in order, and the trial ends when it should."""

import json

import pytest

from flows.sweeps import reports
from flows.sweeps.reports import PrunedError, Watch


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(reports, "LOOK_S", 0.0)


def say(path, *steps, stage="train", name="loss"):
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"stage": stage, "step": step, "metrics": {name: 10.0 - step, "other": 1.0}}) + "\n")


def test_each_report_of_the_metric_is_handed_on_once(tmp_path):
    path = tmp_path / "reports"
    heard = []
    watch = Watch(path, "train/loss", 0, lambda *given: bool(heard.append(given)))
    watch.look()
    say(path, 1, 2)
    say(path, 3, stage="test")
    say(path, 3, name="score")
    watch.look()
    say(path, 2, 3)  # it went back and says a step again
    with path.open("a") as file:
        file.write('{"stage": "train", "st')  # the next is half written
    watch.look()
    assert heard == [(1, 9.0), (2, 8.0), (3, 7.0)]


def test_what_was_known_before_is_not_said_again(tmp_path):
    path = tmp_path / "reports"
    say(path, 1, 2, 3)
    heard = []
    Watch(path, "train/loss", 2, lambda *given: bool(heard.append(given))).look()
    assert heard == [(3, 7.0)]


def test_a_trial_ends_at_the_first_report_that_is_bad(tmp_path):
    path = tmp_path / "reports"
    say(path, 1, 2, 3)
    with pytest.raises(PrunedError) as ended:
        Watch(path, "train/loss", 0, lambda step, _: step == 2).look()
    assert ended.value.step == 2


def test_the_file_is_not_looked_at_with_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "LOOK_S", 3600.0)
    path = tmp_path / "reports"
    heard = []
    watch = Watch(path, "train/loss", 0, lambda *given: bool(heard.append(given)))
    watch.look()
    say(path, 1)
    watch.look()
    assert heard == []
