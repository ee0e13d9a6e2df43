"""A trial's process: one stage and what it depends on, and no other stage."""

import subprocess
import sys

import pytest

GRAPH = """
stages:
  first:
    cmd: echo one > first.txt
    outs: [first.txt]
  wanted:
    cmd: cat first.txt > wanted.txt
    deps: [first.txt]
    outs: [wanted.txt]
  other:
    cmd: cat first.txt > other.txt
    deps: [first.txt]
    outs: [other.txt]
  broken:
    cmd: "echo 'error: no more' && exit 7"
    deps: [wanted.txt]
    meta: {retries: 3}
"""


@pytest.fixture
def root(toy):
    params = "tracking: {uri: 'sqlite:///mlflow.db', experiment: plm}\npromotion: {registered_model: plm}\n"
    return toy(GRAPH, params_yaml=params)


def run(root, stage):
    command = [sys.executable, "-m", "flows.sweeps.trial", stage]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_it_runs_what_is_not_up_to_date_and_ends_as_its_stage_does(root):
    status, said = run(root, "wanted")
    assert status == 0, said
    assert said.count("runs: ") == 2
    assert (root / "wanted.txt").read_text() == "one\n"
    assert not (root / "other.txt").exists()
    assert run(root, "wanted") == (0, "")
    status, said = run(root, "broken")
    assert status == 7
    assert said.splitlines()[-1] == "error: broken: exit status 7: no more"
