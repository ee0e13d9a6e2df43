"""Old versions, registrations without a version and deleted runs: what is deleted, what is kept, and a death at every
call."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from mlflow import MlflowClient
from registries import HOUR_MS, checkpoint, judge, model_of, project, register, run_of

from flows.flow_configs import Retention
from flows.maintenance import doctor, findings
from flows.maintenance.registry_checks import old_versions
from flows.maintenance.registry_checks import registry as check
from flows.registry import model_registry
from flows.registry.ledger import Decision

RULES = Retention(versions=1, champions=1, days=7, snapshots_days=7)


@pytest.fixture
def root(tmp_path, monkeypatch, empty_store):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return project(tmp_path, empty_store)


def numbers(root):
    with model_registry.open_registry(root) as opened:
        return [version.number for version in opened.versions()]


def whats(root, rules=RULES):
    return [waste.where for waste in old_versions(root, rules)]


def deleted(root, rules=RULES):
    report = findings.apply_checks({"registry": old_versions}, root, rules, mend=True)
    assert (report.findings, report.unseen) == ([], {})
    return report.mended


def well(root):
    return doctor.status(findings.apply_checks({"registry": check}, root, True)) == doctor.WELL


def test_gc_keeps_needed_versions(root):
    made = [register(root, content) for content in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h")]
    former, champion, kept, _, begun, aliased, old, newest = made
    for number in (former, champion):
        judge(root, number)
    with model_registry.open_registry(root) as opened:
        opened.tag(kept, {"keep": "our first"})
        opened.tag(old, {"keep": "false"})
        opened.set_alias("ours", aliased)
        opened.ledger.begin(Decision("refused", begun, champion, []))
    checkpoint(root / "artifacts/models/gpt", b"d")
    assert whats(root) == [f"plm version {old}", f"plm version {former}"]
    more = Retention(versions=2, champions=2, days=7, snapshots_days=7)
    assert whats(root, more) == []
    assert newest not in whats(root)


def test_gc_keeps_the_files_of_a_version_that_was_copied_into_another_model(root):
    for content in (b"a", b"b"):
        register(root, content)
    with model_registry.open_registry(root) as opened:
        opened.client.copy_model_version("models:/plm/1", "production")
    run, model = run_of(root, "1"), model_of(root, "1")
    deleted(root)
    assert numbers(root) == ["2"]
    with model_registry.open_registry(root) as opened:
        assert opened.client.get_run(run).info.lifecycle_stage == "active"
        opened.client.delete_model_version("production", "1")
    assert (model / "MLmodel").exists()


def test_gc_deletes_a_version_with_its_run_and_files(root):
    register(root, b"a")
    newest = register(root, b"b")
    run, model = run_of(root, "1"), model_of(root, "1")
    files = [model.parent, root / f"artifacts/mlflow/artifacts/{run}"]
    before = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".db")
    assert all(path.is_dir() for path in files)
    (waste,) = deleted(root)
    after = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".db")
    assert before - after == waste.bytes > 100
    assert numbers(root) == [newest]
    assert [path for path in (model, files[1] / "artifacts") if path.exists()] == []
    with closing(sqlite3.connect(root / "artifacts/mlflow/mlflow.db")) as database:
        assert database.execute("select count(*) from runs where run_uuid = ?", [run]).fetchone() == (0,)
        assert database.execute("select count(*) from logged_models").fetchone() == (1,)
    assert well(root)


def test_gc_keeps_a_version_promoted_meanwhile(root):
    register(root, b"a")
    register(root, b"b")
    for waste in old_versions(root, RULES):
        judge(root, "1")
        waste.safe()
    assert numbers(root) == ["2", "1"]
    assert well(root)


def test_gc_deletes_old_failed_registrations_and_deleted_runs(root):
    old, young = (register(root, b"x", version=False, hours_ago=hours) for hours in (2, 0))
    with model_registry.open_registry(root) as opened:
        client, experiment = opened.client, opened.experiment()
        runs = [client.create_run(experiment, run_name=name).info.run_id for name in ("long", "now", "kept", "lives")]
        now = client.get_run(runs[0]).info.start_time
        for run, days in zip(runs, (8, 6, 8, 8), strict=True):
            client.set_terminated(run, "FINISHED", now - days * 24 * HOUR_MS)
        client.set_tag(runs[2], "keep", "yes")
        for run in runs[:3]:
            client.delete_run(run)
        opened.ledger.begin(Decision("refused", "1", "", []))
    assert {waste.where for waste in deleted(root)} == {f"run register ({old})", f"run long ({runs[0]})"}
    assert whats(root) == []
    with model_registry.open_registry(root) as opened:
        assert opened.client.get_run(young).info.status == "FINISHED"


def test_registrations_of_another_model_in_the_same_experiment_stay(root):
    register(root, b"a")
    theirs = register(root, b"x", version=False)
    with model_registry.open_registry(root) as opened:
        opened.client.create_registered_model("theirs")
        opened.client.create_model_version("theirs", f"runs:/{theirs}/model", theirs)
        opened.client.update_run(theirs, status="RUNNING")
        assert opened.abandoned() == []
        assert opened.client.get_run(theirs).info.status == "RUNNING"
        opened.client.set_terminated(theirs, "FINISHED", 1)
    assert whats(root) == []


class DiedError(BaseException):
    """What no handler catches, as SIGKILL."""


@pytest.mark.slow
def test_gc_resumes_after_a_kill_at_any_call(root, monkeypatch):
    """Of MLflow's calls that change something; whoever is killed before one is killed after the one before it."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Versions
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Runs

    calls = [(Versions, "delete_model_version"), (LocalArtifactRepository, "delete_artifacts")]
    calls += [(Runs, name) for name in ("delete_logged_model", "_hard_delete_logged_model", "delete_run")]
    register(root, b"0")
    for number, (kind, name) in enumerate([*calls, (Runs, "_hard_delete_run")]):
        register(root, bytes([number + 1]))
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, fatal(getattr(kind, name)))
            with pytest.raises(DiedError):
                deleted(root)
        assert well(root), name
        deleted(root)
        assert whats(root) == []
        assert well(root), name
    left = [path.name for path in (root / "artifacts/mlflow/artifacts").rglob("*") if path.is_file()]
    assert sorted(left) == ["MLmodel", "SHA256SUMS", "config.json", "likelihood.csv", "model.safetensors"]


def fatal(method):
    def done_and_dead(*arguments, **options):
        method(*arguments, **options)
        raise DiedError

    return done_and_dead


def test_gc_of_a_project_without_registry(root):
    shutil.rmtree(root / "artifacts")
    assert whats(root) == []
    assert not (root / "artifacts").exists()


@pytest.mark.slow
def test_gc_on_a_server_deletes_files_once(root, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    client = MlflowClient(server.address, server.address)
    client.create_experiment("plm")
    client.create_registered_model("plm")
    register(root, b"a")
    newest = register(root, b"b")
    register(root, b"x", version=False)
    files = list(server.folder.rglob("model.safetensors"))
    assert len(files) == 3
    removed = deleted(root)
    assert [waste.where.partition(" (")[0] for waste in removed] == ["plm version 1", "run register"]
    assert all(waste.bytes > 100 for waste in removed)
    assert numbers(root) == [newest]
    assert [path.is_file() for path in files].count(True) == 1
    assert whats(root) == []
    assert well(root)
