"""The page of a sweep: the best first, the front of cost and score, and pictures once there are enough trials."""

import json
import subprocess
import sys

import optuna
import pytest
from optuna.trial import TrialState

from flows.sweeps.study import Range, Sweep, distribution, ended_trials, open_study

SWEEP = Sweep("train/loss", "lower", {"a.x": Range(0.0, 6.0), "a.k": ["one", "two|three"]}, 9)
ENDS = (
    (3.0, TrialState.COMPLETE, "", 5.0),
    (2.0, TrialState.COMPLETE, "", 7.0),
    (None, TrialState.PRUNED, "at step 3", 7.0),
    (None, TrialState.FAIL, "a | b", 7.0),
    (4.0, TrialState.COMPLETE, "", 6.0),
)


@pytest.fixture
def study(tmp_path) -> optuna.Study:
    """A sweep of three good trials, one that was pruned and one that failed."""
    study = open_study(tmp_path, SWEEP)
    for value, state, reason, seconds in ENDS:
        trial = study.ask({name: distribution(values) for name, values in SWEEP.space.items()})
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("seconds", seconds)
        study.tell(trial, value, state)
    return study


def page(folder, study, direction="lower", most=None):
    """The page that a sweep with the first trials has."""
    trials = [vars(trial) for trial in ended_trials(study)][:most]
    space = {"a.x": {"low": 0.0, "high": 6.0}, "a.k": ["one", "two|three"]}
    sweep = {"metric": "train/loss", "direction": direction, "space": space, "seconds": 90.0, "trials": trials}
    (folder / "trials.json").write_text(json.dumps(sweep))
    (folder / "winner.diff").write_text("-  x: 1\n+  x: <b>\n")
    done = subprocess.run(
        [sys.executable, "-m", "tasks.commands.sweep_page", str(folder)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "sweep.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "best", "front"), [("lower", [1, 0, 4], "1, 0"), ("higher", [4, 0, 1], "4, 0")])
def test_sweep_page_shows_the_best_trial_first(tmp_path, study, direction, best, front):
    text = page(tmp_path, study, direction)
    assert f"The best is trial {best[0]} with {ENDS[best[0]][0]:g}; <code>dvc exp apply" in text
    assert f"the trials that no other beats in both metric and time: {front}. Times" in " ".join(text.split())
    assert "+  x: &lt;b&gt;" in text
    assert text.count("<svg") == 3
    rows = [row.partition("</td>")[0] for row in text.split("<tr>\n<td>")[1:]]
    assert rows == [str(number) for number in (*best, 2, 3)]
    assert "pruned at step 3" in text
    assert "failed a | b" in text


def test_sweep_page_with_few_trials_has_no_picture(tmp_path, study):
    text = page(tmp_path, study, most=1)
    assert "<svg" not in text
    assert "The best is trial 0 with 3" in text
    assert "No trial has succeeded." in page(tmp_path, study, most=0)
