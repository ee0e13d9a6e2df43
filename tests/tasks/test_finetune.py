"""Stage finetune on tasks of one's own: numbers, pairs in both orders, adapters, an additional language model loss."""

import csv
import json
import math
import random
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from scipy import stats

from plm_core import checkpoint
from plm_core.benchmarks.task import verified_task
from plm_core.finetuning.finetune_config import FinetuneConfig
from plm_core.finetuning.task_heads import Predicted
from plm_core.text.tokenizers import BOS, CLS, SEP
from plm_core.training.callbacks.anomaly_monitor import Diverged
from plm_core.training.callbacks.loss_metrics import best_report
from plm_core.training.device import Device
from plm_core.training.snapshot import Snapshots
from tasks.parameters import stage_parameters
from tasks.stages import finetune


@pytest.fixture
def tickets(small):
    """A project with a task of pairs, whose label is the number of words that they share."""
    draw, folder = random.Random(3), small.root / "data/tickets"
    folder.mkdir(parents=True)
    for split, count in (("train", 99), ("test", 37)):
        lines = ["first\tsecond\talike"]
        for _ in range(count):
            words = [draw.choice(["bafo", "limu", "pesa", "toku"]) for _ in range(4)]
            other = [word if draw.random() < 0.5 else draw.choice(["bafo", "limu"]) for word in words]
            alike = sum(a == b for a, b in zip(words, other, strict=True))
            lines.append(f"{' '.join(words)}\t{' '.join(other)}\t{alike}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    checks = [{"check": "once more", "a": "bafo limu", "b": "bafo limu", "expect": {"label": 2}}]
    (folder / "checks.jsonl").write_text("".join(json.dumps(check) + "\n" for check in checks))
    columns = {"a": "first", "b": "second", "label": "alike"}
    task = {"input": "data/tickets", "kind": "regression", "score": "pearson+spearman", "symmetric": True}
    small.change(examples={"tickets": task | columns}, finetune__tasks=["tickets"], finetune__seeds=[5])
    small.run("tasks.stages.examples", "tickets")
    return small


def learned(project):
    """The evidence, the metrics and the fine-tuned weights."""
    project.run("tasks.stages.finetune", "gpt", "tickets", "5")
    with (project.root / "artifacts/evidence/gpt/tickets.5.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    weights = checkpoint.load(project.root / "artifacts/finetuned/gpt-tickets-5").model.state_dict()
    return rows, project.metrics("finetune-gpt-tickets-5"), weights


def reported(project, *tasks):
    """The report, with what it contains besides fine-tuning."""
    for task in tasks:
        project.run("tasks.stages.slices", task)
        project.run("tasks.stages.baseline", task)
    project.run("tasks.stages.report")
    return (project.root / "artifacts/report/results.md").read_text()


def fitted(project, monkeypatch, task_name="tickets"):
    """The outcome of a fine-tuning in this process, and its task."""
    monkeypatch.chdir(project.root)
    config = stage_parameters.section("finetune", FinetuneConfig)
    loaded = checkpoint.load(Path("artifacts/models/gpt"))
    task = verified_task(Path("artifacts/examples") / task_name)
    with tempfile.TemporaryDirectory() as folder:
        device, snapshots = Device(torch.device("cpu"), 1, False), Snapshots(Path(folder))
        return finetune.fit("gpt", loaded, task, config, 5, device, snapshots, None), task


def test_the_best_weights_may_be_those_of_the_best_score(tickets, monkeypatch):
    recipe = {"epochs": 2, "validations": 3, "batch": 8, "report_every": 1, "best_by": "score"}
    tickets.change(finetune__training=recipe | {"optimizer": {"learning_rate": 0.005}})
    scores = iter([0.1, 0.3, 0.2, 0.3, 0.0, 0.1, 0.2])
    monkeypatch.setattr(finetune.finetune_results, "score", lambda *_: next(scores))
    result, _ = fitted(tickets, monkeypatch)
    steps = [(report.step, report.valid_score) for report in result.reports if report.valid_score is not None]
    assert [score for _, score in steps[:5]] == [0.1, 0.3, 0.2, 0.3, 0.0]
    assert best_report(result.reports).step == steps[1][0]


def test_finetune_nan_validation_is_an_anomaly(tickets, monkeypatch):
    tickets.change(finetune__training__best_by="score")

    def broken(model, rows, *_, **__):
        return Predicted([math.nan] * len(rows), [math.nan] * len(rows), math.nan)

    monkeypatch.setattr(finetune, "predict", broken)
    with pytest.raises(Diverged, match="the validation loss is nan"):
        fitted(tickets, monkeypatch)


def test_regression_does_not_depend_on_the_unit_of_labels(tickets, monkeypatch):
    first, _ = fitted(tickets, monkeypatch)
    for path in (tickets.root / "data/tickets").glob("*.tsv"):
        head, *lines = path.read_text().splitlines()
        cells = (line.rpartition("\t") for line in lines)
        path.write_text("\n".join([head, *(f"{texts}\t{1990 + 25 * int(label)}" for texts, _, label in cells)]) + "\n")
    tickets.run("tasks.stages.examples", "tickets")
    second, _ = fitted(tickets, monkeypatch)
    assert second.predicted.answers == pytest.approx(
        [1990 + 25 * answer for answer in first.predicted.answers], abs=0.01
    )
    assert [report.loss for report in second.reports] == pytest.approx([r.loss for r in first.reports], rel=1e-3)


def test_numbers_are_predicted_and_correlations_measured(tickets):
    rows, metrics, _ = learned(tickets)
    labels, answers = ([float(row[name]) for row in rows] for name in ("label", "prediction"))
    assert len(set(answers)) > 9
    assert metrics["pearson"] == pytest.approx(stats.pearsonr(labels, answers).statistic, abs=1e-9)
    assert metrics["spearman"] == pytest.approx(stats.spearmanr(labels, answers).statistic, abs=1e-9)
    assert metrics["score"] == pytest.approx((metrics["pearson"] + metrics["spearman"]) / 2)
    assert metrics["baseline"] == 0.0
    assert metrics["cut"] == 37  # of a context this small every pair has more tokens
    assert {(row["confidence"], row["score"]) for row in rows} == {("", "pearson+spearman")}
    page = reported(tickets, "tickets")
    assert "tickets: pearson+spearman" in page
    assert f"{metrics['score']:.3f} [" in page
    furthest = max(abs(answer - label) for label, answer in zip(labels, answers, strict=True))
    assert "| off by | text | example |\n" in page
    assert f"| {furthest:.3f} | **A** " in page
    assert "<summary>Calibration" not in page


def test_finetune_checks_are_counted_and_reported(tickets):
    _, metrics, _ = learned(tickets)
    with (tickets.root / "artifacts/checks/gpt/tickets.5.csv").open(newline="") as file:
        judged = list(csv.DictReader(file))
    assert [(row["id"], row["expected"]) for row in judged[:1]] == [("own-1", "2")]
    failed = {}
    for row in judged:
        assert (abs(float(row["answered"]) - float(row["expected"])) <= 0.2) == (row["passed"] == "1")  # 4 words
        failed.setdefault(row["check"], []).append(row["passed"] == "0")
    assert {check: len(failures) for check, failures in failed.items()} == {
        "once more": 1,
        "typos": 37,
        "swapped texts": 37,
    }
    for check, failures in failed.items():
        assert metrics[f"checks/{check}/asked"] == len(failures)
        assert metrics[f"checks/{check}/failed"] == sum(failures)
    # Both orders of a pair are read, and summed: the number is the same but for rounding.
    assert not any(failed["swapped texts"])
    page = reported(tickets, "tickets")
    assert "| swapped texts | 37 | 0.000 [0.000, 0.094] |" in page
    assert f"| typos | 37 | {sum(failed['typos']) / 37:.3f} [" in page


def test_lora_changes_the_named_matrices_only(tickets):
    tickets.change(finetune__lora={"rank": 3, "alpha": 6.0})
    _, _, weights = learned(tickets)
    before = checkpoint.load(tickets.root / "artifacts/models/gpt").model.state_dict()
    assert weights.keys() == before.keys()
    changed = {name for name in weights if not torch.equal(weights[name], before[name])}
    adapted = {f"blocks.{i}.attention.{name}.weight" for i in (0, 1) for name in ("qkv", "out")}
    assert changed == adapted | {"tokens.weight"}
    # Pretraining has never read these, and they were reinitialised before the weights were frozen.
    rows = (weights["tokens.weight"] != before["tokens.weight"]).any(1)
    assert set(rows.nonzero().flatten().tolist()) == {BOS, SEP, CLS}


def test_transfer_keeps_learned_special_embeddings(tickets, monkeypatch):
    learned(tickets)
    monkeypatch.chdir(tickets.root)
    config = stage_parameters.section("finetune", FinetuneConfig)
    task = verified_task(Path("artifacts/examples/tickets"))
    kept = {}
    for folder in ("models/gpt", "finetuned/gpt-tickets-5"):
        loaded = checkpoint.load(Path("artifacts") / folder)
        before = loaded.model.tokens.weight.detach().clone()
        rows = finetune.read_rows(Path("artifacts/examples/tickets/train.jsonl"), task, 9, loaded)
        classifier = finetune.new_classifier(loaded, task, config, 5, rows, None)
        kept[folder] = torch.equal(classifier.backbone.tokens.weight, before)
    assert kept == {"models/gpt": False, "finetuned/gpt-tickets-5": True}


def test_auxiliary_loss_changes_the_weights(tickets):
    _, alone, without = learned(tickets)
    tickets.change(finetune__auxiliary=0.5)
    _, beside, together = learned(tickets)
    assert any(not torch.equal(without[name], together[name]) for name in without)
    assert alone["examples"] == beside["examples"] == 37
    config = json.loads((tickets.root / "artifacts/finetuned/gpt-tickets-5/config.json").read_text())
    assert (config["head"]["task"]["name"], config["head"]["pair"]) == ("tickets", True)


def test_transfer_starts_from_another_task(tickets):
    read = yaml.safe_load((tickets.root / "params.yaml").read_text())
    tickets.change(examples__more=read["examples"]["tickets"])
    tickets.run("tasks.stages.examples", "more")
    folder, evidence = tickets.root / "artifacts", "evidence/gpt/more.5.csv"
    tickets.run("tasks.stages.finetune", "gpt", "more", "5")
    alone = (folder / evidence).read_bytes()
    learned(tickets)
    tickets.change(finetune__transfers=[{"task": "more", "after": "tickets"}])
    tickets.run("tasks.stages.finetune", "gpt", "more", "5", "--after", "tickets")
    after = (folder / evidence).read_bytes()
    assert after != alone
    tickets.run("tasks.stages.finetune", "gpt", "more", "--checkpoint", "artifacts/models/gpt", "--evidence", "again")
    assert (tickets.root / "again/more.5.csv").read_bytes() == after
    assert "Fine-tuned after tickets" in reported(tickets, "tickets", "more")


@pytest.mark.parametrize(
    ("transfers", "message"),
    [
        ([{"task": "more", "after": "ticket"}], "finetune.transfers: found after: ticket; expected one of tasks"),
        ([{"task": "tickets", "after": "tickets"}], "finetune.transfers: tickets appears twice"),
        ([{"task": "more", "after": "tickets"}] * 2, "finetune.transfers: more appears twice"),
        ([{"task": "more"}], "finetune.transfers[0].after: missing"),
    ],
)
def test_a_wrong_transfer_is_one_line(tickets, transfers, message):
    tickets.change(finetune__transfers=transfers)
    assert message in tickets.refused("tasks.stages.finetune", "gpt", "tickets", "5")
