"""The whole graph under real Prefect and real DVC: what runs, alongside what, what is retried, how it ends."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ears import messages, webhook
from toys import alive, hear_sigint, pids, wait_for

from flows.processes import resources
from flows.registry import promotion
from flows.run import checkout, pipeline
from flows.run.graph import Graph, Stage
from plm_core.shared import files
from plm_core.shared.errors import INTERRUPTED, UserError

STAMP = """
import json, os, sys, time
name, *inputs = sys.argv[1:]
start = time.time()
time.sleep(1)
open(name + ".begun", "w").close()
# Stages that run side by side meet here, however slow the machine is.
other = {"left": "right", "right": "left"}.get(name, name)
while not os.path.exists(other + ".begun") and time.time() < start + 60:
    time.sleep(0.1)
record = {"start": start, "end": time.time(), "stage": os.environ.get("PLM_STAGE"),
          "parent": os.environ.get("PLM_PARENT_RUN_ID"), "params": open("params.yaml").read()}
open(name + ".log", "a").write(json.dumps(record) + "\\n")
open(name + ".txt", "w").write("".join(open(i + ".txt").read() for i in inputs) + name + record["params"])
"""

DIAMOND = """
stages:
  top:
    cmd: python stamp.py top
    deps: [stamp.py]
    outs: [top.txt]
  left:
    cmd: python stamp.py left top
    deps: [top.txt]
    params: [left]
    outs: [left.txt]
  right:
    cmd: python stamp.py right top
    deps: [top.txt]
    params: [right]
    outs: [right.txt]
    meta: {register: {checkpoint: right.txt, evidence: bottom.txt}}
  bottom:
    cmd: python stamp.py bottom left right
    deps: [left.txt, right.txt]
    outs: [bottom.txt]
"""

DRIVER = """
import sys
from pathlib import Path
from flows.run import pipeline
result = pipeline.run(Path(sys.argv[1]))
print([(stage.name, stage.outcome) for stage in result.stages], "prefect" in sys.modules)
"""


class Tracker:
    """Replaces the tracking run and the registration, and records how they were called."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fail = False
        self.registered: dict[str, str] = {}

    @contextlib.contextmanager
    def track(self, root: Path, reason: str = "") -> Iterator[str | None]:
        self.events.append(f"open for {reason}" if reason else "open")
        try:
            yield "run-1"
        except Exception:
            self.events.append("failed")
            raise
        self.events.append("closed")

    def registration_needed(self, root: Path, stages: list[Stage]) -> bool:
        return self.registered != self._made(root, stages)

    def _made(self, root: Path, stages: list[Stage]) -> dict[str, str]:
        return {stage.name: (root / stage.register["checkpoint"]).read_text() for stage in stages if stage.register}

    def register(self, root: Path, stages: list[Stage], parent: str | None, tell: Callable[[Any], object]) -> None:
        self.events.append(f"register {[stage.name for stage in stages if stage.register]} for {parent}")
        if self.fail:
            raise ConnectionError("the tracking server is down")
        self.registered = self._made(root, stages)


@pytest.fixture
def tracker(monkeypatch) -> Tracker:
    made = Tracker()
    monkeypatch.setattr("flows.run.flow.pipeline_run", made.track)
    for name in ("registration_needed", "register"):
        monkeypatch.setattr(promotion, name, lambda *given, name=name: getattr(made, name)(*given))
    return made


@pytest.fixture
def diamond(toy) -> Path:
    return toy(DIAMOND, stamp_py=STAMP, params_yaml="left: 1\nright: 1\n")


def one_stage(toy, cmd: str, code: str = "1", meta: str = "{}") -> Path:
    """A repository with one stage."""
    text = f"stages:\n  s: {{cmd: '{cmd}', deps: [code.py], outs: [out.txt], meta: {meta}}}\n"
    return toy(text, code_py=code)


def _records(root: Path, name: str) -> list[dict]:
    path = root / f"{name}.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_stale_stages_run_in_parallel(diamond, tracker, on_server):
    result = pipeline.run(diamond)
    assert result.ok
    assert result.ran == ("top", "left", "right", "bottom")
    assert all(stage.spent.seconds >= 1 for stage in result.stages)
    left, right = _records(diamond, "left")[0], _records(diamond, "right")[0]
    assert max(left["start"], right["start"]) < min(left["end"], right["end"])
    assert (left["stage"], left["parent"]) == ("left", "run-1")
    assert tracker.events == ["open", "register ['right'] for run-1", "closed"]
    assert not any(Graph(diamond).status().values())
    files = [path for path in diamond.rglob("*") if not path.is_symlink()]
    assert [path for path in files if path.stat().st_mode & stat.S_IWOTH] == []

    again = pipeline.run(diamond)
    assert again.ok
    assert {stage.outcome for stage in again.stages} == {"up to date"}
    assert len(tracker.events) == 3

    (diamond / "params.yaml").write_text("left: 1\nright: 2\n")
    assert pipeline.run(diamond).ran == ("right", "bottom")
    assert tracker.events[3:] == ["open", "register ['right'] for run-1", "closed"]
    assert [len(_records(diamond, name)) for name in ("top", "left", "right", "bottom")] == [1, 1, 2, 2]


BRANCHES = """
stages:
  bad:
    cmd: echo x >> attempts; echo 'error{colon} params.yaml{colon} bad.x{colon} 1; expected 2'; exit 2
    outs: [bad.txt]
    deps: [empty]
  after-bad:
    cmd: cp bad.txt after-bad.txt
    deps: [bad.txt]
    outs: [after-bad.txt]
  last:
    cmd: cp after-bad.txt last.txt
    deps: [after-bad.txt]
    outs: [last.txt]
  good:
    cmd: echo x > good.txt
    deps: [empty]
    outs: [good.txt]
  after-good:
    cmd: cp good.txt after-good.txt
    deps: [good.txt]
    outs: [after-good.txt]
"""


def test_failed_stage_stops_only_its_dependents(toy, tracker, on_server):
    root = toy(BRANCHES.replace("{colon}", "':'"), empty="")
    result = pipeline.run(root)
    assert {stage.name: stage.outcome for stage in result.stages} == {
        "bad": "failed",
        "after-bad": "not run",
        "last": "not run",
        "good": "ran",
        "after-good": "ran",
    }
    assert result.error == "bad: exit status 2: params.yaml: bad.x: 1; expected 2"
    assert (root / "attempts").read_text() == "x\n"  # bad input is not tried again
    assert result.stages[2].reason == "needs after-bad"
    assert tracker.events == ["open", "failed"]
    last = _flow_runs()[0]
    assert (last.state.type, last.state.message) == ("FAILED", result.error)
    assert ("toy" in last.tags, last.name.endswith("/toy")) == (True, True)


OPTIONAL = """
stages:
  model: {cmd: cp code.py model.txt, deps: [code.py], outs: [model.txt],
    meta: {register: {checkpoint: model.txt, evidence: model.txt}}}
  side: {cmd: "echo 'error: no examples'; exit 2", deps: [code.py], outs: [sides/a.txt], meta: {optional: true}}
  more: {cmd: cp sides/a.txt more.txt, deps: [sides/a.txt], outs: [more.txt], meta: {optional: true}}
  report: {cmd: ls sides > report.txt, deps: [model.txt, sides], outs: [report.txt]}
"""


def test_failed_optional_stage_does_not_block_report_or_registry(toy, tracker, on_server):
    result = pipeline.run(toy(OPTIONAL, code_py="1"))
    outcomes = {stage.name: stage.outcome for stage in result.stages}
    assert outcomes == {"model": "ran", "side": "failed", "more": "not run", "report": "ran"}
    assert result.error == "side: exit status 2: no examples"
    assert tracker.events == ["open", "register ['model'] for run-1", "failed"]


def _flow_runs() -> list:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
    # The schedule of another test makes runs of its own; these have no deployment.
    return [run for run in runs if run.start_time and run.deployment_id is None]


KILLED_ONCE = """
import os, pathlib
tried = pathlib.Path("tried")
if not tried.exists():
    tried.write_text("x")
    os.kill(os.getpid(), 9)
pathlib.Path("out.txt").write_text("x")
"""


def test_a_killed_stage_is_tried_again(toy, tracker, on_server):
    root = one_stage(toy, "python code.py", code=KILLED_ONCE)
    result = pipeline.run(root)
    assert result.ok
    assert result.ran == ("s",)


def test_low_disk_warns_and_full_disk_is_an_error(toy, tracker, on_server, monkeypatch, caplog):
    root = one_stage(toy, "echo x >> attempts; echo x > out.txt")
    monkeypatch.setattr(resources, "LEAST", 1 << 62)
    assert "of disk space is free, too little for any stage" in pipeline.run(root).error
    assert not (root / "attempts").exists()
    monkeypatch.setattr(resources, "LEAST", 0)
    monkeypatch.setattr(resources, "RESERVE", 1 << 62)
    assert pipeline.run(root).ok
    assert "of disk space is free, but the last outputs had" in caplog.text


def test_retries_come_to_an_end(toy, tracker, on_server):
    cmd = "echo x >> attempts; exit 75"
    root = one_stage(toy, cmd, meta="{retries: 1}")
    assert pipeline.run(root).error.startswith("s: exit status 75")
    assert (root / "attempts").read_text() == "x\nx\n"


LATE = """
trap 'echo "{message}"; exit 75' INT
echo x >> tries
tries=$(($(wc -l < tries)))
[ $tries -lt 3 ] || {{ echo done > out.txt; exit 0; }}
sleep 60 &
wait
"""
"""Takes too long twice; what it says when it is ended comes from its maker."""


@pytest.fixture
def late(toy, on_server, monkeypatch):
    """Makes a repository with a stage that takes too long."""
    from flows.run import flow

    monkeypatch.setattr(flow, "RETRY_DELAYS_S", [0.0])
    return lambda message: one_stage(toy, "sh ./code.py", LATE.format(message=message), "{minutes: 0.03, retries: 5}")


def test_timed_out_training_is_retried_while_it_progresses(late, tracker):
    root = late("interrupted: state saved at step $tries of 9")
    assert pipeline.run(root).ran == ("s",)
    assert (root / "tries").read_text() == "x\nx\nx\n"


@pytest.mark.parametrize("message", ["interrupted: ", "interrupted: state saved at step 7 of 9"])
def test_a_stage_that_hung_twice_fails(late, tracker, message):
    root = late(message)
    assert pipeline.run(root).error == f"s: stopped after 0.03 minutes (meta.minutes in dvc.yaml): {message.rstrip()}"
    assert (root / "tries").read_text() == "x\nx\n"


def test_path_locked_by_another_process_is_waited_for(toy, tracker, on_server):
    cmd = "touch started; sleep 2; echo x > out.txt"
    root = one_stage(toy, cmd)
    other = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "-q", "s"], cwd=root)
    wait_for((root / "started").exists)
    # What a run looks at first is the whole graph, of which a busy stage is a part to wait for too.
    result = pipeline.run(root)
    assert other.wait() == 0
    assert result.ok
    assert result.stages[0].outcome == "up to date"


@pytest.mark.parametrize("mended", [True, False])
def test_model_outcome_before_a_failure_is_notified_once(toy, tracker, on_server, hook, monkeypatch, mended):
    from flows.registry.mlflow_client import RegistrationFailed
    from flows.registry.promotion import VersionOutcome
    from flows.run import flow

    tries = []

    def register(root, stages, parent, tell):
        tries.append("")
        tell(VersionOutcome("7", "s", "unchanged" if tries[1:] else "promoted", ["better than 6"]))
        if not mended or not tries[1:]:
            raise RegistrationFailed("MLflow at x: no answer")

    monkeypatch.setenv("PLM_NOTIFY_URLS", webhook(hook, "secret"))
    monkeypatch.setattr(flow, "REGISTRATION_DELAYS_S", [0.0])
    monkeypatch.setattr(tracker, "register", register)
    root = one_stage(toy, "echo x > out.txt", meta="{register: {checkpoint: out.txt, evidence: out.txt}}")
    assert pipeline.run(root).ok == mended
    assert tries == ["", ""]
    heard = messages(hook)
    assert heard.pop() == ("promotion", "Version 7 (s) was promoted: better than 6")
    assert [event for event, _ in heard] == ([] if mended else ["failure"])


@pytest.mark.slow
def test_force_runs_everything(toy, tracker, on_server):
    root = one_stage(toy, "echo x > out.txt; echo x >> runs")
    assert pipeline.run(root).ran == ("s",)
    assert pipeline.run(root, force=True).ran == ("s",)
    assert (root / "runs").read_text() == "x\nx\n"


def test_pipeline_waits_for_the_checkout_lock_and_names_holder(toy, monkeypatch):
    root = one_stage(toy, "echo x > out.txt")
    waited = []
    with contextlib.ExitStack() as other, monkeypatch.context() as patch:
        patch.setattr(files, "PAUSE_S", 0.0)
        other.enter_context(checkout.lock_checkout(root))
        for who in (rf"plm command \(process {os.getpid()}\)", r"pipeline \(process unknown\)"):
            with (
                pytest.raises(checkout.HeldError, match=f"another {who} is running in"),
                checkout.open_checkout(root, False, print),
            ):
                pass
            shutil.rmtree(root / ".dvc/tmp")  # the checkout stays held
        patch.setattr(files.time, "sleep", lambda _: waited.append(1) or (len(waited) == 3 and other.close()))
        with checkout.open_checkout(root, False, print) as held:
            assert len(held.stale) == 1
    assert len(waited) == 3


def test_unreachable_prefect_server_is_named(toy, tracker, monkeypatch):
    root = one_stage(toy, "echo x > out.txt")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(UserError, match="no Prefect server answers at http"):
        pipeline.run(root)


# Both are up before their numbers are told: an interrupt during the start of an interpreter may get lost in it.
SLEEPER = """
import os, subprocess, sys, time
code = "import time; print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
try:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(600)
except KeyboardInterrupt:
    open("saved", "w").write("state")
    sys.exit(75)
"""

TWO_SLEEPERS = """
stages:
  a: {cmd: python code.py, deps: [code.py], outs: [a.txt]}
  b: {cmd: python code.py, deps: [code.py], outs: [b.txt]}
  c: {cmd: cp a.txt c.txt, deps: [a.txt], outs: [c.txt]}
"""


def _start(root: Path, *command: str, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *(command or ("-c", DRIVER, str(root)))],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=hear_sigint,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupting_the_flow_saves_and_ends_every_process(toy, prefect_url, number):
    root = toy(TWO_SLEEPERS, code_py=SLEEPER, params_yaml="{}")
    flow = _start(root, "-m", "flows.cli", "run", PREFECT_API_URL=prefect_url)
    family = pids(root / "pids", 4)
    flow.send_signal(number)
    output, _ = flow.communicate()
    assert flow.returncode == INTERRUPTED, output
    assert output.splitlines()[-1].startswith("interrupted: ")
    assert (root / "saved").exists()
    assert not any(alive(pid) for pid in family)
    assert len((root / "pids").read_text().split()) == 4, "nothing was tried again"


def test_a_killed_flow_leaves_no_orphan_and_its_run_is_closed_by_the_next(toy, tracker, on_server):
    root = toy(TWO_SLEEPERS, code_py=SLEEPER)
    flow = _start(root, PREFECT_API_URL=on_server)
    family = pids(root / "pids", 4)
    flow.kill()
    flow.communicate()
    wait_for(lambda: not any(alive(pid) for pid in family))
    assert (root / "saved").exists()

    (root / "code.py").write_text("import sys; open('a.txt', 'w'); open('b.txt', 'w')")
    wait_for(lambda: not checkout.pipeline_is_running(root))
    assert pipeline.run(root).ok
    dead = [run for run in _flow_runs() if run.state.type == "CRASHED" and str(flow.pid) in run.state.message]
    assert len(dead) == 1


@pytest.mark.slow
def test_run_without_prefect_server_starts_its_own(toy):
    root = one_stage(toy, "sleep 1; echo x > out.txt")
    flow = _start(root)
    wait_for(lambda: len(psutil.Process(flow.pid).children(recursive=True)) >= 2)
    children = [child.pid for child in psutil.Process(flow.pid).children(recursive=True)]
    output, _ = flow.communicate()
    assert "[('s', 'ran')] True" in output
    assert not any(alive(pid) for pid in children)

    output, _ = _start(root).communicate()
    assert "[('s', 'up to date')] False" in output


def test_all_problems_of_the_parameters_are_told_before_any_stage_runs(toy, tracker):
    check = "import sys\nprint('error: a.b: 1\\nerror: c: 2', file=sys.stderr)\nsys.exit(2)\n"
    root = one_stage(toy, "touch out.txt")
    (root / "tasks/commands").mkdir(parents=True)
    (root / "tasks/commands/check.py").write_text(check)
    with pytest.raises(UserError, match=r"^a\.b: 1\nerror: c: 2$"):
        pipeline.run(root)
    assert not (root / "out.txt").exists()
