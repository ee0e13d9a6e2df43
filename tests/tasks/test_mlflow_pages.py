"""MLflow's pages as a person sees them: real stages and versions, a real server, a real browser."""

import json
import sys
from pathlib import Path

import mlflow
import pytest
import yaml
from mlflows import wait_until

from flows.registry import promotion
from flows.run.graph import Graph

sys.path.append(str(Path(__file__).parents[2] / "infra/screenshots"))
import browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.BINARY is None, reason="no Chromium on this machine: the pages are not looked at"),
]
PROMPT = "Ba <img src=x onerror=alert(1)> [so](http://e.io)"


@pytest.fixture
def pages(small, server, monkeypatch):
    """A server that has the runs of two models, and both as versions; opens its pages by what follows the #."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.delenv("PLM_TRACKING", raising=False)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(small.root / ".dvc-site"))
    section = yaml.safe_load((small.root / "params.yaml").read_text())["pretrain"]["gpt"]
    other = section | {"model": section["model"] | {"layers": 1}}
    small.change(models={"gpt": "own", "shallow": "own"}, pretrain__shallow=other, evaluate__prompts=[PROMPT])
    small.reproduce()
    for name in ("gpt", "shallow"):
        small.run("tasks.stages.pretrain", name, PLM_TRACKING="on")
    small.run("tasks.stages.finetune", "gpt", "next", "1", PLM_TRACKING="on")
    monkeypatch.chdir(small.root)
    assert [outcome.version for outcome in promotion.register(small.root, Graph(small.root).stages, None)] == ["1", "2"]
    wait_until(lambda: not any((small.root / "artifacts/journals").glob("*.jsonl")))
    with browser.Browser(4000, 2500) as page:  # the table draws the columns that have room
        yield lambda place, *shown: page.open(f"{server.address}/#{place}", *shown) or page


def ids(runs):
    return json.dumps([run.info.run_id for run in runs])


def test_mlflow_pages_show_key_figures(pages):
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("plm").experiment_id
    page = pages(f"/experiments/{experiment}/runs", "Open a view:", "Models, as the gate saw them")
    links = page.run("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert f"#/experiments/{experiment}/runs?viewStateShareKey=models" in links

    view = f"/experiments/{experiment}/runs?viewStateShareKey="
    text = pages(f"{view}models", "register-gpt", "register-shallow", "2 matching runs").text()
    for column in ("Models", "plm.model", "plm.objective", "gate", "score", "next/score"):
        assert column in text.splitlines()
    assert {"gpt", "shallow", "causal", "passed", "v1", "v2"} <= set(text.splitlines())
    text = pages(f"{view}pretrainings", "pretrain-gpt", "pretrain-shallow", "2 matching runs").text()
    assert {"valid_loss", "parameters", "positions"} <= set(text.splitlines())
    pages(f"{view}fine-tunings", "plm.model: gpt, plm.task: next")

    registered = client.search_runs([experiment], "tags.`plm.stage` = 'register'")
    compared = f"/compare-runs?runs={ids(registered)}&experiments={json.dumps([experiment])}"
    text = pages(compared, "Comparing 2 Runs", "pretrain.model.layers", "next/score").text()
    assert "bits_per_byte" in text.splitlines()
    metrics = [set(run.data.metrics) for run in registered]  # the page draws those that have room
    assert metrics[0] == metrics[1] > {"score", "parameters", "positions", "seconds", "bits_per_byte"}
    trained = client.search_runs([experiment], "tags.`plm.stage` = 'pretrain'")
    compared = f"/compare-runs?runs={ids(trained)}&experiments={json.dumps([experiment])}"
    assert "pretrain.gpt." not in pages(compared, "pretrain.training.steps").text()

    page = pages("/models/plm/versions/2", "compared on the same examples with version 1", "Scores by slice")
    text = page.text()
    assert f"champion: {PROMPT}" in " ".join(text.split())
    paper = "document.querySelector('[data-testid=note-editor-preview-content]')"
    cells = page.run(f"[...{paper}.querySelectorAll('td')].map(cell => cell.innerText.split('\\u2003')[0])")
    assert {"model", "gpt", "shallow", "parameters", "next/score"} <= set(cells)
    run = client.get_run(client.get_model_version("plm", "2").run_id)
    picture = f"get-artifact?path=report/verdict-1.svg&run_uuid={run.info.run_id}"
    assert page.run(f"[...{paper}.querySelectorAll('img')].map(i => i.getAttribute('src'))") == [picture]
    wait_until(lambda: page.run(f"{paper}.querySelector('img').naturalWidth"))
    links = page.run(f"[...{paper}.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert links
    assert all(link.startswith(f"#/experiments/{experiment}/runs/") for link in links)
    report = next(link for link in links if link.endswith("report/report.html"))
    pages(report.removeprefix("#"), "report.html", "decision.html", "samples", "evidence")
    pages("/models/plm", "Each new checkpoint of the pipeline is a version here")
    contexts = {tag.value for dataset in run.inputs.dataset_inputs for tag in dataset.tags if "context" in tag.key}
    (of_gpt,) = client.search_logged_models([experiment], "name = 'gpt'")
    by_data = {metric.key: metric.dataset_name for metric in of_gpt.metrics}
    test_split, task = "artifacts/corpus/splits/test.parquet", "artifacts/examples/next"
    assert (by_data["bits_per_byte"], by_data["next/score"], by_data["score"]) == (test_split, task, None)
    pages(f"/experiments/{experiment}/models", "Dataset:", f"{test_split} (#")  # and others further right
    assert contexts == {"train", "valid", "test", "examples", "pairs"}
