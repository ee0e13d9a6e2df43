"""The registry's checks: each finding by really breaking a real store, what fixes it, and no finding without cause."""

import contextlib
import shutil
import socket
import sqlite3

import pytest
from registries import HOUR_MS, PARAMS, everything, judge, model_of, project, register, run_of

from flows.maintenance import doctor, findings
from flows.maintenance import registry_checks as health
from flows.maintenance.registry_checks import registry as check
from flows.registry import model_registry
from flows.registry.ledger import Decision


def look(root, everything=False, mend=False):
    return findings.apply_checks({"registry": check}, root, everything, mend)


@pytest.fixture(scope="module")
def built(tmp_path_factory, empty_store):
    """A champion that came after another one, and a challenger; and a copy of them."""
    root = project(tmp_path_factory.mktemp("built"), empty_store)
    for content, action in ((b"a", "promoted"), (b"b", "promoted"), (b"c", "refused")):
        number = register(root, content)
        if action == "refused":
            with model_registry.open_registry(root) as opened:
                opened.set_alias("challenger", number)
        judge(root, number, action)
    return root, shutil.copytree(root, tmp_path_factory.mktemp("copy") / "root")


@pytest.fixture
def root(built, monkeypatch):
    """At the same path for every test, because MLflow's locations are absolute; the database file is the same, too."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root, copy = built
    shutil.rmtree(root / "artifacts/mlflow/artifacts", ignore_errors=True)
    shutil.copytree(copy / "artifacts/mlflow/artifacts", root / "artifacts/mlflow/artifacts")
    old, new = (sqlite3.connect(folder / "artifacts/mlflow/mlflow.db") for folder in (copy, root))
    with contextlib.closing(old), contextlib.closing(new):
        old.backup(new)  # a copied file would not be noticed by connections that are open
    return root


def sql(root, statement, *values):
    with sqlite3.connect(root / "artifacts/mlflow/mlflow.db") as database:
        database.execute(statement, values)
    database.close()


def findings_of(root, all_bytes=False):
    report = look(root, all_bytes)
    assert report.unseen == {}
    return {(finding.where, finding.what) for finding in report.findings}


def mended(root, *gone):
    """Mending takes away these findings and no other."""
    before = findings_of(root)
    report = look(root, mend=True)
    assert {(finding.where, finding.what) for finding in report.mended} == set(gone)
    assert findings_of(root) == before - set(gone)


def not_mended(root):
    """Nothing is safe to do: not a byte and not a row changes."""
    before = everything(root)
    report = look(root, mend=True)
    assert report.mended == []
    assert all(finding.mend for finding in report.findings)
    assert everything(root) == before
    return report


def test_doctor_finds_nothing_in_an_undisturbed_registry(root):
    before = everything(root)
    assert findings_of(root) == findings_of(root, all_bytes=True) == set()
    assert doctor.status(look(root, True, mend=True)) == doctor.WELL
    assert everything(root) == before


def test_a_project_without_a_registry_is_well_and_gets_none(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    report = look(tmp_path)
    assert (doctor.status(report), report.notes) == (doctor.WELL, ["MLflow: nothing is registered yet"])
    assert not (tmp_path / "artifacts").exists()


def test_a_run_that_was_deleted_is_found_and_restored(root):
    run = run_of(root, "1")
    with model_registry.open_registry(root) as opened:
        opened.client.delete_run(run)
    assert findings_of(root) == {("plm version 1", "its run was deleted")}
    mended(root, ("plm version 1", "its run was deleted"))


def test_a_run_that_mlflow_gc_took_is_found(root):
    run = run_of(root, "1")
    with model_registry.open_registry(root) as opened:
        opened.client.delete_run(run)
        opened.client._tracking_client.store._hard_delete_run(run)
    shutil.rmtree(root / f"artifacts/mlflow/artifacts/{run}")
    assert findings_of(root) == {("plm version 1", "its run is gone from MLflow, and its evidence with it")}
    not_mended(root)


def test_doctor_finds_missing_files_in_every_version(root):
    shutil.rmtree(model_of(root, "1"))
    other = model_of(root, "3") / "artifacts/gpt/SHA256SUMS"
    other.write_text("0" * 64 + "  config.json\n")
    problems = dict(sorted(findings_of(root)))
    assert problems.keys() == {"plm version 1", "plm version 3"}
    assert problems["plm version 1"] == "its files are gone"
    assert problems["plm version 3"].startswith("the checkpoint of version 3 is damaged: SHA256SUMS has the sha256 ")
    not_mended(root)


@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_doctor_finds_bit_flips_in_registered_models(root, number):
    path = model_of(root, number) / "artifacts/gpt/model.safetensors"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    expected = {(f"plm version {number}", "its checkpoint is damaged: model.safetensors is damaged")}
    assert findings_of(root) == (set() if number == "1" else expected)
    assert findings_of(root, all_bytes=True) == expected


def test_a_missing_file_and_a_cut_description_are_found(root):
    (model_of(root, "2") / "artifacts/gpt/config.json").unlink()
    (model_of(root, "1") / "MLmodel").write_text("flavors: {")
    assert findings_of(root) == {
        ("plm version 2", "its checkpoint is damaged: config.json is missing"),
        ("plm version 1", "its file MLmodel is damaged (ParserError)"),
    }


def test_evidence_that_is_missing_or_damaged_is_found(root):
    evidence = root / f"artifacts/mlflow/artifacts/{run_of(root, '1')}/artifacts/evidence"
    (evidence / "likelihood.csv").write_text("other")
    assert findings_of(root) == {("plm version 1", "its evidence is damaged")}
    shutil.rmtree(evidence)
    assert findings_of(root) == {("plm version 1", "its evidence has been deleted")}
    not_mended(root)


def test_doctor_removes_dangling_aliases_except_champion(root):
    for alias in ("champion", "challenger"):
        sql(root, "update registered_model_aliases set version = 7 where alias = ?", alias)
    what = {alias: f"the alias {alias} names version 7, which does not exist" for alias in ("champion", "challenger")}
    assert findings_of(root) == {("the model plm", what["champion"]), ("the model plm", what["challenger"])}
    mended(root, ("the model plm", what["challenger"]))


def test_doctor_finds_a_champion_missing_in_the_ledger(root):
    with model_registry.open_registry(root) as opened:
        opened.set_alias("champion", "1")
    assert findings_of(root) == {("the model plm", "somebody has made version 1 the champion, but the ledger has 2")}
    with model_registry.open_registry(root) as opened:
        opened.delete_alias("champion")
    assert findings_of(root) == {("the model plm", "no version is the champion, although version 2 was")}
    (left,) = not_mended(root).findings
    assert left.mend == "`plm promote VERSION --reason ...` or `plm rollback --reason ...` sets it"


def test_doctor_completes_interrupted_decisions(root):
    with model_registry.open_registry(root) as opened:
        run = opened.ledger.begin(Decision("promoted by hand", "1", "2", ["because"]))
    wrong = (f"run {run} of the ledger", "a decision was interrupted: version 1 promoted by hand")
    assert findings_of(root) == {wrong}
    mended(root, wrong)
    with model_registry.open_registry(root) as opened:
        assert (opened.alias("champion"), opened.ledger.champions()) == ("1", ["1", "2", "1"])


def test_doctor_restores_verdict_tags_from_the_ledger(root):
    with model_registry.open_registry(root) as opened:
        opened.client.delete_model_version_tag("plm", "3", "gate")
    wrong = ("plm version 3", "tags of its verdict are missing: gate")
    assert findings_of(root) == {wrong}
    mended(root, wrong)
    with model_registry.open_registry(root) as opened:
        assert opened.get("3").tags["gate"] == "refused"


def test_doctor_reports_refusals_of_the_store_in_a_line(root):
    with model_registry.open_registry(root) as opened:
        opened.client.delete_model_version_tag("plm", "3", "gate")
    sql(root, "create trigger no before insert on model_version_tags begin select raise(abort, 'not today'); end")
    assert "not today" in look(root, mend=True).unseen["registry"]


def test_a_version_that_was_never_judged_is_found_once_its_registration_must_be_dead(root):
    number = register(root, b"d")
    assert findings_of(root) == set()
    sql(root, "update model_versions set creation_time = creation_time - ? where version = 4", 2 * HOUR_MS)
    assert findings_of(root) == {(f"plm version {number}", "it was never judged")}
    (left,) = look(root).findings
    assert left.mend.endswith("; otherwise `plm promote 4 --reason ...` does")


def test_doctor_ends_killed_registrations_only(root):
    runs = [register(root, content, version=False, hours_ago=hours) for content, hours in ((b"x", 2), (b"y", 0))]
    for run in runs:
        sql(root, "update runs set status = 'RUNNING', end_time = null where run_uuid = ?", run)
    what = "a registration was killed and left it RUNNING without a version"
    assert findings_of(root) == {(f"run register ({runs[0]})", what)}
    mended(root, (f"run register ({runs[0]})", what))
    with model_registry.open_registry(root) as opened:
        assert [opened.client.get_run(run).info.status for run in runs] == ["KILLED", "RUNNING"]


def test_a_run_without_process_or_journal_is_found_and_ended_but_not_one_of_another_machine(root):
    with model_registry.open_registry(root) as opened:
        tags = {"plm.journal": "1-s-0", "plm.host": socket.gethostname()}
        run = opened.client.create_run(opened.experiment(), tags=tags, run_name="s").info.run_id
        opened.client.create_run(opened.experiment(), tags=tags | {"plm.host": "elsewhere"})
    wrong = (f"run s ({run})", "its process and its journal are gone, and it is RUNNING in MLflow")
    assert findings_of(root) == {wrong}
    mended(root, wrong)


def test_doctor_keeps_the_status_of_a_run_that_ends_meanwhile(root, monkeypatch):
    with model_registry.open_registry(root) as opened:
        tags = {"plm.journal": "1-s-0", "plm.host": socket.gethostname()}
        slow, slower = (opened.client.create_run(opened.experiment(), tags=tags).info.run_id for _ in range(2))
        listed = health.journals

        def ended_meanwhile(root):
            """The last lines of a journal reach MLflow, and it is deleted, after the runs were listed."""
            opened.client.set_terminated(slow, "FINISHED")
            return listed(root)

        monkeypatch.setattr(health, "journals", ended_meanwhile)
        for finding in check(root, False):
            assert slower in finding.where
            opened.client.set_terminated(slower, "FINISHED")
            finding.safe()
        assert [opened.client.get_run(run).info.status for run in (slow, slower)] == ["FINISHED"] * 2


def test_doctor_finds_nothing_in_a_moved_checkout(root, tmp_path):
    moved = tmp_path / "checkout"
    shutil.copytree(root, moved)
    shutil.rmtree(root / "artifacts/mlflow/artifacts")
    assert look(moved).findings == []
    assert look(root).findings != []


def test_doctor_reports_unreachable_mlflow(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    report = look(root)
    assert doctor.status(report) == doctor.UNSEEN
    assert report.unseen["registry"].startswith("MLflow at http://127.0.0.1:9: ")
