"""Checkouts of trials: the files as they were at the beginning, and experiments of what trials made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toys import git

from flows.sweeps import trial_checkouts
from flows.sweeps.trial_checkouts import TrialCheckouts
from plm_core.shared.errors import UserError

PARAMS = "a:\n  x: 1 # a comment\n  y: 2\n"


@pytest.fixture
def root(toy):
    root = toy("stages: {}\n", params_yaml=PARAMS, code_py="one\n")
    (root / ".gitignore").write_text("/artifacts/*\n!/artifacts/metrics/\n/data/\n")
    git(root, "add", "--all")
    git(root, "commit", "-qm", "one")
    return root


@pytest.fixture
def made(root):
    return TrialCheckouts(root, "s", ["data/raw.txt", "large.bin", "code.py"], root / ".dvc/cache")


def test_trial_checkouts_include_files_not_in_git(root, made, monkeypatch):
    monkeypatch.setattr(trial_checkouts, "LARGEST", 10)
    (root / "code.py").write_text("two\n")
    (root / "new.py").write_text("new\n")
    (root / "large.bin").write_text("x" * 11)
    latin = os.fsdecode("stück.py".encode("latin-1"))
    (root / latin).write_text("old\n")
    (root / "data").mkdir()
    (root / "data/raw.txt").write_text("raw")
    before = git(root, "status", "--porcelain")
    assert made.freeze() == []
    assert git(root, "status", "--porcelain") == before
    (root / "code.py").write_text("three\n")
    place = made.open(3, {"a.x": 7})
    assert place == root / "artifacts/sweeps/s/trials/3"
    assert (place / "code.py").read_text() == "two\n"
    assert (place / "new.py").read_text() == "new\n"
    assert (place / latin).read_text() == "old\n"
    assert (place / "large.bin").is_symlink()
    assert (place / "data/raw.txt").read_text() == "raw"
    assert (place / "params.yaml").read_text() == PARAMS.replace("x: 1", "x: 7")
    assert git(root, "status", "--porcelain") == before
    # Another process goes on with the same files, and says what they are not.
    again = TrialCheckouts(root, "s", [], root / ".dvc/cache")
    assert again.freeze() == ["code.py"]
    assert again.commit == made.commit


def test_trial_commits_ignore_user_settings_and_hooks(root, made):
    for name in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction"):
        hook = root / ".git/hooks" / name
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
    for name, value in {"commit.gpgSign": "true", "user.signingKey": "none", "user.useConfigOnly": "true"}.items():
        git(root, "config", name, value)
    made.freeze()
    assert (made.open(1, {"a.x": 7}) / "code.py").read_text() == "one\n"


def test_partial_trial_checkout_is_made_anew(root, made):
    made.freeze()
    place = made.open(1, {"a.x": 7})
    (place / "state").write_text("half way")
    assert made.open(1, {"a.x": 7}) == place
    assert (place / "state").read_text() == "half way"
    place.rename(made.place(1, ".new"))  # killed before it was complete
    with pytest.raises(UserError, match=r"b: no such section in params\.yaml"):
        made.open(1, {"b.x": 8})
    made.open(1, {"a.x": 8})
    assert not (place / "state").exists()
    assert "x: 8" in (place / "params.yaml").read_text()


def test_trial_becomes_a_dvc_experiment(root, made, monkeypatch):
    monkeypatch.setattr(trial_checkouts, "LARGEST", 10)
    (root / "large.bin").write_text("x" * 11)
    (root / "data").mkdir()
    (root / "data/raw.txt").write_text("raw")
    for name, value in {"noprefix": "true", "external": "echo"}.items():
        git(root, "config", f"diff.{name}", value)
    git(root, "config", "color.ui", "always")
    (root / "code.py").unlink()
    (root / "code.py").symlink_to("params.yaml")  # a link that is the project's own
    made.freeze()
    place = made.open(1, {"a.x": 7})
    (place / "artifacts/metrics").mkdir(parents=True)
    (place / "artifacts/metrics/train.json").write_text(json.dumps({"loss": 0.25}))
    made.keep(1)
    made.close(1)
    assert not place.exists()
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "exp", "list", "--name-only"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == ["s-1"]
    (experiment,) = git(root, "for-each-ref", "--format=%(objectname)", "refs/exps").split()
    names = git(root, "ls-tree", "-r", "--name-only", experiment).split()
    assert "artifacts/metrics/train.json" in names
    assert not {"data/raw.txt", "large.bin"} & {*names}  # links to what git does not have
    assert "code.py" in names
    assert made.difference(1).count("\n-  x: 1 # a comment\n+  x: 7 # a comment\n") == 1
    (root / "change.diff").write_text(made.difference(1))
    git(root, "apply", "change.diff")
    assert (root / "params.yaml").read_text() == PARAMS.replace("x: 1", "x: 7")


def test_a_sweep_that_is_removed_leaves_nothing_and_others_alone(root, made):
    other = TrialCheckouts(root, "s-1", [], root / ".dvc/cache")
    other.freeze()
    other.open(2, {})
    other.keep(2)
    theirs = git(root, "for-each-ref")
    made.freeze()
    made.open(12, {"a.x": 7})
    made.keep(12)
    made.remove()
    assert git(root, "for-each-ref") == theirs
    assert [path.name for path in (root / "artifacts/sweeps").glob("*/")] == ["s-1"]


def test_trials_share_the_cache_and_have_the_settings_of_the_machine(root, made):
    (root / ".dvc/config.local").write_text("['remote \"secret\"']\n    password = 50%\n[cache]\n    dir = elsewhere\n")
    made.freeze()
    place = made.open(1, {})
    (place / "file").write_text("x")
    run = [sys.executable, "-m", "dvc"]
    assert subprocess.run([*run, "cache", "dir"], cwd=place, capture_output=True, text=True).stdout.strip() == str(
        root / ".dvc/cache"
    )
    assert "50%" in subprocess.run([*run, "config", "--list"], cwd=place, capture_output=True, text=True).stdout
    assert (place / "artifacts/journals").resolve() == root / "artifacts/journals"


def test_sweep_refuses_incomplete_git_repositories(root, tmp_path):
    part = root / "part"
    part.mkdir()
    with pytest.raises(UserError, match=r"is the folder part/ of a git repository; expected a whole repository"):
        TrialCheckouts(part, "s", [], Path()).freeze()
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"not a git repository"):
        TrialCheckouts(tmp_path / "none", "s", [], Path()).freeze()
    git(tmp_path / "none", "init", "-q")
    with pytest.raises(UserError, match=r"`git read-tree HEAD`: fatal: Not a valid object name HEAD"):
        TrialCheckouts(tmp_path / "none", "s", [], Path()).freeze()
