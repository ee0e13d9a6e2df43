"""The checks of the checkout: outputs, cache, journals, snapshots and the disk, each really broken."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from registries import PARAMS, project, training

from flows.maintenance import checkout_checks, doctor, findings, output_checks
from flows.run.checkout import open_checkout
from flows.schedule import history

GRAPH = """
stages:
  a:
    cmd: mkdir d; echo 1 > d/x; echo 2 > d/y; echo 3 > f; echo '{}' > m.json
    outs: [d, f]
    metrics: [{m.json: {cache: false}}]
  b: {cmd: cat f > g, deps: [f], outs: [g]}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory, empty_repository):
    root = tmp_path_factory.mktemp("ran") / "root"
    shutil.copytree(empty_repository, root)
    (root / "dvc.yaml").write_text(GRAPH)
    (root / "params.yaml").write_text(PARAMS)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def root(ran, tmp_path):
    """A repository whose stages have run."""
    return shutil.copytree(ran, tmp_path / "root")


def findings_of(root, check, all_bytes=False):
    report = findings.apply_checks({"one": check}, root, all_bytes)
    assert report.unseen == {}
    return {(finding.where, finding.what): finding for finding in report.findings}


def mended(root, check, *gone):
    """Mending takes away these findings and no other."""
    before = findings_of(root, check)
    report = findings.apply_checks({"one": check}, root, False, mend=True)
    assert {(finding.where, finding.what) for finding in report.mended} == set(gone)
    assert findings_of(root, check).keys() == before.keys() - set(gone)


def files(root):
    """The bytes of the workspace and of the cache."""
    places = [path for path in root.rglob("*") if path.is_file() and not {"tmp", ".git"} & set(path.parts)]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in places}


def test_doctor_finds_nothing_in_an_undisturbed_checkout(root):
    before = files(root)
    report = doctor.run_checks(root, True, mend=True)
    assert (doctor.status(report), report.findings, report.unseen, report.mended) == (doctor.WELL, [], {}, [])
    assert files(root) == before


def test_doctor_finds_outputs_that_differ_from_the_lock(root):
    (root / "f").write_text("9\n")
    (root / "m.json").unlink()
    shutil.rmtree(root / "d")
    problems = findings_of(root, output_checks.outputs)
    assert problems.keys() == {
        ("f", "the output is not what dvc.lock records"),
        ("m.json", "the output is missing"),
        ("d", "the output is missing"),
    }
    mended(root, output_checks.outputs, ("d", "the output is missing"))
    assert (root / "d/y").read_text() == "2\n"
    assert (root / "f").read_text() == "9\n"


def test_doctor_after_a_kill_restores_no_old_output(root):
    """A stage's outputs are deleted before it runs."""
    history.update(root, begun=1.0)
    shutil.rmtree(root / "d")
    (first, _), (what, lost) = findings_of(root, output_checks.outputs).items()
    assert first == ("outputs", "the last run, of 1970-01-01 00:00 UTC, was killed")
    assert (what, lost.safe, lost.mend.split(",")[0]) == (("d", "the output is missing"), None, "`plm run` rebuilds it")


def test_an_output_that_is_not_in_the_cache_is_found(root):
    shutil.rmtree(root / ".dvc/cache/files")
    assert {where for where, _ in findings_of(root, output_checks.outputs)} == {"d", "f", "g"}
    mended(root, output_checks.outputs)


def test_a_new_clone_is_well(root):
    shutil.rmtree(root / ".dvc/cache")
    for name in ("d", "f", "g"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).unlink(missing_ok=True)
    report = findings.apply_checks({"outputs": output_checks.outputs, "cache": output_checks.cached}, root, True)
    assert (report.findings, report.unseen) == ([], {})
    assert "nothing that dvc.lock records is here yet" in report.notes[0]


def test_doctor_does_not_block_a_due_run(root, monkeypatch):
    shutil.rmtree(root / "d")
    compare = output_checks.differing_outputs

    def run_beside(root):
        with open_checkout(root, False, print) as held:
            assert held.stale
        return compare(root)

    monkeypatch.setattr(output_checks, "differing_outputs", run_beside)
    report = findings.apply_checks({"outputs": output_checks.outputs}, root, False)
    assert (report.findings, report.unseen) == ([], {})
    assert "has started; try again" in report.notes[0]


def test_doctor_finds_bit_flips_in_the_cache_with_all(root):
    path = next(path for path in (root / ".dvc/cache/files/md5").glob("*/*") if path.suffix != ".dir")
    path.chmod(0o644)
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    path.chmod(0o444)
    assert findings_of(root, output_checks.cached) == {}
    where = path.relative_to(root).as_posix()
    assert findings_of(root, output_checks.cached, all_bytes=True).keys() == {(where, "a cached object is damaged")}


@pytest.mark.slow
def test_a_journal_with_unsent_points_is_found_once_its_stage_is_dead_and_is_sent(root, monkeypatch, empty_store):
    project(root, empty_store)
    monkeypatch.setenv("PLM_TRACKING", "on")
    stage = training(root)
    assert findings_of(root, checkout_checks.journals) == {}
    stage.kill()
    stage.communicate()
    (path,) = root.glob("artifacts/journals/*.jsonl")
    where = path.relative_to(root).as_posix()
    wrong = (where, "MLflow does not have all of the run gpt")
    assert findings_of(root, checkout_checks.journals).keys() == {wrong}
    mended(root, checkout_checks.journals, wrong)
    assert not path.exists()


def test_doctor_finds_damaged_journals_and_never_sends_them(root, monkeypatch):
    monkeypatch.setenv("PLM_TRACKING", "on")
    stage = training(root)
    stage.communicate("go on\n")
    (path,) = root.glob("artifacts/journals/*.jsonl")
    lines = path.read_text().split("\n")
    number = next(n for n, line in enumerate(lines) if '"kind": "metrics"' in line)
    lines[number] = lines[number][:20]
    path.write_text("\n".join(lines))
    where = path.relative_to(root).as_posix()
    before = path.read_bytes()
    assert findings_of(root, checkout_checks.journals).keys() == {
        (where, f"lines cannot be read: {number + 1}"),
        (where, "MLflow does not have all of the run gpt"),
    }
    mended(root, checkout_checks.journals)
    assert path.read_bytes() == before


def snapshot(root, name, age):
    folder = root / "artifacts/snapshots" / name
    (folder / "step-00000004").mkdir(parents=True)
    (folder / "step-00000004/progress.json").write_text("{}")
    for path in (folder / "step-00000004", folder):
        os.utime(path, (time.time() - age, time.time() - age))
    return f"artifacts/snapshots/{name}"


def test_doctor_deletes_replaced_snapshots(root):
    old = snapshot(root, "pretrain-gpt-0123456789abcdef", 300)
    new = snapshot(root, "pretrain-gpt-fedcba9876543210", 200)
    going = snapshot(root, "finetune-gpt-next-2-0123456789abcdef", 100)
    what = "the snapshots have other parameters, text or code than the latest training run of pretrain-gpt"
    mended(root, checkout_checks.snapshots, (old, what))
    assert [(root / name).is_dir() for name in (old, new, going)] == [False, True, True]


def test_doctor_finds_too_little_disk_for_a_run(root):
    lock = root / "dvc.lock"
    lock.write_text(lock.read_text().replace("size: 2", f"size: {10**18}", 1))
    (finding,) = findings_of(root, checkout_checks.disk).values()
    assert finding.what.endswith("a run that rebuilds everything writes 2.0 EB")


def test_doctor_checks_the_rest_when_a_part_is_broken(root):
    (root / "d/x").unlink()
    (root / "params.yaml").write_text("tracking: {uri: 3}")
    report = doctor.run_checks(root)
    assert report.unseen.keys() == {"registry"}
    assert [finding.where for finding in report.findings] == ["d"]
    assert json.loads(json.dumps(doctor.report_data(report)))["findings"][0]["where"] == "d"
    assert doctor.status(report) == doctor.WRONG
