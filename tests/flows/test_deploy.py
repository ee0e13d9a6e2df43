"""Schedules, through a real server's scheduler: a run called directly proves nothing about them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import alive, pids, wait_for

from flows import checkout, deploy
from flows.outcome import UserError

REPOSITORY = Path(__file__).parents[2]

SERVE = """
import sys
from datetime import timedelta
from pathlib import Path
from prefect.schedules import Interval
from flows import checkout, deploy, pipeline
pipeline.prepare_environment()
deploy.serve_schedule(Path(sys.argv[1]), Interval(timedelta(seconds=5)), "often", sys.argv[2])
"""

SLEEPER = """
import os, sys, time
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
try:
    time.sleep(600)
except KeyboardInterrupt:
    open("saved", "w").write("state")
    sys.exit(75)
"""


@contextlib.contextmanager
def _process(command: list[str], **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PREFECT_RUNNER_POLL_FREQUENCY": "1", **env},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _runs(deployment: str) -> list:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter

    with get_client(sync_client=True) as client:
        where = DeploymentFilter.model_validate({"name": {"any_": [deployment]}})
        return [run for run in client.read_flow_runs(deployment_filter=where) if run.auto_scheduled]


def test_a_scheduled_run_happens_and_cancelling_it_ends_its_stages(toy, on_server):
    root = toy("stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n", code_py=SLEEPER)
    with _process([sys.executable, "-c", SERVE, str(root), on_server], PREFECT_API_URL=on_server):
        (stage,) = pids(root / "pids", 1, seconds=60)
        # The schedule goes on meanwhile, and never starts a second run beside the first.
        wait_for(lambda: "Skipped" in {run.state.name for run in _runs("often")}, 60)
        assert len((root / "pids").read_text().split()) == 1
        running = [run for run in _runs("often") if run.state.type == "RUNNING"]
        run = min(running, key=lambda run: run.start_time)  # another may be about to be skipped
        _cancel(run.id)
        wait_for(lambda: not alive(stage), 30)
        assert (root / "saved").read_text() == "state"
        wait_for(lambda: run.id in {r.id for r in _runs("often") if r.state.type == "CANCELLED"}, 30)


def test_a_run_that_is_due_while_another_is_at_work_is_skipped_without_alarm(toy, on_server):
    from flows import flow

    root = toy("stages:\n  s: {cmd: echo x > out.txt, outs: [out.txt]}\n")
    with checkout.only_one(root):
        state = flow.plm(str(root), return_state=True)
    assert (state.type, state.name) == ("COMPLETED", "Skipped")
    assert f"another pipeline (process {os.getpid()}) runs in {root}" in state.message
    assert not (root / "out.txt").exists()


def _cancel(run_id) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, Cancelling())


@pytest.mark.slow
def test_the_work_pool_deployment_is_run_by_a_worker(toy, on_server):
    root = toy("stages:\n  s: {cmd: echo x > out.txt, deps: [code.py], outs: [out.txt]}\n", code_py="1")
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PWD": str(root)}
    deployed = ["deploy", "--all", "--prefect-file", "infra/prefect.yaml"]
    for command in (["work-pool", "create", "plm", "--type", "process"], deployed):
        subprocess.run([*prefect, *command], cwd=REPOSITORY, env=env, check=True)
    subprocess.run([*prefect, "deployment", "run", "plm/nightly"], env=env, check=True)
    with _process([*prefect, "worker", "start", "--pool", "plm"], PREFECT_WORKER_QUERY_SECONDS="1"):
        wait_for((root / "dvc.lock").exists, 90)


@pytest.mark.parametrize("cron", ["", "nightly", "61 3 * * *", "0 3 * *"])
def test_a_wrong_cron_line_is_refused_before_anything_starts(tmp_path, prefect_url, monkeypatch, cron):
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    with pytest.raises(UserError, match=r"cron: .*; expected five fields"):
        deploy.serve(tmp_path, cron)


def test_a_schedule_without_a_server_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"PREFECT_API_URL: not set.*prefect server start"):
        deploy.serve(tmp_path, "0 3 * * *")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(UserError, match="no Prefect server answers"):
        deploy.serve(tmp_path, "0 3 * * *")
