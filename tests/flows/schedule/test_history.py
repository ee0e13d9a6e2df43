"""What is recorded of scheduled runs, and who is notified of a night that nobody has reported."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from ears import messages, webhook
from toys import plm

from flows.maintenance import garbage
from flows.run import checkout
from flows.run.run_result import Result
from flows.schedule import history, prefect_server
from flows.schedule.history import DAY_S, LATE_S, ScheduleHistory

HOUR_S = 3600.0


@pytest.fixture
def root(tmp_path, hook, monkeypatch) -> Path:
    """A checkout whose messages the web server receives."""
    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    return tmp_path


def write(root, **values):
    """Record these fields, and nothing else."""
    history.update(root, **asdict(ScheduleHistory()) | values)


def test_missed_run_is_reported_once(root, hook):
    now = time.time()
    write(root, due=now - DAY_S - HOUR_S, next=now - HOUR_S)
    missed = history.notify_missed(root)
    assert missed == f"The scheduled run that was due at {history.format_time(now - HOUR_S)} did not begin."
    assert history.notify_missed(root) == missed
    assert messages(hook) == [("missed", missed)]
    # The next night that is missed is told again.
    history.update(root, next=now - HOUR_S / 2)
    history.notify_missed(root)
    assert len(messages(hook)) == 2


@pytest.mark.parametrize(
    ("next_due", "interval", "late"),
    [(0.0, DAY_S, False), (LATE_S - 9, DAY_S, False), (LATE_S + 9, DAY_S, True), (301.0, 300.0, True)],
)
def test_run_is_missed_after_a_quarter_of_an_hour(next_due, interval, late):
    now = 1_800_000_000.0
    nights = ScheduleHistory(due=now - next_due - interval, next=now - next_due)
    assert bool(nights.missed(now)) == late


def test_a_clock_that_went_back_is_told(root, hook):
    now = time.time()
    write(root, due=now + 6 * DAY_S, next=now + 7 * DAY_S, begun=now + 6 * DAY_S, ended=now + 6 * DAY_S + 9)
    assert "which is in the future: was the clock changed?" in history.notify_missed(root)
    assert [event for event, _ in messages(hook)] == ["missed"]


def test_killed_run_is_reported_by_the_next(root, hook):
    program = (
        "import os, sys; from pathlib import Path; from flows.schedule import history\n"
        "with history.recorded_run(Path(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(root)], check=False)
    assert killed.returncode == -9
    begun = history.format_time(ScheduleHistory.read(root).begun)
    for _ in range(2):
        with history.recorded_run(root) as tell:
            tell(Result(()))
    message = f"The run that began at {begun} was killed, or its machine went down. The next one resumes its work."
    assert messages(hook) == [("failure", message)]


@pytest.mark.slow
def test_undelivered_notification_is_sent_later(root, hook, monkeypatch):
    now = time.time()
    there = f"{webhook(hook, 'secret')} json://127.0.0.1:9/"  # one of two is enough
    write(root, due=now - DAY_S - HOUR_S, next=now - HOUR_S, begun=now - DAY_S)
    for addresses in ("json://127.0.0.1:9/", there, there):
        monkeypatch.setenv("PLM_NOTIFY_URLS", addresses)
        with history.recorded_run(root) as tell:
            tell(Result(()))
    assert [event for event, _ in messages(hook)] == ["failure", "missed"]


def test_failed_run_is_reported_but_not_an_interrupted_one(root, hook):
    with history.recorded_run(root) as tell:
        tell(Result((), error="register: no server"))
    assert ScheduleHistory.read(root).error == "register: no server"
    with pytest.raises(ConnectionError), history.recorded_run(root):
        raise ConnectionError("nobody there")
    with pytest.raises(KeyboardInterrupt), history.recorded_run(root):
        raise KeyboardInterrupt
    assert ScheduleHistory.read(root).error == "interrupted"
    assert messages(hook) == [
        ("failure", "The run failed. register: no server"),
        ("failure", "The run failed. nobody there"),
    ]


def filling(root: Path, days: float) -> None:
    """Record three nights, after which the disk will be full in this many days from the last."""
    free, now = shutil.disk_usage(root).free, time.time()
    before = [(now - ago * DAY_S, int(free * (1 + ago / days))) for ago in (3, 2, 1)]
    write(root, free=before)


@pytest.mark.parametrize(("days", "events"), [(3.0, ["disk"]), (30.0, [])])
def test_disk_full_forecast_is_reported(root, hook, days, events):
    filling(root, days)
    with history.recorded_run(root) as tell:
        tell(Result(()))
    assert [event for event, _ in messages(hook)] == events
    assert ScheduleHistory.read(root).days_left() == pytest.approx(days, rel=0.1)
    if events:
        assert " GB left and will be full in 3." in messages(hook)[0][1] or "in 2." in messages(hook)[0][1]


def test_disk_forecast_needs_history_and_growth():
    for times, free in (((0, 1), (100, 90)), ((0, 1e-3, 2e-3), (100, 90, 80)), ((0, 1, 2), (80, 80, 80))):
        assert (
            ScheduleHistory(free=[(at * DAY_S, left) for at, left in zip(times, free, strict=True)]).days_left() is None
        )


@pytest.mark.parametrize("content", ["[]", '{"dues": 1}', '{"due": 1, "nex'])
def test_unreadable_schedule_history_is_ignored(root, content):
    path = root / history.REMEMBERED
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert ScheduleHistory.read(root) == ScheduleHistory()
    assert history.notify_missed(root) == ""


def test_full_disk_for_schedule_history_is_a_warning(root, capsys):
    (root / ".dvc").write_text("a file where the folder would be")
    with history.recorded_run(root) as tell:
        tell(Result(()))
    assert "this run is not recorded" in capsys.readouterr().err


@pytest.fixture
def project(toy) -> Path:
    return toy("stages:\n  s: {cmd: echo x > out.txt, outs: [out.txt]}\n", params_yaml="notify: {events: [missed]}\n")


@pytest.mark.parametrize(
    "does", [partial(history.record_skip, why="held"), partial(history.record_failure, error="no")]
)
def test_history_keeps_a_run_that_ends_during_another(root, monkeypatch, does):
    now = time.time()
    write(root, due=now - HOUR_S, next=now, begun=now - HOUR_S)

    def slow_answer():  # of a server, which takes a while
        write(root, due=now - HOUR_S, next=now, begun=now - HOUR_S, ended=now, free=[(now, 7)])
        return {"due": now, "next": now + DAY_S}

    monkeypatch.setattr(prefect_server, "due_of_this_run", slow_answer)
    with checkout.lock_checkout(root, pipeline=True):
        does(root)
    nights = ScheduleHistory.read(root)
    assert (nights.next, nights.free) == (now + DAY_S, [[now, 7]])
    assert nights.ended >= now


def test_run_skipped_for_gc_or_restore_is_reported(project, hook, monkeypatch):
    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    monkeypatch.setattr("plm_core.shared.files.PAUSE_S", 0.0)
    now = time.time()
    monkeypatch.setattr(prefect_server, "due_of_this_run", lambda: {"due": now, "next": now + DAY_S})

    def skip(*_):
        with pytest.raises(checkout.HeldError) as error, checkout.open_checkout(project, False, print):
            pass
        history.record_skip(project, str(error.value))
        return []

    with checkout.open_checkout(project, False, print):
        skip()
    assert messages(hook) == []
    params = project / "params.yaml"
    params.write_text(f"{params.read_text()}retention: {{versions: 2, champions: 2, days: 7, snapshots_days: 7}}\n")
    monkeypatch.setattr(garbage, "GARBAGE", {"files": skip})
    assert garbage.collect(project, delete=True).unseen == {}
    with checkout.lock_checkout(project):
        shutil.rmtree(project / ".dvc/tmp")  # with the file that says who it is
        skip()
    who = ("another plm command (process", "another pipeline (process unknown")
    for (event, text), held_by in zip(messages(hook), who, strict=True):
        assert event == "missed"
        assert text.startswith(f"The run that was due at {history.format_time(now)} was skipped: {held_by}")


@pytest.mark.slow
def test_external_monitor_gets_an_exit_status(project, hook, monkeypatch):
    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    now = time.time()
    write(project, due=now, next=now + DAY_S, begun=now, ended=now + 60)
    done = plm(project, "nights")
    assert done.returncode == 0, done.stderr
    assert "all well" in done.stdout
    write(project, due=now, next=now + DAY_S, begun=now, ended=now + 60, error="s: exit status 1: no")
    done = plm(project, "nights")
    assert done.returncode == 1
    assert "failed: s: exit status 1: no" in done.stdout
    write(project, due=now, next=now + DAY_S, begun=now, error="interrupted")
    with checkout.lock_checkout(project, pipeline=True):
        done = plm(project, "nights")
    assert done.returncode == 0
    assert "still running" in done.stdout
    with checkout.lock_checkout(project):  # not for a pipeline
        done = plm(project, "nights")
    assert done.returncode == 1
    assert "killed" in done.stdout
    write(project, due=now - 2 * DAY_S, next=now - DAY_S, begun=now - 2 * DAY_S, ended=now - 2 * DAY_S + 60)
    done = plm(project, "nights")
    assert done.returncode == 1
    assert "did not begin." in done.stdout
    assert [event for event, _ in messages(hook)] == ["missed"]


def test_test_notification_failure_hides_the_address(project, hook, monkeypatch):
    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    assert plm(project, "nights", "--test").returncode == 0
    assert messages(hook) == [("test", "This is a test: notifications reach this address.")]
    monkeypatch.setenv("PLM_NOTIFY_URLS", "json://127.0.0.1:9/secret")
    done = plm(project, "nights", "--test")
    assert done.returncode == 2
    assert done.stderr.startswith("error: PLM_NOTIFY_URLS: address 1 did not accept it")
    monkeypatch.delenv("PLM_NOTIFY_URLS")
    done = plm(project, "nights", "--test")
    assert done.returncode == 2
    assert done.stderr.startswith("error: PLM_NOTIFY_URLS: not set here")


def test_idle_run_reports_missed_ones_and_imports_nothing_heavy(project, hook, monkeypatch):
    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=project, check=True)
    now = time.time()
    write(project, due=now - 2 * DAY_S, next=now - DAY_S)
    program = (
        "import json, sys; from pathlib import Path; from flows.run import pipeline\n"
        "pipeline.run(Path.cwd())\n"
        "print(json.dumps([name for name in ('prefect', 'mlflow', 'torch') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
    assert [event for event, _ in messages(hook)] == ["missed"]
