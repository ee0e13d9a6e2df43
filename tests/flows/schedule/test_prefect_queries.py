"""What is asked of a real Prefect server: schedules that do not run, old flow runs, the last step, and which runs are
dead: those whose process is gone, whatever the clock says and wherever they ran."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from registries import PARAMS, project, register
from toys import free_port, pids, start_server, wait_for

from flows.flow_configs import Retention
from flows.maintenance import doctor, findings
from flows.maintenance.prefect_checks import old_runs, schedule
from flows.registry import model_registry
from flows.run import checkout, flow
from flows.schedule import history, prefect_server
from plm_core.shared.errors import UserError

RULES = Retention(versions=2, champions=2, days=7, snapshots_days=7)
STAGES = "stages:\n  s: {cmd: echo x > out.txt, outs: [out.txt]}\n"


@pytest.fixture
def client(on_server):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as opened:
        yield opened


@pytest.fixture
def deployed(client, tmp_path):
    """A deployment of the checkout ``tmp_path`` that is not paused, and what makes runs of it."""
    made = client.create_deployment(
        client.create_flow_from_name("plm"), tmp_path.name, parameters={"root": str(tmp_path)}, paused=False
    )

    def run(state):
        return client.create_flow_run_from_deployment(made, state=state)

    yield made, run
    client.delete_deployment(made)


def looked(root):
    report = findings.apply_checks({"schedule": schedule}, root, False)
    return [finding.what for finding in report.findings], report.notes, report.unseen


def test_overdue_run_is_found_and_next_run_is_reported(tmp_path, deployed):
    from prefect.states import Scheduled

    _, run = deployed
    now = datetime.now(UTC)
    tomorrow = now + timedelta(days=1)
    assert looked(tmp_path)[0] == ["no run is scheduled"]
    run(Scheduled(scheduled_time=tomorrow))
    assert looked(tmp_path) == ([], [f"schedule: the next run of {tmp_path.name}: {tomorrow:%Y-%m-%d %H:%M} UTC"], {})
    late = now - timedelta(hours=1)
    run(Scheduled(scheduled_time=late))
    assert looked(tmp_path)[0] == [f"a run has been due since {late:%Y-%m-%d %H:%M} UTC and has not begun"]


def test_a_schedule_that_is_paused_and_a_last_run_that_failed_are_found(tmp_path, deployed, client):
    history.update(tmp_path, begun=1.0, ended=2.0, error="clean: no room")
    client.pause_deployment(deployed[0])
    assert looked(tmp_path)[0] == ["the schedule is paused", "the last run failed: clean: no room"]
    history.update(tmp_path, ended=None)  # it is at work, or was killed
    assert looked(tmp_path)[0] == ["the schedule is paused"]


def test_undeployed_checkout_and_missing_server_are_reported(tmp_path, on_server, monkeypatch):
    assert looked(tmp_path)[1] == [
        f"schedule: {on_server} has no deployment of this checkout; `plm deploy` makes one",
    ]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    report = findings.apply_checks({"schedule": schedule}, tmp_path, False)
    assert (doctor.status(report), report.findings) == (doctor.UNSEEN, [])
    assert report.unseen["schedule"].startswith("PREFECT_API_URL: no Prefect server answers at http://127.0.0.1:9/api")
    monkeypatch.delenv("PREFECT_API_URL")
    assert looked(tmp_path)[1] == [
        "schedule: not checked, because PREFECT_API_URL is not set; set it if a server runs this checkout"
    ]


def test_prefect_password_is_never_printed(tmp_path, deployed, client, monkeypatch):
    ended(client, tmp_path, 8)
    secret = os.environ["PREFECT_API_URL"].replace("://", "://me:T0psecret@")
    monkeypatch.setattr(prefect_server, "configured_url", lambda: secret)
    texts = []
    for there in (False, True):
        if there:
            monkeypatch.setattr(prefect_server, "require_answer", lambda *_: None)
        texts += [
            str(findings.apply_checks({"1": schedule}, root, False)) for root in (tmp_path, tmp_path / "not deployed")
        ]
        texts.append(str(findings.apply_checks({"1": old_runs}, tmp_path, RULES)))
    assert ["T0psecret" in text for text in texts] == [False] * 6
    assert [secret.replace("me:T0psecret@", "") in text for text in texts] == [True] * 6


def ended(client, root, days_ago):
    """A flow run that ended then by the server's database: its API takes its own clock's time."""
    from prefect.states import Completed

    run = client.create_flow_run(flow.plm, parameters={"root": str(root)}, state=Completed()).id
    when = datetime.now(UTC) - timedelta(days=days_ago)
    with contextlib.closing(sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db", timeout=300)) as database:
        values = (f"{when:%Y-%m-%d %H:%M:%S.%f}", str(run))
        assert database.execute("update flow_run set end_time = ? where id = ?", values).rowcount == 1
        database.commit()
    return run


def test_old_flow_runs_of_this_checkout_are_deleted(tmp_path, client):
    from prefect.exceptions import ObjectNotFound

    old, young = ended(client, tmp_path, 8), ended(client, tmp_path, 6)
    others = ended(client, tmp_path / "other", 8)
    elsewhere = ended(client, tmp_path, 8)  # on another machine
    client.update_flow_run_labels(elsewhere, {"plm.checkout": "of another machine"})
    client.update_flow_run_labels(old, {"plm.checkout": prefect_server.checkout_name(tmp_path)})
    for waste in old_runs(tmp_path, RULES):
        assert waste.where.startswith("1 flow runs at ")
        waste.safe()
        waste.safe()  # once more changes nothing
    with pytest.raises(ObjectNotFound):
        client.read_flow_run(old)
    assert {client.read_flow_run(run).id for run in (young, others, elsewhere)} == {young, others, elsewhere}
    assert list(old_runs(tmp_path, RULES)) == []


def versions(root):
    with model_registry.open_registry(root) as opened:
        return [version.number for version in opened.versions()]


def test_cleanup_follows_scheduled_runs_only(toy, client, empty_store):
    from prefect.flow_engine import run_flow

    root = project(toy(STAGES), empty_store)
    numbers = [register(root, content) for content in (b"a", b"b", b"c")]
    assert flow.plm(str(root), return_state=True).is_completed()
    assert versions(root) == numbers[::-1]
    made = client.create_deployment(client.create_flow_from_name("plm"), "gc", parameters={"root": str(root)})
    run = client.create_flow_run_from_deployment(made, parameters={"root": str(root)})
    assert run_flow(flow.plm, run, parameters=run.parameters, return_type="state").is_completed()
    assert versions(root) == ["3", "2"]
    logs = "cleaned up: plm version 1"
    wait_for(lambda: any(logs in line.message for line in client.read_logs(limit=200)))


def test_failed_cleanup_is_a_warning(toy, client, empty_store, monkeypatch):
    from prefect.flow_engine import run_flow

    root = project(toy(STAGES), empty_store)
    made = client.create_deployment(client.create_flow_from_name("plm"), "wrong", parameters={"root": str(root)})
    (root / "params.yaml").write_text(PARAMS.replace("versions: 2", "versions: none"))
    run = client.create_flow_run_from_deployment(made, parameters={"root": str(root)})
    assert run_flow(flow.plm, run, parameters=run.parameters, return_type="state").is_completed()
    warning = "nothing was cleaned up: retention.versions: found the text 'none'; expected a whole number"
    wait_for(lambda: any(warning in line.message for line in client.read_logs(limit=200)))


@pytest.mark.slow
def test_missing_or_wrong_prefect_password_is_one_line(tmp_path, monkeypatch):
    from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:secret")
    process, url = start_server(tmp_path, free_port())
    try:
        for given, what in ((None, "not set"), ("me:wrong", "not accepted")):
            refused = rf"^PREFECT_API_AUTH_STRING: {what}, and the Prefect server at {url} asks for a password"
            with temporary_settings({PREFECT_API_AUTH_STRING: given}), pytest.raises(UserError, match=refused):
                prefect_server.require_access(url, "")
        with temporary_settings({PREFECT_API_AUTH_STRING: "me:secret"}):
            prefect_server.require_access(url, "")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_prefect_server_without_due_time_does_not_fail_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("prefect.runtime.deployment", SimpleNamespace(id="6b4a5d9c-0000-4000-8000-000000000000"))
    monkeypatch.setattr("prefect.runtime.flow_run", SimpleNamespace(scheduled_start_time=datetime.now(UTC)))
    monkeypatch.setattr("prefect.client.orchestration.get_client", refusing)
    assert prefect_server.due_of_this_run() == {}
    assert capsys.readouterr().out == "warning: Prefect does not say when this run was due: no route to http://host\n"


@contextlib.contextmanager
def refusing(**_):
    raise httpx.ConnectError("no route to http://me:T0psecret@host")
    yield


SLEEPER = """
import os, pathlib, sys, time
pathlib.Path("out.txt").write_text("x")
pathlib.Path("pids").write_text(str(os.getpid()))
if pathlib.Path("sleep").exists():
    time.sleep(600)
"""
SLEEPING = "stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n"
RUN = "import sys; from pathlib import Path; from flows.run import pipeline; pipeline.run(Path(sys.argv[1]))"
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
CAN_UNSHARE = shutil.which("unshare") and not subprocess.run([*CONTAINER, "true"], capture_output=True).returncode


@pytest.fixture
def checkouts(toy):
    """Three copies of one repository, all of them used before they were copied."""
    root = toy(SLEEPING, code_py=SLEEPER)
    prefect_server.checkout_name(root)
    copies = [root.with_name(f"copy{number}") for number in range(3)]
    for copy in copies:
        shutil.copytree(root, copy)
    return copies


def start(root: Path, *inside: str) -> "subprocess.Popen[bytes]":
    (root / "sleep").touch()
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", RUN, str(root)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    pids(root / "pids", 1)
    return process


def states(*roots: Path) -> list[str]:
    """What the server says of the last run of each checkout."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
    return [next(run.state.type.value for run in runs if run.parameters.get("root") == str(root)) for root in roots]


@pytest.mark.slow
@pytest.mark.skipif(not CAN_UNSHARE, reason="namespaces cannot be made here")
def test_live_flow_run_is_never_closed(checkouts, on_server, monkeypatch):
    outside, inside, third = checkouts
    first = start(outside)
    second = start(inside, *CONTAINER)
    try:
        # An hour later, by psutil's reckoning, when the clock has been set.
        boot = psutil.boot_time()
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + 3600)
        assert flow.plm(str(third), return_state=True).is_completed()
        assert states(outside, inside, third) == ["RUNNING", "RUNNING", "COMPLETED"]
    finally:
        for process in (first, second):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    (inside / "sleep").unlink()
    wait_for(lambda: not checkout.pipeline_is_running(inside))
    assert flow.plm(str(inside), return_state=True).is_completed()
    assert states(outside, inside) == ["CRASHED", "COMPLETED"]
