"""What has been tried and what is tried next: it outlives the process, and the best is the best."""

import pytest

from flows.outcome import UserError
from flows.sweeps import study as studies
from flows.sweeps.space import Range, Sweep
from flows.sweeps.study import Study


def sweep(**changes):
    space = {"x": Range(0.0, 6.0), "n": Range(1, 8, log=True), "k": ["a", "b"]}
    given = {"metric": "train/loss", "direction": "lower", "space": space, "trials": 9}
    return Sweep(**given | changes)


def test_values_are_in_the_space_and_the_same_from_the_same_seed(tmp_path):
    tried = []
    for folder in ("one", "two", "three"):
        study = Study(tmp_path / folder, "s", sweep(seed=len(folder) // 5))
        trials = [study.ask() for _ in range(12)]
        tried.append([studies.params_of(trial) for trial in trials])
    for params in tried[0]:
        assert 0 <= params["x"] <= 6
        assert params["x"] == float(f"{params['x']:.4g}")
        assert params["n"] in range(1, 9)
        assert params["k"] in ("a", "b")
    assert tried[0] == tried[1] != tried[2]


def test_a_study_is_found_again_with_the_trials_that_were_running(tmp_path):
    study = Study(tmp_path, "s", sweep())
    study.study.enqueue_trial({"x": 1.5, "n": 2, "k": "b"})
    assert study.many() == 0
    one, two, three = study.ask(), study.ask(), study.ask()
    assert studies.params_of(one) == {"x": 1.5, "n": 2, "k": "b"}
    study.report(two, 10, 5.0)
    study.pause(two, 7.0)
    study.end(one, 3.0, 2.5)
    study.seconds = 12.5
    again = Study(tmp_path, "s", sweep(trials=11))
    assert again.many() == 3
    assert again.seconds == 12.5
    left = again.unfinished()
    assert [trial.number for trial in left] == [two.number, three.number]
    assert [again.reported(trial) for trial in left] == [10, 0]
    ended = again.end(left[0], 2.0, 1.0)
    assert (ended.number, ended.state, ended.value, ended.seconds) == (1, "complete", 2.0, 8.0)
    assert studies.params_of(left[0]) == studies.params_of(two)


def test_a_call_that_goes_on_draws_other_values(tmp_path):
    drawn = []
    for _ in range(3):
        study = Study(tmp_path, "s", sweep())
        drawn += [studies.params_of(study.ask())["x"] for _ in range(3)]
    assert len(set(drawn)) == 9


def test_part_of_a_line_that_a_full_disk_left_costs_no_other_line(tmp_path):
    study = Study(tmp_path, "s", sweep())
    for _ in range(2):
        study.end(study.ask(), 0.5, 1.0)
    for _ in range(2):
        path = tmp_path / "study.jsonl"
        path.write_bytes(path.read_bytes()[:-25])
        study.seconds = 3.0  # by the process that has seen it, or by the next one
        study = Study(tmp_path, "s", sweep())
        assert [each.state for each in study.ended()] == ["complete"]
        assert [trial.number for trial in study.unfinished()] == [1]


def test_another_space_is_another_study(tmp_path):
    Study(tmp_path, "s", sweep())
    with pytest.raises(UserError, match=r"has searched another space, or by another metric; expected the same ones"):
        Study(tmp_path, "s", sweep(direction="higher"))


@pytest.mark.parametrize(("direction", "best"), [("lower", 2), ("higher", 0)])
def test_the_best_is_one_that_ended_well(tmp_path, direction, best):
    study = Study(tmp_path, "s", sweep(direction=direction))
    assert study.best() is None
    for value, pruned in ((3.0, False), (None, False), (2.0, False), (2.5, False)):
        study.end(study.ask(), value, 1.0, "" if value else "it broke", pruned)
    worse = study.ask()
    study.report(worse, 3, -99.0 if direction == "lower" else 99.0)
    assert study.end(worse, None, 1.0, "at step 3", pruned=True).state == "pruned"
    assert study.best().number == best
    assert [each.state for each in study.ended()] == ["complete", "failed", "complete", "complete", "pruned"]
    assert study.ended()[1].reason == "it broke"


@pytest.mark.parametrize("prune", [True, False])
def test_a_trial_that_is_worse_than_the_median_at_its_step_should_end(tmp_path, prune):
    study = Study(tmp_path, "s", sweep(prune=prune))
    for value in range(studies.WARM):
        trial = study.ask()
        assert not study.report(trial, 5, 10.0 + value)
        study.end(trial, 10.0 + value, 1.0)
    assert not study.report(study.ask(), 5, 11.9)
    assert study.report(study.ask(), 5, 12.1) is prune
