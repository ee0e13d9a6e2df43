"""Trials of a sweep, without their processes."""

import json

import pytest

from flows.outcome import UserError
from flows.sweeps.space import Range, Sweep
from flows.sweeps.study import WARM, Study
from flows.sweeps.sweep import PrunedError, Trials

SWEEP = Sweep(metric="train/loss", direction="lower", space={"x": Range(0.0, 6.0)}, trials=9, minutes=60.0)


class Broken:
    """Workspaces that cannot be made; each time it notes how long the sweep has taken, as a new process reads it."""

    def __init__(self, folder):
        self.folder, self.seconds = folder, []

    def open(self, number, params):
        self.seconds.append(Study(self.folder, "s", SWEEP).seconds)
        raise UserError("no room")

    def close(self, number):
        pass


def test_a_sweep_that_is_killed_remembers_the_time_it_has_taken(tmp_path):
    study, places = Study(tmp_path, "s", SWEEP), Broken(tmp_path)
    study.seconds = 100.0
    trials = Trials(SWEEP, study, places, "train", {}, 0)
    with pytest.raises(UserError, match="the first 3 trials have failed"):
        trials.run(1)
    first, *later = places.seconds
    assert first == 100.0 < later[0] < later[1] < 160.0


def say(path, step, value, stage="train", name="loss"):
    with path.open("a") as file:
        file.write(json.dumps({"stage": stage, "step": step, "metrics": {name: value, "other": 1.0}}) + "\n")


def test_what_a_training_run_reports_is_told_once_and_ends_a_trial_that_is_worse_than_others(tmp_path):
    study, path = Study(tmp_path, "s", SWEEP), tmp_path / "reports"
    for _ in range(WARM):
        before = study.ask()
        study.report(before, 5, 1.0)
        study.end(before, 1.0, 1.0)
    trial, trials = study.ask(), Trials(SWEEP, study, Broken(tmp_path), "train", {}, 0)
    trials.look(trial, path)
    say(path, 1, 2.5)
    say(path, 2, 9.0, stage="test")
    say(path, 2, 9.0, name="score")
    trials.look(trial, path)
    say(path, 2, 2.4)
    say(path, 1, 0.7)  # it went back and says a step again
    with path.open("a") as file:
        file.write('{"stage": "train", "st')  # the next is half written
    seconds = study.seconds
    trials.look(trial, path)
    assert Study(tmp_path, "s", SWEEP).seconds > seconds  # a sweep that is killed remembers the time until now
    path.write_text("")
    say(path, 5, 1.5)
    say(path, 6, 0.1)
    with pytest.raises(PrunedError) as ended:
        trials.look(trial, path)
    assert ended.value.step == 5
    assert study.study.trials[trial.number].intermediate_values == {1: 2.5, 2: 2.4, 5: 1.5}
