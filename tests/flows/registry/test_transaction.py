"""The registry under faults: a death or a dead server at every call, decisions that cross, aliases moved by hand.

MLflow's store is real. The gate and the trial of a model, which take seconds and have tests of their own, are given.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
from types import SimpleNamespace

import mlflow
import pytest
from registries import project
from rounds import few, many

from flows.registry import model_registry, promotion, registry_status
from flows.registry.gate_runner import registered_facts
from flows.registry.ledger import Decision
from flows.registry.mlflow_client import RegistrationFailed, RegistryError
from flows.run.graph import Stage
from plm_core.shared.files import locked

STAGES = [
    Stage(
        f"pretrain@{name}",
        register={"checkpoint": name, "evidence": f"evidence/{name}"},
        outs=(f"evidence/{name}/likelihood.csv",),
    )
    for name in ("a", "b")
]
ACTS = {
    "register": lambda root: promotion.register(root, STAGES, None),
    "promote": lambda root: promotion.promote(root, "1", "I know better", force=True),
    "roll back": lambda root: promotion.rollback(root, "bad answers"),
}


class Faulty:
    """An MLflow client that fails at its n-th call, before or after it is done, and at every call from then on."""

    calls = 0

    def __init__(self, client, at, end, after):
        self._client, self._at, self._end, self._after = client, at, end, after

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*arguments, **options):
            Faulty.calls += 1
            if self._at is not None and Faulty.calls > self._at:
                self._end()
            answer = method(*arguments, **options)
            if self._after and Faulty.calls == self._at:
                self._end()
            return answer

        return call


@contextlib.contextmanager
def faults(at=None, end=None, after=False):
    """Every client of the block is one that fails."""
    with pytest.MonkeyPatch.context() as patch:
        init = model_registry.Registry.__init__
        patch.setattr(Faulty, "calls", 0)
        patch.setattr(
            model_registry.Registry,
            "__init__",
            lambda self, uri, name, client: init(self, uri, name, Faulty(client, at, end, after)),
        )
        yield


def trial(root, opened, new, untried):
    """Stands for the process that logs and tries models: here each is a version without files."""
    numbers = [*untried]
    client = mlflow.MlflowClient()
    for item in new:
        digest = {"checkpoint.sha256": item["tags"]["checkpoint.sha256"]}
        run = client.create_run(client.get_experiment_by_name("plm").experiment_id, tags=digest).info.run_id
        made = client.create_model_version("plm", f"runs:/{run}/m", run, tags=item["tags"])
        numbers.append(str(made.version))
    return dict.fromkeys(numbers)


def stand_ins(patch):
    """A trial that takes no time, and a gate that passes whatever is newer."""
    patch.setattr(promotion, "package", trial)
    patch.setattr(promotion, "judge", newer_is_better)


@pytest.fixture
def root(tmp_path, monkeypatch, empty_store):
    """A repository's folder with two checkpoints and an empty registry."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    project(tmp_path, empty_store)
    for stage in STAGES:
        (tmp_path / stage.outs[0]).parent.mkdir(parents=True)
        (tmp_path / stage.outs[0]).touch()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SHA256SUMS").write_text(name)
    stand_ins(monkeypatch)
    return tmp_path


def newer_is_better(root, opened, challenger, champion):
    passed = champion is None or int(challenger.number) > int(champion.number)
    number = champion.number if champion else None
    reason = f"{challenger.number} against {number}"
    description = f"{'Passed' if passed else 'Refused'} by the gate"
    return {"passed": passed, "reasons": [reason], "table": [], "champion": number, "description": description}


def state(root):
    """What a person can see: aliases, verdicts, and the finished decisions."""
    with model_registry.open_registry(root) as opened:
        versions = {v.number: (v.aliases, v.tags.get("gate"), v.tags.get("gate.reasons")) for v in opened.versions()}
        runs = opened.ledger.runs()
        decisions = [
            (run.data.params["action"], run.data.params["version"], run.data.params["previous"])
            for run in runs
            if run.info.status == "FINISHED"
        ]
        assert {run.info.status for run in runs} <= {"FINISHED", "KILLED"}
        champion = opened.champion()
        assert opened.ledger.champions()[-1:] == ([champion.number] if champion else [])
        return versions, decisions


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def vanish():
    raise mlflow.MlflowException("the server has gone")


def killed(root, act, at, after):
    """What a process of its own does until it is killed at its n-th call to MLflow."""
    os.chdir(root)
    with pytest.MonkeyPatch.context() as patch, faults(at, die, after):
        stand_ins(patch)
        ACTS[act](root)


@pytest.mark.parametrize("every", [few(9), many(1)])
@pytest.mark.parametrize(
    ("act", "decisions"),
    [
        ("register", []),
        ("promote", [("promoted by hand", "1", "2")]),
        ("roll back", [("rolled back to", "1", "2")]),
    ],
)
def test_registry_transaction_recovers_from_a_kill_at_any_call(root, empty_store, act, decisions, every):
    """Killed by SIGKILL or left by the server, before or after each of its calls to MLflow, or at some."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "flows.registry.promotion"])
    if act != "register":
        ACTS["register"](root)
    prepared = shutil.copy(root / "artifacts/mlflow/mlflow.db", root / "prepared.db")
    with faults():
        ACTS[act](root)
        calls = Faulty.calls
    expected = state(root)
    assert expected[1] == [("promoted", "1", ""), ("promoted", "2", "1"), *decisions]
    ends = [(kill, after) for kill in (True, False) for after in (False, True)]
    for number, at in enumerate(range(0, calls, every)):
        for kill, after in ends if every == 1 else [ends[number % 4]]:
            shutil.copy(prepared, root / "artifacts/mlflow/mlflow.db")  # SQLAlchemy holds the file open
            if kill:
                process = processes.Process(target=killed, args=(root, act, at + after, after))
                process.start()
                process.join()
                assert process.exitcode in (0, -signal.SIGKILL)
            else:
                with faults(at + after, vanish, after), contextlib.suppress(RegistrationFailed):
                    ACTS[act](root)
            with contextlib.suppress(RegistryError):  # it is done already
                ACTS[act](root)
            assert state(root) == expected, f"call {at}"


def test_interrupted_decision_is_completed_if_possible(root, capsys):
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:
        for decision in (
            Decision("refused", "1", "2", ["it was worse than 2"]),
            Decision("promoted", "1", "7", ["it was better than 7"]),
            Decision("refused", "9", "2", ["of a version that was deleted"]),
        ):
            opened.ledger.begin(decision)
        opened.client.create_run(opened.experiment("-decisions"), tags={"plm.registered_model": "plm"})
    assert registry_status.registry_status(root)["unsettled"]
    promotion.register(root, STAGES, None)
    assert not registry_status.registry_status(root)["unsettled"]
    assert state(root)[0]["2"][0] == ["champion"]
    assert state(root)[1][2:] == [("refused", "1", "2")]
    stderr = capsys.readouterr().err
    assert "a decision that was interrupted has been completed: version 1 refused" in stderr
    assert "a decision that was interrupted has been discarded: version 1 promoted" in stderr
    assert stderr.count("has been discarded") == 3


@pytest.mark.parametrize("act", ["register", "promote", "roll back"])
def test_decision_against_a_changed_champion_is_dropped(root, monkeypatch, act):
    """It was changed by a process that died before it had carried that out: this is completed first."""
    promotion.register(root, STAGES, None)

    def meanwhile(work):
        def slow(root, opened, *given):
            if not any(run.data.params["reasons"] == "meanwhile" for run in opened.ledger.runs()):
                made = opened.client.create_model_version("plm", "elsewhere").version
                opened.ledger.begin(Decision("promoted by hand", str(made), "2", ["meanwhile"]))
            return work(root, opened, *given)

        return slow

    if act == "register":
        (root / "b/SHA256SUMS").write_text("c")
        monkeypatch.setattr(promotion, "judge", meanwhile(newer_is_better))
    else:
        monkeypatch.setattr(promotion, "package", meanwhile(trial))
    with pytest.raises(RegistrationFailed, match=r"version . became the champion in the meantime; check `plm status`"):
        ACTS[act](root)
    (*_, last) = decisions = state(root)[1]
    assert last[0] == "promoted by hand"
    ACTS[act](root)  # against the new one
    assert [decision[2] for decision in state(root)[1][len(decisions) :]] == [last[1]]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("1", "the gate would have refused"), ("3", "the gate agrees"), ("1", "the gate could not judge: no evidence")],
)
def test_alias_moved_in_the_ui_is_judged_and_can_be_rolled_back(root, monkeypatch, capsys, version, verdict):
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:
        opened.client.create_model_version("plm", "elsewhere", tags={"checkpoint.sha256": "hand made"})
        opened.client.set_registered_model_alias("plm", "champion", version)
        made = registered_facts(opened, opened.get("3"))  # without a run
        assert (made["run"], made["tags"]) == ("", {"checkpoint.sha256": "hand made"})
    status = registry_status.registry_status(root)
    assert status["unsettled"]
    assert f"somebody has made version {version} the champion" in status["notice"]
    if "could not" in verdict:
        monkeypatch.setattr(promotion, "judge", _cannot)
    promotion.register(root, STAGES, None)
    assert f"warning: plm: somebody made version {version} the champion" in (stderr := capsys.readouterr().err)
    assert verdict in stderr
    _, decisions = state(root)
    assert decisions[2:] == [("moved in the UI", version, "2")]
    if version == "3":
        assert promotion.rollback(root, "no").version == "2"
    else:  # it was champion before, and none was before it
        with pytest.raises(RegistryError, match="there was none before it"):
            promotion.rollback(root, "no")
    assert not registry_status.registry_status(root)["unsettled"]


def _cannot(*_):
    raise RegistryError("no evidence")


def test_dangling_alias_falls_back_to_the_champion_before(root, capsys):
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:
        opened.client.delete_model_version("plm", "2")
    status = registry_status.registry_status(root)
    sets = "`plm promote VERSION --reason ...` or `plm rollback --reason ...` sets it"
    assert status["notice"] == f"no version is the champion, although version 2 was; {sets}"
    assert not status["unsettled"]
    (root / "b/SHA256SUMS").write_text("c")
    *_, outcome = promotion.register(root, STAGES, None)
    assert (outcome.version, outcome.reasons) == ("3", ["3 against 1"])
    assert f"{sets}; until then others are compared with version 1" in capsys.readouterr().err
    assert promotion.rollback(root, "").version == "1"


def test_a_rollback_loads_its_target_first(root, monkeypatch):
    promotion.register(root, STAGES, None)
    monkeypatch.setattr(promotion, "package", lambda *given: dict.fromkeys(given[-1], "weights are missing"))
    message = (
        r"version 1 cannot be used: weights are missing; `plm status` .*`plm promote VERSION --reason \.\.\.` makes"
    )
    with pytest.raises(RegistryError, match=message):
        promotion.rollback(root, "")
    assert state(root)[0]["2"][0] == ["champion"]


def test_unjudgeable_model_is_judged_the_next_time(root, monkeypatch, capsys):
    def gate(root, opened, challenger, champion):
        if challenger.tags["dvc.stage"] == "pretrain@a":
            raise RegistryError("the gate cannot judge: no room")
        return newer_is_better(root, opened, challenger, champion)

    heard = []
    monkeypatch.setattr(promotion, "judge", gate)
    with pytest.raises(RegistryError, match="pretrain@a: the gate cannot judge: no room"):
        promotion.register(root, STAGES, None, heard.append)
    assert [(outcome.version, outcome.action) for outcome in heard] == [("1", "not judged"), ("2", "promoted")]
    assert state(root)[1] == [("promoted", "2", "")]
    assert "plm version 1 not judged: the gate cannot judge" in capsys.readouterr().out
    monkeypatch.setattr(promotion, "judge", newer_is_better)
    assert [outcome.action for outcome in promotion.register(root, STAGES, None)] == ["refused", "unchanged"]


def test_outcomes_are_notified_once_decisions_are_complete(root, monkeypatch):
    calls, heard = [], []

    def describe(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            vanish()
        return real(*given, **options)

    real = mlflow.MlflowClient.update_model_version
    monkeypatch.setattr(mlflow.MlflowClient, "update_model_version", describe)
    with pytest.raises(RegistrationFailed):
        promotion.register(root, STAGES, None, heard.append)
    assert [(outcome.version, outcome.action) for outcome in heard] == [("1", "promoted")]
    promotion.register(root, STAGES[1:], None, heard.append)
    assert [(outcome.version, outcome.stage, outcome.action) for outcome in heard[1:]] == [
        ("2", "pretrain@b", "promoted"),
        ("2", "pretrain@b", "unchanged"),
    ]


def test_description_names_the_person_who_overruled_the_gate(root):
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:

        def described(number):
            return opened.client.get_model_version("plm", number).description

        assert (described("1"), described("2")) == ("Passed by the gate",) * 2
        for number in ("1", "2", "1"):
            promotion.promote(root, number, f"{number} is\nbetter", force=True)
        for number in ("1", "2"):
            description = f"Overruled, promoted by hand: {number} is better\n\nPassed by the gate"
            assert described(number) == description
        promotion.promote(root, "2", "it is newer")
        assert described("2") == "Passed by the gate"
        opened.set_alias("champion", "1")
        promotion.register(root, STAGES, None)
        assert described("1").startswith("Overruled, moved in the UI: moved by a person in MLflow's UI or by its API;")
        assert described("1").endswith("\n\nRefused by the gate")


def test_description_leaves_out_damaged_samples_with_a_warning(root, capsys):
    promotion.register(root, STAGES[:1], None)
    with model_registry.open_registry(root) as opened:
        version = opened.get("1")
        opened.client.log_text(version.run_id, '[{"prompt": "The st', "samples/1.json")
        assert registered_facts(opened, version)["samples"] == []
    assert "warning: plm version 1: its samples are left out: " in capsys.readouterr().err


def test_run_of_a_killed_registration_is_ended(root):
    with model_registry.open_registry(root) as opened:
        tags = {"checkpoint.sha256": "x"}
        old, new = (opened.client.create_run(opened.experiment(), start, tags).info.run_id for start in (1000, None))
        others = opened.client.create_run(opened.experiment(), 1000).info.run_id
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:
        states = [opened.client.get_run(run).info.status for run in (old, new, others)]
        assert states == ["KILLED", "RUNNING", "RUNNING"]


@pytest.mark.parametrize("server", [False, True])
def test_registry_lock_lets_one_process_decide_at_a_time(tmp_path, server, capsys):
    uri = "http://mlflow" if server else f"sqlite:///{tmp_path}/mlflow.db"
    place = model_registry.SERVERS if server else tmp_path / "mlflow.db.decisions.lock"
    model = SimpleNamespace(name="plm", tracking=SimpleNamespace(uri=uri))
    with model_registry.Registry.alone(model), pytest.raises(BlockingIOError), locked(place, wait=False):
        pass
    assert capsys.readouterr().err == ""
    with contextlib.ExitStack() as other:
        other.enter_context(locked(place))
        release = threading.Timer(0.2, other.close)
        release.start()
        with model_registry.Registry.alone(model):
            release.join()
    assert "warning: plm: another process on this machine is deciding; waiting for it" in capsys.readouterr().err


def test_ledger_order_does_not_depend_on_the_clock(root):
    promotion.register(root, STAGES, None)
    with sqlite3.connect(root / "artifacts/mlflow/mlflow.db") as store:
        store.execute("update runs set start_time = 5 where name = '2 promoted'")
    with model_registry.open_registry(root) as opened:
        assert opened.ledger.champions() == ["1", "2"]


def test_earlier_challengers_are_counted_once_for_each_champion(root):
    promotion.register(root, STAGES, None)
    with model_registry.open_registry(root) as opened:
        for action, version, champion in (
            ("refused", "5", "2"),
            ("refused", "5", "2"),
            ("refused", "6", "2"),
            ("refused", "7", "1"),
            ("promoted by hand", "8", "2"),
            ("rolled back to", "2", "8"),
        ):
            opened.ledger.end(opened.ledger.begin(Decision(action, version, champion, [])), carried_out=True)
        opened.ledger.begin(Decision("refused", "9", "2", ["not carried through"]))
        assert [opened.ledger.earlier_challengers("2", version) for version in ("5", "6", "9")] == [4, 4, 5]
        assert opened.ledger.earlier_challengers("8", "5") == 5
