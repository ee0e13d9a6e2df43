"""Words to tag, questions and choices from a team's own files to evidence, metrics and the page, as real stages."""

import csv
import json
import random
import tempfile
from pathlib import Path

import pytest
import torch

from plm_core import checkpoint
from plm_core.benchmarks.task import verified_task
from plm_core.evaluation.evidence import read_task
from plm_core.finetuning.finetune_config import FinetuneConfig
from plm_core.finetuning.task_heads import SPANS
from plm_core.training.device import Device
from plm_core.training.snapshot import Snapshots
from tasks.parameters import stage_parameters
from tasks.stages import finetune

WORDS = ["bafo", "limu", "pesa", "toku"]
TASKS = {
    "ner": {"kind": "token_classification", "labels": ["PER"], "score": "entity_f1"},
    "qa": {"kind": "question_answering", "score": "exact_match+answer_f1", "unanswerable": True},
    "ends": {"kind": "multiple_choice", "a": "a", "choices": ["x", "y"], "label": "gold", "score": "accuracy"},
}


def write(folder, split, count):
    """One file of each kind; some sentences and texts are longer than the context of the model."""
    draw = random.Random(split)
    for name in TASKS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines, paragraphs, rows = [], [], []
    for i in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.choice([3, 5, 37]))]
        lines += [f"{word} {'B-PER' if word == 'pesa' else 'O'}" for word in words] + [""]
        answer = {"text": words[2], "answer_start": len(" ".join([*words[:2], ""]))}
        question = {"id": f"{split}{i}", "question": "Ba?", "answers": [answer] * (i % 3 > 0)}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
        rows.append([" ".join(words), "ba", words[0], 1])
    (folder / f"ner/{split}.conll").write_text("\n".join(lines))
    (folder / f"qa/{split}.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
    with (folder / f"ends/{split}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "x", "y", "gold"], *rows])


@pytest.fixture
def project(small):
    """A project with a task of each kind."""
    for split, count in (("train", 60), ("test", 19)):
        write(small.root / "data/tasks", split, count)
    sections = {name: {"input": f"data/tasks/{name}"} | described for name, described in TASKS.items()}
    small.change(examples=sections, finetune__tasks=list(TASKS), finetune__seeds=[5])
    return small


@pytest.mark.slow
def test_every_task_kind_runs_from_files_to_report(project):
    evidence = {}
    for name, described in TASKS.items():
        project.run("tasks.stages.examples", name)
        project.run("tasks.stages.slices", name)
        project.run("tasks.stages.baseline", name)
        project.run("tasks.stages.finetune", "gpt", name, "5")
        metrics, path = project.metrics(f"finetune-gpt-{name}-5"), project.root / f"artifacts/evidence/gpt/{name}.5.csv"
        table = read_task([path])
        assert table.value == pytest.approx(metrics["score"], abs=1e-12)
        assert metrics["examples"] == 19
        with path.open(newline="") as file:
            evidence[name] = list(csv.DictReader(file))
        assert {row["score"] for row in evidence[name]} == {described["score"]}
        assert all(0 <= float(row["confidence"]) <= 1 for row in evidence[name])
        loaded = checkpoint.load(project.root / f"artifacts/finetuned/gpt-{name}-5")
        assert loaded.config.head["task"]["name"] == name
        outputs = {"ner": 3, "qa": 2, "ends": 1}[name]
        assert [len(tensor) for key, tensor in loaded.extra.items() if key.endswith("bias")] == [outputs]
    assert all(len(row["label"].split()) == len(row["prediction"].split()) for row in evidence["ner"])
    assert max(len(row["label"].split()) for row in evidence["ner"]) == 37
    assert sum(row["label"] == "[]" for row in evidence["qa"]) == 7
    assert {row["label"] for row in evidence["ends"]} == {"1"}
    assert project.metrics("finetune-gpt-qa-5")["baseline"] == pytest.approx(7 / 19)
    assert project.metrics("finetune-gpt-ner-5")["baseline"] == 0.0
    project.run("tasks.stages.report")
    page = (project.root / "artifacts/report/results.md").read_text()
    for name, described in TASKS.items():
        assert f"{name}: {described['score']}" in page


def test_finetune_of_every_kind_is_reproducible(project):
    project.run("tasks.stages.examples", "qa")
    project.run("tasks.stages.finetune", "gpt", "qa", "5")
    files = project.files("artifacts/evidence") | project.files("artifacts/finetuned")
    again = ("--checkpoint", "artifacts/models/gpt", "--evidence", "elsewhere")
    project.run("tasks.stages.finetune", "gpt", "qa", *again)
    assert (project.root / "elsewhere/qa.5.csv").read_bytes() == files["artifacts/evidence/gpt/qa.5.csv"]
    project.run("tasks.stages.finetune", "gpt", "qa", "5")
    assert project.files("artifacts/evidence") | project.files("artifacts/finetuned") == files


def test_finetune_best_score_uses_the_reported_threshold(project, monkeypatch):
    project.run("tasks.stages.examples", "qa")
    project.change(finetune__training__best_by="score")
    monkeypatch.chdir(project.root)
    thresholds = []
    answered = finetune.example_answers
    monkeypatch.setattr(SPANS, "threshold", lambda *_: 0.25)
    recorded = lambda *given: thresholds.append(given[4:]) or answered(*given)  # noqa: E731
    for module in (finetune, finetune.finetune_results):
        monkeypatch.setattr(module, "example_answers", recorded)
    with tempfile.TemporaryDirectory() as folder:
        given = checkpoint.load(Path("artifacts/models/gpt")), verified_task(Path("artifacts/examples/qa"))
        config = stage_parameters.section("finetune", FinetuneConfig)
        device, snapshots = Device(torch.device("cpu"), 1, False), Snapshots(Path(folder))
        finetune.fit("gpt", *given, config, 5, device, snapshots, None)
    assert len(thresholds) > 1
    assert set(thresholds) == {(0.25,)}
