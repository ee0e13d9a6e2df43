"""Backups are complete, copy only what is new, and restore a checkout, a moved one, or last week's registry."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from flows.maintenance import backup
from flows.registry import model_registry, registry_status
from flows.registry.ledger import Decision
from flows.run import checkout
from flows.run.graph import Graph
from plm_core.shared.errors import UserError

PARAMS = {
    "tracking": {"uri": "sqlite:///artifacts/mlflow/mlflow.db", "experiment": "plm"},
    "promotion": {"registered_model": "plm", "primary": "x", "alpha": 0.05, "margin": 0.0, "metrics": {}},
}
GRAPH = """
stages:
  s:
    cmd: mkdir out && cp in.txt out/a && date +%N > out/b && date +%N > m.json
    deps: [in.txt]
    outs: [out]
    metrics: [{m.json: {cache: false}}]
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A checkout with a result, a champion, a journal and a snapshot."""
    root = tmp_path_factory.mktemp("template") / "here"
    root.mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (root / "dvc.yaml").write_text(GRAPH)
    (root / "in.txt").write_text("in")
    for command in (["init", "--no-scm", "-q"], ["repro", "-q"]):
        subprocess.run([sys.executable, "-m", "dvc", *command], cwd=root, check=True)
    for name in ("journals/1.jsonl", "snapshots/1/a", "imported/x/config.json"):
        (root / "artifacts" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "artifacts" / name).write_text(name)
    champion(root, "1")
    return root


@pytest.fixture
def root(template, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path(shutil.copytree(template, tmp_path / "here"))


def champion(root, number):
    """A version with a file, made champion."""
    with model_registry.open_registry(root) as opened:
        run = opened.client.create_run(opened.experiment()).info.run_id
        opened.client.log_text(run, f"weights {number}", "weights")
        if number == "1":
            opened.client.create_registered_model("plm")
        opened.client.create_model_version("plm", opened.client.get_run(run).info.artifact_uri, run)
        opened.commit(Decision("promoted", number, opened.alias("champion") or "", ["first"]))


def champions(root):
    """The ledger's champions, and what the present one's file says."""
    # By another name each time: SQLAlchemy holds the file open that it knows.
    name = root.with_name(f"{root.name} {secrets.token_hex(4)}")
    name.symlink_to(root)
    with model_registry.open_registry(name) as opened:
        place = opened.client.get_run(opened.champion().run_id).info.artifact_uri
        assert place.startswith(name.as_uri())
        return opened.ledger.champions(), (Path(unquote(urlsplit(place).path)) / "weights").read_text()


def tree(root):
    names = ("out", "artifacts/journals", "artifacts/snapshots", "artifacts/imported")
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for name in names
        for path in (root / name).rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_restore_on_another_machine_and_place(root, tmp_path):
    before = tree(root)
    made = backup.backup(root, str(tmp_path / "kept"))
    shutil.move(root, tmp_path / "lost")
    there = tmp_path / "another place"
    there.mkdir()
    for name in ("dvc.yaml", "in.txt"):
        shutil.copy(tmp_path / "lost" / name, there)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=there, check=True)
    restored = backup.restore(there, str(tmp_path / "kept"))
    assert (restored.name, restored.files) == (made.name, made.files)
    shutil.rmtree(tmp_path / "lost")
    for command in ("checkout", "repro"):
        subprocess.run([sys.executable, "-m", "dvc", command, "-q"], cwd=there, check=True)
    assert tree(there) == before
    assert champions(there) == (["1"], "weights 1")
    status = [sys.executable, "-m", "dvc", "status", "--json"]
    assert json.loads(subprocess.run(status, cwd=there, check=True, capture_output=True).stdout) == {}


def test_restore_brings_back_uncommitted_results(root, tmp_path, monkeypatch):
    metrics = (root / "m.json").read_bytes()
    backup.backup(root, str(tmp_path / "kept"))
    shutil.rmtree(root / ".dvc/cache")
    (root / "m.json").write_text("of the commit before")
    backup.restore(root, str(tmp_path / "kept"))
    monkeypatch.chdir(root)
    with Graph(root).reproducing("s") as command:
        assert command is None
    assert (root / "m.json").read_bytes() == metrics


def test_restore_of_an_older_registry_keeps_the_current_one(root, tmp_path):
    kept = str(tmp_path / "kept")
    first = backup.backup(root, kept)
    champion(root, "2")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS) + "# edited\n")
    (root / "artifacts/journals/1.jsonl").write_text("goes on")
    rename(kept, first.name, "2026-11-01T00-00-00Z")
    second = backup.backup(root, kept)
    assert 0 < second.moved < second.size
    assert backup.restore(root, kept, "2026-11-01").name == "2026-11-01T00-00-00Z"
    assert champions(root) == (["1"], "weights 1")
    assert (root / "artifacts/journals/1.jsonl").read_text() == "goes on"
    assert (root / "params.yaml").read_text().endswith("# edited\n")
    assert (root / "params.yaml.restored").read_text() == yaml.safe_dump(PARAMS)
    (aside,) = root.glob("artifacts/mlflow.2*")
    shutil.rmtree(root / "artifacts/mlflow")
    aside.rename(root / "artifacts/mlflow")
    assert champions(root) == (["1", "2"], "weights 2")
    backup.restore(root, kept)
    assert champions(root) == (["1", "2"], "weights 2")
    assert registry_status.registry_status(root)["notice"] is None


def rename(kept, name, to):
    (Path(kept) / f"backups/{name}.json").rename(Path(kept) / f"backups/{to}.json")


def contents(kept):
    return [path.read_bytes() for path in Path(kept).rglob("*") if path.is_file()]


def test_backup_of_sweeps_has_only_pages_and_logs(root, tmp_path):
    sweep = root / "artifacts/sweeps/s"
    (sweep / "trials/1/artifacts").mkdir(parents=True)
    names = ("sweep.html", "trials.json", "winner.diff", "trials/0.log")
    for name in (*names, "study.jsonl", "lock", "trials/1/artifacts/a.log", "trials/1/sweep.html"):
        (sweep / name).write_text(name)
    backup.backup(root, str(tmp_path / "kept"))
    shutil.rmtree(sweep)
    backup.restore(root, str(tmp_path / "kept"))
    restored = {path.relative_to(sweep).as_posix() for path in sweep.rglob("*") if path.is_file()}
    assert restored == set(names)


def test_a_damaged_backup_changes_nothing(root, tmp_path):
    kept = tmp_path / "kept"
    backup.backup(root, str(kept))
    (file,) = [path for path in kept.glob("files/md5/*/*") if path.read_bytes() == b"weights 1"]
    file.chmod(0o600)
    file.write_bytes(b"weights 2")
    (root / "artifacts/snapshots/1/a").unlink()
    before = tree(root)
    with pytest.raises(UserError, match=r"files/md5/../.*: damaged; delete it, and the next backup copies it again"):
        backup.restore(root, str(kept))
    assert tree(root) == before
    assert not list(root.glob("artifacts/.restore-*"))
    file.unlink()
    assert backup.backup(root, str(kept)).moved == len("weights 1")
    assert champions(root) == (["1"], "weights 1")


def test_backup_names_results_in_an_outside_cache(root, tmp_path):
    shutil.move(root / ".dvc/cache", tmp_path / "shared")
    (root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'shared'}\n")
    (note,) = backup.backup(root, str(tmp_path / "kept")).notes
    left = len([path for path in (tmp_path / "shared").rglob("*") if path.is_file()])
    where = tmp_path / "shared/files/md5"
    assert note == (
        f"DVC's cache is outside the checkout ({where}): {left} result files are not in the backup; back them up there"
    )


def test_backup_is_incremental_and_prunes_unneeded_files(root, tmp_path):
    kept = tmp_path / "kept"
    first = backup.backup(root, str(kept))
    assert first.moved == first.size
    (root / "artifacts/imported/x/config.json").write_text("new")
    shutil.rmtree(root / "artifacts/snapshots")
    assert backup.backup(root, str(kept)).moved == len("new")
    third = backup.backup(root, str(kept), keep=1)
    assert third.moved == 0
    assert [path.stem for path in (kept / "backups").iterdir()] == [third.name]
    backup.backup(root, str(kept), keep=1)
    assert b"snapshots/1/a" in contents(kept)  # it may be another backup's that is at work
    for path in kept.rglob("*"):
        os.utime(path, (time.time() - 86401,) * 2)
    backup.backup(root, str(kept), keep=1)
    assert b"snapshots/1/a" not in contents(kept)
    shutil.rmtree(root / "artifacts")
    backup.restore(root, str(kept))
    assert (root / "artifacts/imported/x/config.json").read_text() == "new"
    assert champions(root) == (["1"], "weights 1")


def test_backup_without_manifest_is_ignored(root, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "backups").touch()  # where the folder of manifests would be
    with pytest.raises(UserError, match="backups"):
        backup.backup(root, str(kept))
    (kept / "backups").unlink()
    with pytest.raises(UserError, match="no backup"):
        backup.restore(root, str(kept))
    assert backup.backup(root, str(kept)).moved == 0
    shutil.rmtree(root / "artifacts")
    backup.restore(root, str(kept))
    assert champions(root) == (["1"], "weights 1")


def test_backup_beside_a_pipeline_is_consistent(root, tmp_path, monkeypatch):
    kept = str(tmp_path / "kept")
    files = backup.backup(root, str(tmp_path / "before")).files
    lock = (root / "dvc.lock").read_bytes()
    real = backup.Target.digest

    def digest(target, path):
        """When all is listed, the pipeline goes on."""
        monkeypatch.setattr(backup.Target, "digest", real)
        (root / "artifacts/journals/1.jsonl").unlink()
        shutil.rmtree(root / "artifacts/snapshots/1")
        (root / "dvc.lock").write_bytes(lock + b"# a later result\n")
        return real(target, path)

    monkeypatch.setattr(backup.Target, "digest", digest)
    assert backup.backup(root, kept).files == files - 2
    (root / "dvc.lock").unlink()
    backup.restore(root, kept)
    assert (root / "dvc.lock").read_bytes() == lock


def test_backup_note_mentions_the_mlflow_server(root, tmp_path, monkeypatch):
    kept = str(tmp_path / "kept")
    backup.backup(root, kept)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert backup.backup(root, kept).notes == ["runs, models and decisions are on an MLflow server: back them up there"]


def test_restore_works_with_invalid_parameters(root, tmp_path):
    kept = str(tmp_path / "kept")
    backup.backup(root, kept)
    elsewhere = f"sqlite:///{tmp_path}/elsewhere/mlflow.db"
    for text, message in (
        ("tracking: 1\n", "tracking"),
        (yaml.safe_dump(PARAMS | {"tracking": {"uri": elsewhere, "experiment": "plm"}}), "which is not in use"),
    ):
        shutil.rmtree(root / "artifacts")
        (root / "params.yaml").write_text(text)
        assert [note for note in backup.restore(root, kept).notes if message in note]
    (root / "params.yaml.restored").rename(root / "params.yaml")
    assert champions(root) == (["1"], "weights 1")


def test_backup_and_restore_errors_are_one_line(root, tmp_path):
    kept = tmp_path / "kept"
    with pytest.raises(UserError, match="no backup '2025'; the newest are: none"):
        backup.restore(root, str(kept), "2025")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        backup.backup(root, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"nowhere://x: .*nowhere"):
        backup.backup(root, "nowhere://x")
    made = backup.backup(root, str(kept))
    with checkout.lock_checkout(root, pipeline=True), pytest.raises(UserError, match="another pipeline"):
        backup.restore(root, str(kept))
    (kept / f"backups/{made.name}.json").rename(kept / "backups/2130-12-31T23-59-59-0Z.json")
    with pytest.raises(UserError, match="is from the future; set the clock"):
        backup.backup(root, str(kept))
