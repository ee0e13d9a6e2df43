"""Files that nobody needs: DVC's cache, snapshots, journals and compiled code, by age and by who uses them."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
from registries import PARAMS, training

from flows import cli
from flows.flow_configs import Retention
from flows.maintenance import checkout_checks, doctor, findings, garbage, output_checks
from flows.run.checkout import HeldError, lock_checkout
from flows.run.graph import Graph
from flows.sweeps import trial_checkouts
from flows.sweeps.trial_checkouts import TrialCheckouts
from plm_core.shared.errors import UserError

RULES = Retention(versions=2, champions=2, days=7, snapshots_days=7)


@pytest.fixture
def root(toy, monkeypatch):
    root = toy("stages:\n  a: {cmd: mkdir d; cat text > d/x, deps: [text], outs: [d]}\n", params_yaml=PARAMS, text="1")
    monkeypatch.chdir(root)
    return root


def aged(*paths, days):
    for path in paths:
        for entry in (*(path.rglob("*") if path.is_dir() else ()), path):
            os.utime(entry, (time.time() - days * 86400,) * 2)


def ran(root, text):
    """What the stage makes of a text, as DVC runs it; the cache's objects."""
    (root / "text").write_text(text)
    graph = Graph(root)
    with graph.reproducing("a") as command:
        for line in command.lines if command else ():
            subprocess.run(line, cwd=root, env={**os.environ, **command.env}, check=True)
    return set((root / ".dvc/cache/files/md5").glob("*/*"))


def whats(find, root, rules=RULES):
    return [waste.where for waste in find(root, rules)]


def deleted(find, root, rules=RULES):
    """What is deleted, and the bytes that this frees."""
    report = findings.apply_checks({"one": find}, root, rules, mend=True)
    assert (report.findings, report.unseen) == ([], {})
    return [(waste.where, waste.bytes) for waste in report.mended]


def commit(root, days_ago, *options):
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    when = {"GIT_COMMITTER_DATE": f"{int(time.time()) - days_ago * 86400} +0000"}
    subprocess.run(["git", "add", "dvc.lock", "dvc.yaml", "params.yaml"], cwd=root, check=True)
    subprocess.run(["git", "commit", "-qm", "run", *options], cwd=root, check=True, env={**os.environ, **who, **when})


def well(root):
    report = findings.apply_checks({"a": output_checks.outputs, "b": output_checks.cached}, root, True)
    return doctor.status(report) == doctor.WELL


def test_gc_deletes_old_cache_objects_no_lock_needs(root):
    cache = root / ".dvc/cache/files/md5"
    made = []
    for text, committed_days_ago in (("outdated", 20), ("committed", 3), ("in between", None), ("now", None)):
        made.append(ran(root, text).difference(*made))
        if committed_days_ago:
            commit(root, committed_days_ago)
    outdated, committed, between, now = made
    aged(cache, days=6)
    assert whats(output_checks.old_objects, root) == []
    aged(cache, days=8)
    size = sum(path.stat().st_size for path in outdated | between)
    assert [frees for _, frees in deleted(output_checks.old_objects, root)] == [size]
    assert set(cache.glob("*/*")) == committed | now
    assert whats(output_checks.old_objects, root) == []
    assert well(root)


def test_gc_keeps_objects_of_the_oldest_kept_commit(root):
    objects = root / ".dvc/cache/files/md5"
    needed = ran(root, "needed")
    commit(root, 20)
    commit(root, 3, "--allow-empty")  # of code, say
    now = ran(root, "now") - needed
    commit(root, 1)
    aged(objects, days=8)
    assert whats(output_checks.old_objects, root) == []
    assert set(objects.glob("*/*")) == needed | now


def test_gc_keeps_objects_of_merged_commits(root):
    ran(root, "first")
    commit(root, 6)
    git = partial(subprocess.run, cwd=root, check=True)
    git(["git", "checkout", "-qb", "side"])
    ran(root, "of the side")
    commit(root, 5)
    git(["git", "checkout", "-q", "-"])
    ran(root, "of the trunk")
    commit(root, 4)
    git(["git", "-c", "user.name=a", "-c", "user.email=a@b", "merge", "-q", "-s", "ours", "side", "-m", "merged"])
    git(["git", "branch", "-q", "-d", "side"])
    aged(root / ".dvc/cache/files/md5", days=8)
    assert whats(output_checks.old_objects, root) == []


def test_gc_of_the_remote_is_opt_in(root, tmp_path):
    subprocess.run([sys.executable, "-m", "dvc", "remote", "add", "-d", "r", str(tmp_path / "remote")], check=True)
    ran(root, "first")
    subprocess.run([sys.executable, "-m", "dvc", "push", "-q"], check=True)
    ran(root, "second")
    aged(root / ".dvc/cache/files/md5", tmp_path / "remote", days=8)
    every = replace(RULES, remote=True)
    assert len(deleted(output_checks.old_objects, root)) == 1
    assert [path for path in (tmp_path / "remote").rglob("*") if path.is_file()] != []
    assert len(deleted(output_checks.old_objects, root, every)) == 1
    assert [path for path in (tmp_path / "remote").rglob("*") if path.is_file()] == []
    assert well(root)


def test_gc_keeps_files_of_directories_only_on_the_remote(root, tmp_path):
    remote, objects = tmp_path / "remote", root / ".dvc/cache/files/md5"
    subprocess.run([sys.executable, "-m", "dvc", "remote", "add", "-d", "r", str(remote)], check=True)
    needed = ran(root, "needed")
    subprocess.run([sys.executable, "-m", "dvc", "push", "-q"], check=True)
    commit(root, 3)
    now = ran(root, "now") - needed
    commit(root, 1)
    for path in needed:
        path.unlink()
    aged(objects, remote, days=8)
    assert (
        whats(output_checks.old_objects, root)
        == whats(output_checks.old_objects, root, replace(RULES, remote=True))
        == []
    )
    assert set(objects.glob("*/*")) == now


@pytest.mark.parametrize("linked", [False, True])
def test_gc_of_a_shared_cache_is_opt_in(root, tmp_path, linked):
    shared = tmp_path / "shared"
    if linked:
        shared.mkdir()
        (root / ".dvc/cache").symlink_to(shared)
    else:
        subprocess.run([sys.executable, "-m", "dvc", "cache", "dir", str(shared)], check=True)
    for text in ("first", "second"):
        ran(root, text)
    aged(shared, days=8)
    assert whats(output_checks.old_objects, root) == []
    alone = replace(RULES, remote=True)
    assert len(deleted(output_checks.old_objects, root, alone)) == 1
    assert well(root)


def test_gc_deletes_nothing_when_git_fails(root, monkeypatch):
    for text in ("committed", "now"):
        ran(root, text)
        commit(root, 3)
    aged(root / ".dvc/cache/files/md5", days=8)
    # As in a checkout of another user.
    for name, value in {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "GIT_CONFIG_GLOBAL": os.devnull}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"/toy: nothing is deleted .* needed: fatal: detected dubious ownership"):
        whats(output_checks.old_objects, root)
    report = garbage.collect(root, delete=True)
    assert (list(report.unseen), report.mended) == (["cache"], [])
    shutil.rmtree(root / ".git")
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    assert len(whats(output_checks.old_objects, root)) == 1


def test_gc_deletes_old_snapshots_of_idle_trainings(root):
    old, young = (root / f"artifacts/snapshots/pretrain-{name}-0123456789abcdef" for name in ("a", "b"))
    parts = root / "artifacts/parts/clean"  # of a stage that nobody has run again
    for folder in (old, young, parts):
        (folder / "step-00000004").mkdir(parents=True)
        (folder / "step-00000004/progress.json").write_text("{}")
    aged(old, parts, days=8)
    aged(young, days=6)
    process = training(root, "the digest")
    assert whats(checkout_checks.old_files, root) == []
    process.communicate("end\n")
    assert deleted(checkout_checks.old_files, root) == [
        ("artifacts/parts/clean", 2),
        (old.relative_to(root).as_posix(), 2),
    ]
    assert [folder.exists() for folder in (old, young, parts)] == [False, True, False]


def test_gc_deletes_old_sent_journals_only(root):
    training(root, "the digest").communicate("stop\n")
    (journal,) = root.glob("artifacts/journals/*.jsonl")
    aged(journal, days=8)
    assert whats(checkout_checks.old_files, root) == []
    with journal.open("a") as file:
        file.write('{"kind": "published"}\n')
    aged(journal, days=6)
    assert whats(checkout_checks.old_files, root) == []
    aged(journal, days=8)
    assert [where for where, _ in deleted(checkout_checks.old_files, root)] == [journal.relative_to(root).as_posix()]
    assert list(root.glob("artifacts/journals/*-gpt-*")) == []


def gc(root, *arguments, answer=""):
    command = [sys.executable, "-m", "flows.cli", "gc", *arguments]
    return subprocess.run(command, cwd=root, input=answer, capture_output=True, text=True, check=False)


def test_gc_lists_and_deletes_without_a_terminal(root):
    folder = root / "artifacts/compiled/ab"
    folder.mkdir(parents=True)
    compiled, read, _ = files = [folder / name for name in ("old.so", "read.so", "new.so")]
    for path in files:
        path.write_bytes(b"12345")
    aged(compiled, read, days=8)
    os.utime(read, (time.time(), time.time() - 8 * 86400))
    preview = gc(root, "--dry-run", "--json")
    assert preview.returncode == 0, preview.stderr
    waste = {"what": "1 files of artifacts/compiled", "why": "not read for 7 days", "bytes": 5}
    assert json.loads(preview.stdout) == {"deleted": False, "waste": [waste], "bytes": 5, "failed": {}}
    assert compiled.exists()
    shown = gc(root)
    assert "5 bytes freed" in shown.stdout
    assert [path.exists() for path in files] == [False, True, True]
    assert gc(root).stdout == "nothing to delete\n"


def test_gc_asks_at_a_terminal(root):
    import pty

    compiled = root / "artifacts/compiled/old.so"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    aged(compiled, days=8)
    command = [sys.executable, "-m", "flows.cli", "gc"]
    ours, its = pty.openpty()
    for more, there in (([], True), (["--yes"], False)):
        done = subprocess.run([*command, *more], cwd=root, stdin=its, capture_output=True, text=True, check=True)
        assert ("`plm gc --yes` deletes it" in done.stdout, compiled.exists()) == (there, there)
    os.close(ours)
    os.close(its)


def test_gc_deletes_nothing_beside_a_pipeline_or_without_rules(root):
    with lock_checkout(root, pipeline=True), pytest.raises(HeldError, match="another pipeline"):
        garbage.collect(root, delete=True)
    (root / "params.yaml").write_text(PARAMS.partition("retention:")[0])
    with pytest.raises(UserError, match="no section retention, so everything is kept"):
        garbage.collect(root, delete=True)


@pytest.mark.parametrize(("text", "status"), [("1", 0), ("2", 1)])
def test_the_doctor_s_status_is_for_monitoring(root, monkeypatch, capsys, text, status):
    ran(root, "1")
    (root / "d/x").write_text(text)
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as end:  # it sets variables for its processes
        cli.main(["doctor", "--json"])
    assert end.value.code == status
    assert len(json.loads(capsys.readouterr().out)["findings"]) == status


def test_gc_deletes_abandoned_sweeps(root):
    ran(root, "1")
    commit(root, days_ago=0)
    for name in ("old", "new", "running"):
        sweep = TrialCheckouts(root, name, [], root / ".dvc/cache")
        sweep.freeze()
        (sweep.folder / "trials").mkdir(parents=True)
        (sweep.folder / "trials/1.log").write_text("a line")
        (sweep.folder / "data").symlink_to(root / "text")  # not the sweep's
    aged(root / "artifacts/sweeps/old", days=8)
    aged(root / "artifacts/sweeps/new", days=8)
    aged(root / "artifacts/sweeps/running", days=8)
    (root / "artifacts/sweeps/new/trials/2.log").write_text("a line")
    (root / "text").write_text("2")
    with trial_checkouts.lock_sweep(root / "artifacts/sweeps/running"):
        aged(root / "artifacts/sweeps/running", days=8)
        report = findings.apply_checks({"sweeps": checkout_checks.old_files}, root, RULES, mend=True)
    assert [(waste.where, waste.bytes) for waste in report.mended] == [("artifacts/sweeps/old", 6)]
    assert "this sweep is already running" in report.unseen["artifacts/sweeps/running"]
    assert sorted(path.name for path in (root / "artifacts/sweeps").glob("*/")) == ["new", "running"]
