"""Trials of a sweep, without their processes."""

import pytest

from flows.outcome import UserError
from flows.sweeps.space import Range, Sweep
from flows.sweeps.study import Study
from flows.sweeps.trials import Trials

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
    ended = Study(tmp_path, "s", SWEEP).seconds
    trials._reported(study.ask(), 1, 0.5)
    assert Study(tmp_path, "s", SWEEP).seconds > ended
