"""Backups are complete, copy only what is new, and restore a checkout, a moved one, or last week's registry."""

import errno
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem

from flows import backup, checkout, registry, standing
from flows.backupstore import Store
from flows.graph import Graph
from flows.ledger import Decision
from flows.outcome import UserError
from flows.transaction import commit

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
    with registry.opened(root) as opened:
        run = opened.client.create_run(opened.experiment()).info.run_id
        opened.client.log_text(run, f"weights {number}", "weights")
        if number == "1":
            opened.client.create_registered_model("plm")
        opened.client.create_model_version("plm", opened.client.get_run(run).info.artifact_uri, run)
        commit(opened, Decision("promoted", number, "", ["first"]), opened.alias("champion"))


def champions(root):
    """The ledger's champions, and what the present one's file says."""
    # By another name each time: SQLAlchemy holds the file open that it knows.
    name = root.with_name(f"{root.name} {secrets.token_hex(4)}")
    name.symlink_to(root)
    with registry.opened(name) as opened:
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
def test_another_machine_gets_everything_back_in_another_place(root, tmp_path):
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


def test_a_result_that_was_never_committed_comes_back_and_its_stage_does_not_run_again(root, tmp_path, monkeypatch):
    metrics = (root / "m.json").read_bytes()
    backup.backup(root, str(tmp_path / "kept"))
    shutil.rmtree(root / ".dvc/cache")
    (root / "m.json").write_text("of the commit before")
    backup.restore(root, str(tmp_path / "kept"))
    monkeypatch.chdir(root)
    with Graph(root).reproducing("s") as command:
        assert command is None
    assert (root / "m.json").read_bytes() == metrics


def test_the_registry_of_last_week_comes_back_and_today_s_is_kept_beside_it(root, tmp_path):
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
    assert standing.registry_status(root)["notice"] is None


def rename(kept, name, to):
    (Path(kept) / f"backups/{name}.json").rename(Path(kept) / f"backups/{to}.json")


def test_nothing_is_copied_twice_and_what_no_backup_has_goes(root, tmp_path):
    kept = str(tmp_path / "kept")
    first = backup.backup(root, kept)
    assert first.moved == first.size
    rename(kept, first.name, "2000-11-01T00-00-00Z")
    second = backup.backup(root, kept, keep=2)
    assert second.moved == 0
    rename(kept, second.name, "2000-11-02T00-00-00Z")
    shutil.rmtree(root / "artifacts/imported")
    third = backup.backup(root, kept, keep=1)
    assert [path.stem for path in Path(kept).glob("backups/*")] == [third.name]
    rename(kept, third.name, "2000-11-03T00-00-00Z")
    a_day_later(kept)
    backup.backup(root, kept, keep=1)
    assert b"imported/x/config.json" not in contents(kept)
    backup.restore(root, kept)
    assert not (root / "artifacts/imported").exists()


def contents(kept):
    return [path.read_bytes() for path in Path(kept).rglob("*") if path.is_file()]


def a_day_later(kept):
    for path in Path(kept).rglob("*"):
        os.utime(path, (time.time() - 86401,) * 2)


def test_what_another_backup_that_is_at_work_needs_stays_for_a_day(root, tmp_path, monkeypatch):
    kept, other = str(tmp_path / "kept"), Path(shutil.copytree(root, tmp_path / "other"))
    (other / "artifacts/imported/x/config.json").write_text("of the other")
    rename(kept, backup.backup(other, kept).name, "2000-11-01T00-00-00Z")
    a_day_later(kept)
    # Half-way it has copied the new one, and has taken the old one from the list that was there.
    (other / "artifacts/snapshots/1/a").write_text("new")
    (root / "artifacts/imported/x/config.json").write_text("of this one")

    def beside():
        name = backup.backup(root, kept, keep=1).name
        rename(kept, name, f"{name[:11]}00-00-00Z")

    once(monkeypatch, Store, "put", beside)
    made = backup.backup(other, kept)
    shutil.rmtree(other / "artifacts")
    backup.restore(other, kept, made.name)
    assert (other / "artifacts/imported/x/config.json").read_text() == "of the other"
    assert (other / "artifacts/snapshots/1/a").read_text() == "new"


def test_what_killed_backups_left_goes_once_it_is_old(root, tmp_path):
    kept = tmp_path / "kept"
    backup.backup(root, str(kept))
    parts = [kept / "files/0123.part", kept / "backups/2026-11-01T00-00-00Z.json.part"]
    for part in parts:
        part.touch()
    backup.backup(root, str(kept), keep=5)
    assert all(part.exists() for part in parts)
    a_day_later(kept)
    backup.backup(root, str(kept), keep=5)
    assert not any(part.exists() for part in parts)


def test_a_folder_whose_path_looks_like_a_pattern_is_one(root, tmp_path):
    kept = tmp_path / "k[2]*"
    first = backup.backup(root, str(kept))
    rename(kept, first.name, "2000-11-01T00-00-00Z")
    (kept / "backups/2026-11-01T00-00-00Z.json.part").touch()
    a_day_later(kept)
    second = backup.backup(root, str(kept), keep=1)
    assert second.moved == 0
    assert [path.name for path in (kept / "backups").iterdir()] == [f"{second.name}.json"]
    shutil.rmtree(root / "artifacts")
    backup.restore(root, str(kept))
    assert champions(root) == (["1"], "weights 1")


def test_a_file_that_the_backups_have_lost_is_copied_again(root, tmp_path):
    kept = tmp_path / "kept"
    backup.backup(root, str(kept))
    gone, cut = [path for path in kept.glob("files/*/*") if path.read_bytes() in (b"weights 1", b"in")]
    gone.unlink()
    cut.write_bytes(b"")
    assert backup.backup(root, str(kept)).moved == len(b"weights 1") + len(b"in")
    shutil.rmtree(root / "artifacts")
    backup.restore(root, str(kept))
    assert champions(root) == (["1"], "weights 1")


def test_a_backup_is_the_newest_though_a_clock_was_ahead(root, tmp_path):
    kept = tmp_path / "kept"
    rename(kept, backup.backup(root, str(kept)).name, "2130-12-31T23-59-59Z")
    made = [backup.backup(root, str(kept), keep=1).name for _ in range(2)]
    assert made == ["2131-01-01T00-00-00Z", "2131-01-01T00-00-01Z"]
    assert [path.stem for path in (kept / "backups").iterdir()] == made[1:]


def test_of_sweeps_a_backup_has_what_people_read(root, tmp_path):
    sweep = root / "artifacts/sweeps/s"
    (sweep / "trials/1/artifacts").mkdir(parents=True)
    names = ("sweep.html", "trials.json", "winner.diff", "trials/0.log")
    for name in (*names, "study.jsonl", "lock", "trials/1/artifacts/a.log", "trials/1/sweep.html"):
        (sweep / name).write_text(name)
    backup.backup(root, str(tmp_path / "kept"))
    shutil.rmtree(sweep)
    backup.restore(root, str(tmp_path / "kept"))
    found = {path.relative_to(sweep).as_posix() for path in sweep.rglob("*") if path.is_file()}
    assert found == set(names)


def test_a_restore_reaches_several_file_systems(root, tmp_path, monkeypatch):
    backup.backup(root, str(tmp_path / "kept"))
    (root / "params.yaml").unlink()
    (root / "dvc.lock").write_text("another")
    before = contents(root / ".dvc/cache")
    shutil.rmtree(root / ".dvc/cache")
    real = os.rename

    def rename(source, target, **options):
        """As where `artifacts` is a file system of its own."""
        inside = [Path(path).is_relative_to(root / "artifacts") for path in (source, target)]
        if inside[0] != inside[1]:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    backup.restore(root, str(tmp_path / "kept"))
    assert sorted(contents(root / ".dvc/cache")) == sorted(before)
    assert (root / "params.yaml").exists()
    assert (root / "dvc.lock.restored").exists()


def test_files_whose_age_is_not_told_stay(root):
    class Ageless(MemoryFileSystem):
        protocol = "ageless"

        def modified(self, path):
            raise NotImplementedError

    fsspec.register_implementation("ageless", Ageless, clobber=True)
    filesystem, base = fsspec.core.url_to_fs("ageless://kept")
    filesystem.pipe(f"{base}/files/00/unknown", b"")
    backup.backup(root, "ageless://kept", keep=1)
    assert filesystem.exists(f"{base}/files/00/unknown")


@pytest.mark.parametrize("uri", ["sqlite:////{0}/elsewhere/mlflow.db", "sqlite:///artifacts/mlflow/x.db", "http://x:9"])
def test_a_registry_that_is_not_used_where_it_is_restored_is_told(root, tmp_path, uri):
    kept, uri = str(tmp_path / "kept"), uri.format(tmp_path)
    backup.backup(root, kept)
    assert not [note for note in backup.restore(root, kept).notes if "not in use" in note]
    shutil.rmtree(root / "artifacts/mlflow")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"tracking": PARAMS["tracking"] | {"uri": uri}}))
    (note,) = [note for note in backup.restore(root, kept).notes if "not in use" in note]
    assert note.startswith("the registry is in artifacts/mlflow/mlflow.db, which is not in use")
    assert uri.removeprefix("sqlite:///") in note


def test_what_is_wrong_with_the_parameters_keeps_nothing_from_being_restored(root, tmp_path):
    backup.backup(root, str(tmp_path / "kept"))
    shutil.rmtree(root / "artifacts")
    (root / "params.yaml").write_text("tracking: 1\n")
    notes = backup.restore(root, str(tmp_path / "kept")).notes
    assert [note for note in notes if note.startswith("tracking")]
    (root / "params.yaml.restored").rename(root / "params.yaml")
    assert champions(root) == (["1"], "weights 1")


def test_a_cache_elsewhere_in_the_checkout_comes_back_there(root, tmp_path):
    shutil.move(root / ".dvc/cache", root / "cache")
    (root / ".dvc/config.local").write_text("[cache]\n    dir = ../cache\n")
    backup.backup(root, str(tmp_path / "kept"))
    before = contents(root / "cache")
    shutil.rmtree(root / "cache")
    backup.restore(root, str(tmp_path / "kept"))
    assert sorted(contents(root / "cache")) == sorted(before)


def test_a_damaged_backup_changes_nothing(root, tmp_path):
    kept = tmp_path / "kept"
    backup.backup(root, str(kept))
    (file,) = [path for path in kept.glob("files/*/*") if path.read_bytes() == b"weights 1"]
    file.write_bytes(b"weights 2")
    (root / "artifacts/snapshots/1/a").unlink()
    before = tree(root)
    with pytest.raises(UserError, match=r"files/../.*: damaged; restore another backup. Nothing has been changed"):
        backup.restore(root, str(kept))
    assert tree(root) == before
    assert not list(root.glob("artifacts/.restore-*"))
    assert champions(root) == (["1"], "weights 1")


def once(monkeypatch, place, name, happens):
    """Let something happen right after the first call of a method."""
    real = getattr(place, name)

    def called(*arguments):
        monkeypatch.setattr(place, name, real)
        result = real(*arguments)
        happens()
        return result

    monkeypatch.setattr(place, name, called)


def test_beside_a_pipeline_what_it_discards_is_left_out_and_dvc_lock_names_what_is_there(root, tmp_path, monkeypatch):
    kept = str(tmp_path / "kept")
    files = backup.backup(root, str(tmp_path / "before")).files
    lock = (root / "dvc.lock").read_bytes()

    def goes_on():
        (root / "artifacts/journals/1.jsonl").unlink()
        shutil.rmtree(root / "artifacts/snapshots/1")
        (root / "dvc.lock").write_bytes(lock + b"# a later result\n")

    once(monkeypatch, Store, "put", lambda: once(monkeypatch, Store, "put", goes_on))
    assert backup.backup(root, kept).files == files - 2
    (root / "dvc.lock").unlink()
    backup.restore(root, kept)
    assert (root / "dvc.lock").read_bytes() == lock


def test_a_folder_may_vanish_while_it_is_looked_for(root, tmp_path, monkeypatch):
    files = backup.backup(root, str(tmp_path / "before")).files
    real = os.scandir

    def scandir(folder="."):
        if str(folder).endswith("snapshots/1"):
            monkeypatch.setattr(os, "scandir", real)
            shutil.rmtree(folder)
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert backup.backup(root, str(tmp_path / "kept")).files == files - 1


def test_a_target_that_vanishes_is_an_error(root, tmp_path, monkeypatch):
    once(monkeypatch, Store, "put", lambda: shutil.rmtree(tmp_path / "kept/files"))
    with pytest.raises(UserError, match=r"kept/files/.*\.part"):
        backup.backup(root, str(tmp_path / "kept"))


def test_what_is_written_to_the_database_while_it_is_copied_is_in_the_next_backup(root, tmp_path, monkeypatch):
    kept, database = str(tmp_path / "kept"), root / "artifacts/mlflow/mlflow.db"

    class Live(sqlite3.Connection):
        def backup(self, *arguments):
            super().backup(*arguments)
            with connect(database) as other:
                other.execute("insert into later values (1)")

    connect = sqlite3.connect
    with connect(database) as live:
        live.execute("create table later (x)")
    with monkeypatch.context() as patch:
        patch.setattr(backup.sqlite3, "connect", partial(connect, factory=Live))
        backup.backup(root, kept)
    assert backup.backup(root, kept).moved == database.stat().st_size
    backup.restore(root, kept)
    with sqlite3.connect(database) as there:
        assert there.execute("select * from later").fetchall() == [(1,)]


def test_results_in_a_cache_outside_the_checkout_are_named_as_left_out(root, tmp_path):
    shutil.move(root / ".dvc/cache", tmp_path / "shared")
    (root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'shared'}\n")
    (note,) = backup.backup(root, str(tmp_path / "kept")).notes
    left = len([path for path in (tmp_path / "shared").rglob("*") if path.is_file()])
    where = tmp_path / "shared/files/md5"
    assert note == (
        f"DVC's cache is outside the checkout ({where}): {left} result files are not in the backup; back it up there"
    )


def test_what_cannot_be_done_is_one_line(root, tmp_path):
    with pytest.raises(UserError, match="no backup '2025'; the newest are: none"):
        backup.restore(root, str(tmp_path / "kept"), "2025")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        backup.backup(root, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"nowhere://x: .*nowhere"):
        backup.backup(root, "nowhere://x")
    backup.backup(root, str(tmp_path / "kept"))
    with checkout.only_one(root, pipeline=True), pytest.raises(UserError, match="another pipeline"):
        backup.restore(root, str(tmp_path / "kept"))
    (path,) = (tmp_path / "kept/backups").iterdir()
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(UserError, match="format 9; expected 1"):
        backup.restore(root, str(tmp_path / "kept"))


def test_a_bucket_that_is_away_is_one_line(root):
    class AwayError(Exception):
        """As botocore's: of no other kind."""

    class Away(MemoryFileSystem):
        def makedirs(self, path, exist_ok=False):
            raise AwayError("Could not connect")

    fsspec.register_implementation("away", Away, clobber=True)
    with pytest.raises(UserError, match="away://bucket/x: Could not connect"):
        backup.backup(root, "away://bucket/x")


def test_a_backup_that_is_killed_is_none(root, tmp_path, monkeypatch):
    class KilledError(BaseException):
        pass

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", killed)
        with pytest.raises(KilledError):
            backup.backup(root, str(tmp_path / "kept"))
    with pytest.raises(UserError, match="no backup"):
        backup.restore(root, str(tmp_path / "kept"))
    backup.backup(root, str(tmp_path / "kept"))
    backup.restore(root, str(tmp_path / "kept"))
    assert champions(root) == (["1"], "weights 1")


def test_with_a_server_the_note_says_where_the_rest_is(root, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    made = backup.backup(root, "memory://kept")
    assert made.notes == ["runs, models and decisions are on the MLflow server: back it up there"]
    assert (made.files, backup.backup(root, "memory://kept").moved) > (5, -1)
