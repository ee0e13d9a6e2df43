"""The search: what is tried, which trials end early, which is the best. A small program takes the place of trials."""

import pytest

from flows.sweeps import sweep as sweeps
from flows.sweeps.study import WARM, Range, Sweep, best, distribution, ended_trials, open_study, params_of
from flows.sweeps.sweep import Trials

SPACE = {"x": Range(0.0, 6.0), "n": Range(1, 8, log=True), "k": ["a", "b"]}
TRIAL = """
import json, os, pathlib, time

number = int(os.environ["PLM_TRIAL"].rpartition("-")[2])
def report(step, value, stage="train", name="loss"):
    line = json.dumps({"stage": stage, "step": step, "metrics": {name: value, "other": 1.0}})
    with open(os.environ["PLM_REPORTS"], "a") as file:
        file.write(line + "\\n")
report(1, 20.0)
print("a line", flush=True)
report(2, 99.0, stage="test")
report(2, 99.0, name="score")
report(1, 0.5)  # it went back, and reports a step again
report(5, 10.0 + number)
with open(os.environ["PLM_REPORTS"], "a") as file:
    file.write('{"stage": "train", "st')  # the next line is half written
print("another line", flush=True)
while number == LAST:
    time.sleep(1)
pathlib.Path("artifacts/metrics").mkdir(parents=True)
pathlib.Path("artifacts/metrics/train.json").write_text(json.dumps({"loss": 10.0 + number}))
"""


def sweep(**changes):
    return Sweep(**{"metric": "train/loss", "direction": "lower", "space": SPACE, "trials": WARM + 1} | changes)


class Places:
    """Folders in which the program above takes the place of a trial; ``last`` is the number of one that does not end
    by itself."""

    def __init__(self, folder, last):
        self.folder, self._last = folder, last

    def place(self, number, suffix=""):
        return self.folder / f"{number}{suffix}"

    def open(self, number, params):
        module = self.place(number) / "flows/sweeps"
        module.mkdir(parents=True)
        (module.parent / "__init__.py").touch()
        (module / "trial.py").write_text(f"LAST = {self._last}\n{TRIAL}")
        return self.place(number)

    def keep(self, number):
        pass

    close = keep


@pytest.mark.parametrize(
    ("direction", "prune", "last"), [("lower", True, WARM), ("lower", False, -1), ("higher", True, -1)]
)
def test_trial_worse_than_the_median_is_pruned(tmp_path, monkeypatch, direction, prune, last):
    monkeypatch.setattr(sweeps, "LOOK_S", 0.0)
    rules = sweep(direction=direction, prune=prune)
    study = open_study(tmp_path, rules)
    Trials(rules, study, Places(tmp_path, last), "train", {}, 0).run(1)
    pruned = last == WARM
    states = ["complete"] * WARM + ["pruned" if pruned else "complete"]
    trials = ended_trials(open_study(tmp_path, rules))
    assert [trial.state for trial in trials] == states
    assert [trial.value for trial in trials] == [10.0 + number for number in range(WARM + 1)]
    assert trials[-1].reason == ("at step 5" if pruned else "")
    assert {str(trial.intermediate_values) for trial in study.trials[:1]} == {"{1: 20.0, 5: 10.0}"}
    assert best(study).number == (0 if direction == "lower" else WARM)
    assert study.user_attrs["seconds"] > sum(trial.seconds for trial in trials) > 0


def test_trial_values_depend_on_seed_and_call(tmp_path):
    space = {name: distribution(values) for name, values in SPACE.items()}
    tried = []
    for folder, seed in (("one", 0), ("two", 0), ("three", 1)):
        (tmp_path / folder).mkdir()
        study = open_study(tmp_path / folder, sweep(seed=seed))
        tried.append([params_of(study.ask(space)) for _ in range(12)])
    for params in tried[0]:
        assert 0 <= params["x"] <= 6
        assert params["x"] == float(f"{params['x']:.4g}")
        assert params["n"] in range(1, 9)
        assert params["k"] in ("a", "b")
    assert tried[0] == tried[1] != tried[2]
    later = open_study(tmp_path / "one", sweep())
    assert params_of(later.ask(space))["x"] not in [params["x"] for params in tried[0]]
