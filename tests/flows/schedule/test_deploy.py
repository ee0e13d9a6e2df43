"""Schedules, through a real server's scheduler: a run called directly proves nothing about them."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ears import messages, webhook
from toys import alive, free_port, hear_sigint, pids, start_server, wait_for

from flows.run import checkout
from flows.schedule import deploy, prefect_server
from flows.schedule.history import ScheduleHistory, update
from plm_core.shared.errors import UserError

REPOSITORY = Path(__file__).parents[3]

SERVE = """
import sys
from datetime import timedelta
from pathlib import Path
from prefect.schedules import Interval
from flows.run import pipeline
from flows.schedule import deploy
pipeline.prepare_environment(Path.cwd())
deploy.serve_schedule(Path(sys.argv[1]), Interval(timedelta(seconds=int(sys.argv[3]))), "often", sys.argv[2])
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
def _process(command: list[str], stdout: Any = None, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command,
        stdout=stdout,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PREFECT_RUNNER_POLL_FREQUENCY": "1", **env},
        start_new_session=True,
        preexec_fn=hear_sigint,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _killed(*processes: "subprocess.Popen[bytes]") -> None:
    """End processes and all that they started, as a power failure does."""
    family = [member for process in processes for member in psutil.Process(process.pid).children(recursive=True)]
    for member in [*(psutil.Process(process.pid) for process in processes), *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    for process in processes:
        process.wait()


def _runs(deployment: str) -> list:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter

    with get_client(sync_client=True) as client:
        where = DeploymentFilter.model_validate({"name": {"any_": [deployment]}})
        return [run for run in client.read_flow_runs(deployment_filter=where) if run.auto_scheduled]


@pytest.mark.slow
def test_scheduled_run_starts_and_cancelling_ends_its_stages(toy, on_server, hook):
    from prefect.client.orchestration import get_client

    root = toy("stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n", code_py=SLEEPER)
    hears = webhook(hook, "secret")
    command = [sys.executable, "-c", SERVE, str(root), on_server, "15"]
    with _process(command, PREFECT_API_URL=on_server, PLM_NOTIFY_URLS=hears):
        (stage,) = pids(root / "pids", 1)
        # The schedule goes on meanwhile, and never starts a second run beside the first.
        wait_for(lambda: "Skipped" in {run.state.name for run in _runs("often")})
        assert len((root / "pids").read_text().split()) == 1
        # It is longer than its interval, which somebody hears.
        wait_for(lambda: any("was skipped: another pipeline" in text for _, text in messages(hook)))
        nights = ScheduleHistory.read(root)
        assert round(nights.next - nights.due, 3) % 15 == 0
        running = [run for run in _runs("often") if run.state.type == "RUNNING"]
        run = min(running, key=lambda run: run.start_time)  # another may be about to be skipped
        _cancel(run.id)
        wait_for(lambda: not alive(stage))
        assert (root / "saved").read_text() == "state"
        wait_for(lambda: run.id in {r.id for r in _runs("often") if r.state.type == "CANCELLED"})
    # Another process may serve the same schedule: to stop this one must not pause it.
    with get_client(sync_client=True) as client:
        assert not client.read_deployment_by_name("plm/often").paused


@pytest.mark.slow
def test_next_run_after_a_power_failure_reports_the_one_before(toy, tmp_path, hook, monkeypatch):
    root = toy("stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n", code_py=SLEEPER)
    port = free_port()
    standing, url = start_server(tmp_path, port)
    env = {"PREFECT_API_URL": url, "PREFECT_HOME": str(tmp_path), "PLM_NOTIFY_URLS": webhook(hook, "secret")}
    command = [sys.executable, "-c", SERVE, str(root), url, "20"]
    with _process(command, **env) as serving:
        pids(root / "pids", 1)
        _killed(serving, standing)
    standing, _ = start_server(tmp_path, port)
    try:
        with _process(command, **env):
            pids(root / "pids", 2)
    finally:
        _killed(standing)
    assert "was killed, or its machine went down" in messages(hook)[0][1]


@pytest.mark.slow
def test_a_schedule_outlives_its_server(toy, tmp_path):
    root = toy("stages:\n  s: {cmd: echo x > out.txt, outs: [out.txt]}\n")
    port = free_port()
    standing, url = start_server(tmp_path, port)
    env = {"PREFECT_API_URL": url, "PREFECT_HOME": str(tmp_path), "PREFECT_CLIENT_MAX_RETRIES": "0"}
    with (
        (tmp_path / "said").open("wb") as log,
        _process([sys.executable, "-c", SERVE, str(root), url, "20"], stdout=log, **env),
    ):
        wait_for((root / "dvc.lock").exists)
        _killed(standing)
        wait_for(lambda: b"the schedule waits for it" in (tmp_path / "said").read_bytes())
        back = time.time()
        standing, _ = start_server(tmp_path, port)
        try:
            wait_for(lambda: ScheduleHistory.read(root).begun > back)
        finally:
            _killed(standing)


def test_failed_start_of_a_scheduled_run_is_notified(toy, on_server, hook, monkeypatch):
    from flows.run import flow

    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    root = toy("stages: {s: {cmd: echo x, outs: [o.txt], meta: {gpus: 1}}}\n")
    with pytest.raises(UserError, match="gpus"):
        flow.plm(str(root))
    ((event, text),) = messages(hook)
    assert event == "failure"
    assert text.startswith("The scheduled run could not begin. dvc.yaml: stages.s.meta.gpus: 1; expected one of")
    assert ScheduleHistory.read(root).error.startswith("dvc.yaml: ")


def test_scheduled_run_without_changes_starts_nothing(toy, on_server):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    from flows.run import flow

    root = toy("stages:\n  s: {cmd: echo x > out.txt, outs: [out.txt]}\n")
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)
    state = flow.plm(str(root), return_state=True)
    assert (state.type, state.message) == ("COMPLETED", "nothing has changed, so nothing ran")
    with get_client(sync_client=True) as client:
        where = FlowRunFilter.model_validate({"id": {"any_": [state.state_details.flow_run_id]}})
        assert client.read_task_runs(flow_run_filter=where) == []
    assert ScheduleHistory.read(root).ended


@pytest.fixture
def deployed(on_server):
    """Registers a schedule of a name, for a checkout; returns its id."""
    from flows.run import flow

    return lambda name, root, *tags: flow.plm.to_deployment(
        name=name, parameters={"root": str(root)}, tags=tags or None
    ).apply()


def test_the_schedule_of_another_checkout_is_not_taken_over(tmp_path, on_server, deployed, monkeypatch):
    deployed("theirs", "/elsewhere")
    with pytest.raises(UserError, match="plm/theirs of this Prefect server belongs to another checkout, /elsewhere; "):
        deploy.serve(tmp_path, "0 3 * * *", "theirs")
    name = prefect_server.checkout_name(tmp_path)
    deployed("mine", tmp_path, f"{prefect_server.TAG}{name}")
    deploy._tidy(tmp_path, "mine")
    deployed("another-machine-s", tmp_path, f"{prefect_server.TAG}of another machine")
    with pytest.raises(UserError, match=f"belongs to another checkout, {tmp_path}"):
        deploy._tidy(tmp_path, "another-machine-s")


def test_newest_unserved_run_is_caught_up(tmp_path, on_server, deployed):
    from prefect.client.orchestration import get_client
    from prefect.states import Scheduled

    deployment = deployed("late", tmp_path)
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        made = [
            client.create_flow_run_from_deployment(
                deployment, state=Scheduled(scheduled_time=now + timedelta(days=day))
            )
            for day in (-3, -1, -2, 1)
        ]
        deploy._tidy(tmp_path, "late")
        left = {run.id for run in client.read_flow_runs()}
    assert [run.id in left for run in made] == [False, True, False, True]


def test_killed_last_run_is_caught_up_unless_one_waits(tmp_path, on_server, deployed, capsys):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter

    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    where = DeploymentFilter.model_validate({"id": {"any_": [deployed("killed", tmp_path)]}})
    with get_client(sync_client=True) as client:
        for fields, runs in (
            ({}, 0),
            ({"begun": 1.0, "ended": 2.0}, 0),
            ({"begun": 1.0, "ended": None}, 1),
            ({"begun": 1.0}, 1),
        ):
            update(tmp_path, **fields)
            with checkout.lock_checkout(tmp_path, pipeline=True):  # it is still at work
                deploy._tidy(tmp_path, "killed")
            deploy._tidy(tmp_path, "killed")
            assert len(client.read_flow_runs(deployment_filter=where)) == runs
    assert capsys.readouterr().out == "the run that began at 1970-01-01 00:00 UTC was killed: another starts now\n"


def _cancel(run_id) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, Cancelling())


PREFECT = [sys.executable, "-m", "prefect"]
WORKER = [*PREFECT, "worker", "start", "--pool", "plm"]


def _prefect(*arguments: str, **env: str) -> None:
    subprocess.run([*PREFECT, "--no-prompt", *arguments], cwd=REPOSITORY, env=os.environ | env, check=True)


def _deploy_to_pool(root: Path) -> None:
    _prefect("work-pool", "create", "plm", "--type", "process", "--overwrite")
    env = {"PYTHONPATH": str(REPOSITORY), "PWD": str(root)}
    _prefect("deploy", "--all", "--prefect-file", "infra/work-pools/process.yaml", **env)


def _systemd_stops(worker: "subprocess.Popen[bytes]") -> None:
    unit = (REPOSITORY / "infra/systemd/plm-worker@.service").read_text()
    (stop,) = [line for line in unit.splitlines() if line.startswith("ExecStop=-")]
    subprocess.run(shlex.split(stop.removeprefix("ExecStop=-")), env=os.environ | {"MAINPID": str(worker.pid)})
    worker.terminate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "stop"),
    [
        pytest.param(WORKER, _systemd_stops, id="systemd"),
        # The script alone, as the signal in its header says.
        pytest.param(["bash", "infra/work-pools/slurm.sbatch"], subprocess.Popen.terminate, id="slurm"),
        # A container's only process, or a pod's, with the environment of its pool's deployment.
        pytest.param([*PREFECT, "flow-run", "execute"], subprocess.Popen.terminate, id="container"),
    ],
)
def test_work_pool_run_saves_state_when_its_machine_stops(toy, on_server, command, stop):
    from prefect.client.orchestration import get_client

    root = toy("stages:\n  s: {cmd: python code.py, deps: [code.py], outs: [out.txt]}\n", code_py=SLEEPER)
    _deploy_to_pool(root)
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("plm/nightly").id
        run = client.create_flow_run_from_deployment(deployment).id
    in_container = {"PREFECT__FLOW_RUN_ID": str(run)} | _container_env("docker") if "execute" in command else {}
    with _process(command, PREFECT_WORKER_QUERY_SECONDS="1", **in_container) as process:
        pids(root / "pids", 1)
        stop(process)
        process.wait()
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        client.delete_flow_run(run)  # or the worker of another test would go on with it
    assert (root / "saved").read_text() == "state"
    # Another container goes on with it at once; a worker's next run does so when it is due.
    assert state.name == ("AwaitingRetry" if in_container else "Crashed")


def _container_env(pool: str) -> dict[str, str]:
    """What the deployment of a pool of containers gives them."""
    file = yaml.safe_load((REPOSITORY / f"infra/work-pools/{pool}.yaml").read_text())
    return dict(file["deployments"][0]["work_pool"]["job_variables"]["env"])


@pytest.mark.slow
def test_the_pools_of_containers_take_their_deployments(on_server, monkeypatch):
    from prefect.client.orchestration import get_client

    monkeypatch.setenv("PLM_SETTINGS", "/srv/writer.env")
    template = ["--base-job-template", "infra/work-pools/kubernetes-job.json"]
    for kind, more in (("docker", []), ("kubernetes", template)):
        _prefect("work-pool", "create", f"plm-{kind}", "--type", kind, *more)
        _prefect("deploy", "--all", "--prefect-file", f"infra/work-pools/{kind}.yaml")
    with get_client(sync_client=True) as client:
        in_docker = client.read_deployment_by_name("plm/nightly-docker")
        assert in_docker.job_variables["volumes"] == [
            f"{REPOSITORY}:/plm",
            "/srv/writer.env:/run/person.env:ro",
            "/dev/shm:/dev/shm",
        ]
        for kind in ("docker", "kubernetes"):
            deployed = client.read_deployment_by_name(f"plm/nightly-{kind}")
            variables = client.read_work_pool(f"plm-{kind}").base_job_template["variables"]["properties"]
            assert set(deployed.job_variables) <= set(variables)
    assert _container_env("kubernetes") == _container_env("docker")


@pytest.mark.parametrize("cron", ["", "nightly", "61 3 * * *", "0 3 * *", "0 0 3 * * *", "0 3 31 2 *"])
def test_invalid_cron_line_is_refused_first(tmp_path, prefect_url, monkeypatch, cron):
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    with pytest.raises(UserError, match=r"cron: .*; expected five fields"):
        deploy.serve(tmp_path, cron)


def test_a_schedule_without_a_server_says_what_to_do(tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match=r"PREFECT_API_URL: not set.*plm ui prefect"):
        deploy.serve(tmp_path, "0 3 * * *")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(prefect_server, "START_S", 0.1)
    with pytest.raises(UserError, match="no Prefect server answers"):
        deploy.serve(tmp_path, "0 3 * * *")
    assert capsys.readouterr().out.startswith("waiting up to 0 s for the Prefect server at http://127.0.0.1:9/api")
