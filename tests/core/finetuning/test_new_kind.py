"""A kind of task that is added by one file, this one: it is read, learned, scored, and has a baseline."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from plm_core.benchmarks.task import KINDS, ExamplesConfig, Kind, read_examples, read_task, write_examples, write_task
from plm_core.benchmarks.task_sources import counts, read_source
from plm_core.config import from_dict
from plm_core.evaluation.evidence import TASK_COLUMNS
from plm_core.evaluation.evidence import read_task as read_evidence
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.finetuning import finetune_results, linear_baselines
from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict
from plm_core.finetuning.featurize import encoded
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_heads import Predicted, TaskHead, example_answers
from plm_core.text.samplers import items_at
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig


class Ordinal(Kind):
    """The label is one of several levels, from low to high."""

    metrics = ("accuracy",)
    of_classes = has_checks = False
    head = f"{__name__}:LEVELS"
    linear = f"{__name__}:rounded"

    def describe(self, config, where):
        return f"How high is {config.label}?", config.labels

    def counts(self, task, examples):
        return {"median": float(np.median([e.label for e in examples]))}


class Levels(TaskHead):
    """Whether the level is above each but the last: as many questions of yes or no."""

    def outputs(self, labels):
        return labels - 1

    def loss(self, outputs, targets):
        above = targets[:, None] > torch.arange(outputs.shape[1], device=outputs.device)
        return F.binary_cross_entropy_with_logits(outputs, above.to(outputs.dtype), reduction="sum")

    def answers(self, outputs, batch):
        return [(row, math.nan) for row in outputs.sigmoid().tolist()]

    def combined(self, task, read, threshold):
        above = np.mean(read.answers, axis=0)
        return int((above > 0.5).sum()), float(np.maximum(above, 1 - above).prod())


def rounded(task, train, valid, test):
    answers, sure = linear_baselines.ridge_regression(task, train, valid, test)
    return [min(max(round(a), 0), len(task.labels) - 1) for a in answers], sure


LEVELS = Levels()


@pytest.fixture
def task(monkeypatch, tmp_path):
    """The task and its examples, from a team's own files: how often `limu` is said."""
    monkeypatch.setitem(KINDS, "ordinal", Ordinal())
    draw = random.Random(7)
    for split, count in (("train", 500), ("test", 97)):
        lines = ["text\tlevel"]
        for _ in range(count):
            level = draw.randrange(3)
            words = ["limu"] * level + draw.choices(["bafo", "pesa", "toku"], k=4 - level)
            lines.append(f"{' '.join(draw.sample(words, 4))}\t{('low', 'middle', 'high')[level]}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    given = {"input": str(tmp_path), "kind": "ordinal", "a": "text", "label": "level", "score": "accuracy"}
    given["labels"] = ["low", "middle", "high"]
    source = read_source("loudness", from_dict(ExamplesConfig, given, "examples.loudness"))
    assert source.task.question == "How high is level?"
    assert counts(source.task, "test", source.splits["test"]) == {"test_examples": 97, "test_median": 1.0}
    write_task(tmp_path, source.task)
    for split, examples in source.splits.items():
        write_examples(tmp_path / f"{split}.jsonl", examples, source.task)
        assert read_examples(tmp_path / f"{split}.jsonl", source.task) == examples
    return read_task(tmp_path), source.splits


def test_new_task_kind_is_finetuned_scored_and_compared(task, make_gpt, tokenizer, device, tmp_path):
    task, splits = task
    torch.manual_seed(5)
    input_format = input_format_of("causal")
    backbone = make_gpt(vocab_size=tokenizer.vocab_size, context=42, dropout=0.0)
    model = Classifier(backbone, input_format, task.kind, len(task.labels), 0.0).float()
    for parameter in backbone.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)  # these layers are narrow
    learned, test = (encoded(splits[s], task, input_format, tokenizer, 42) for s in ("train", "test"))
    config = LoopConfig(seed=1, steps=150, batch=32, optimizer=OptimizerConfig(5e-3, 20), valid_every=50)
    reports = train(
        model,
        example_loss,
        lambda step: collate([learned.encoded[i] for i in items_at(1, step, 32, len(learned.encoded))], None, LEVELS),
        lambda _: Validation(predict(model, learned.encoded, 99, device.device).loss),
        config,
        device,
        Snapshots(tmp_path / "snapshots"),
    )
    assert len(list(reports)) > 1
    tuned = example_answers(task, test, predict(model, test.encoded, 13, device.device), tokenizer)
    baseline = Predicted(*linear_baselines.predict(task, splits["train"], splits["valid"], splits["test"]), math.nan)
    for answered, least in ((tuned, 0.8), (baseline, 0.6)):
        figures = finetune_results.measured(task, splits["train"], test.examples, answered)
        assert figures["score"] > least > figures["baseline"]
        file = tmp_path / "loudness.1.csv"
        write_sealed(file, TASK_COLUMNS, finetune_results.evidence(task, test.examples, answered, "rule"))
        table = read_evidence([file])
        assert table.value == pytest.approx(figures["score"])
        assert Counter(table.predictions[0]) == Counter(task.labels[a] for a in answered.answers)
