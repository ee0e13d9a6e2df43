"""Stage finetune: one model on one GLUE-like task. `python -m tasks.finetune <name> <task>`.

With `--checkpoint` and `--evidence` another checkpoint is fine-tuned on today's examples, and only its evidence is
written: that is how the gate compares a champion with a challenger on the same examples.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from plm_core import checkpoint
from plm_core.config import BadInput, digest
from plm_core.corpus.document import read_documents
from plm_core.evaluation.evidence import TASK_COLUMNS
from plm_core.evaluation.metrics import classification_scores, majority_accuracy
from plm_core.files import sha256_file
from plm_core.finetuning.classifier import Classifier, Row, classification_loss, collate, predict
from plm_core.finetuning.examples import Example, sample
from plm_core.finetuning.layouts import LAYOUTS
from plm_core.finetuning.table import GlueTask, task_of
from plm_core.objectives.loss import Batch
from plm_core.text.views import items_at, stream_seed
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device, prepare
from plm_core.training.loop import best_report, train
from plm_core.training.passes import Evaluate
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import Report
from tasks.seam import params, paths
from tasks.seam.evidence import write_rows
from tasks.seam.meters import Ledger
from tasks.seam.stage import Stage, main, stage
from tasks.seam.training import follow, listed, write_curve

SPLITS = [paths.CORPUS / f"{name}.parquet" for name in ("train", "valid", "test")]
SECTIONS = ["finetune.train_examples", "finetune.heldout_examples", "finetune.dropout", "finetune.training"]
"""What a result depends on: not the list of tasks, so that adding one reruns no other."""

SHORTEST_CONTEXT = 8
"""Start, delimiter and extract token, and a little text."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Section ``finetune`` of the parameters."""

    tasks: list[str]
    """Names in ``plm_core.finetuning.table.TASKS``; [] for none."""
    train_examples: int
    """At most so many training examples a task."""
    heldout_examples: int
    """At most so many validation and so many test examples a task."""
    dropout: float
    """Before the classifier's linear layer."""
    training: LoopConfig
    """The loop and its optimizer, the same for every task."""

    def __post_init__(self) -> None:
        for name in ("train_examples", "heldout_examples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout}; expected at least 0 and below 1")


class Rows(NamedTuple):
    """A split of a GLUE-like task: its examples, and the same as the model reads them."""

    examples: list[Example]
    encoded: list[Row]


class Outcome(NamedTuple):
    """A fine-tuned model and what it said of the test examples."""

    classifier: Classifier
    reports: list[Report]
    train: Rows
    test: Rows
    predictions: list[int]


def finetune(name: str, task_name: str) -> None:
    """Fine-tune the model that stage pretrain made; write the classifier, evidence, curve and metrics."""
    config, task = params.section("finetune", FinetuneConfig), task_of(task_name)
    folder, key = paths.MODELS / name, f"{name}-{task_name}"
    metrics_file = paths.METRICS / f"finetune-{key}.json"
    with stage(f"finetune-{key}", SECTIONS, [folder, *SPLITS], metrics_file, training=True) as run:
        device = prepare(threads=1)
        pretrained = checkpoint.load(folder, device.device)
        snapshots = Snapshots(
            paths.SNAPSHOTS / digest(config, task_name, run.inputs, run.guard.code)[:16], config.training.keep_snapshots
        )
        outcome = fit(pretrained, task, config, device, snapshots, run)
        evidence, curve = paths.EVIDENCE / name / f"{task_name}.csv", paths.CURVES / f"{key}.csv"
        write_evidence(evidence, task, config, outcome)
        write_curve(curve, outcome.reports)
        save(paths.FINETUNED / key, task_name, task, pretrained, outcome)
        labels = [row.label for row in outcome.test.encoded]
        majority = majority_accuracy([row.label for row in outcome.train.encoded], labels)
        run.metrics |= classification_scores(task.metrics, outcome.predictions, labels)
        run.metrics |= {
            "majority_accuracy": majority,
            "examples": len(labels),
            "train_examples": len(outcome.train.encoded),
            "best_step": best_report(outcome.reports).step,
        }
        run.outputs += [evidence, curve, paths.FINETUNED / key]
        scores = {f"{task_name}.{metric}": value for metric, value in run.metrics.items()}
        run.tracker.checkpoint_metrics(pretrained.digest, scores)
        print(f"{key}: accuracy {run.metrics['accuracy']:.3f}, majority class {majority:.3f}, {len(labels)} examples")
    snapshots.remove()


def finetune_checkpoint(task_name: str, folder: Path, evidence: Path) -> None:
    """Fine-tune any checkpoint on today's examples and write its evidence, nothing else."""
    config, task, device = params.section("finetune", FinetuneConfig), task_of(task_name), prepare(threads=1)
    with tempfile.TemporaryDirectory() as scratch:
        outcome = fit(checkpoint.load(folder, device.device), task, config, device, Snapshots(Path(scratch)), None)
    write_evidence(evidence / f"{task_name}.csv", task, config, outcome)


def fit(
    pretrained: checkpoint.Loaded,
    task: GlueTask,
    config: FinetuneConfig,
    device: Device,
    snapshots: Snapshots,
    run: Stage | None,
) -> Outcome:
    """Train a classifier on the model, keep its best validation, and predict the test examples."""
    loop = config.training
    parts = [_rows(split, task, config, pretrained) for split in SPLITS]
    train_set, valid_set, test_set = parts
    torch.manual_seed(stream_seed(loop.seed, "head"))
    classifier = Classifier(
        pretrained.model, LAYOUTS[pretrained.config.objective], len(task.labels), config.dropout
    ).to(device.device)

    most = pretrained.model.config.context if loop.compile else None

    def batch_at(step: int) -> Batch:
        chosen = items_at(loop.order_seed, step, loop.batch, len(train_set.encoded))
        return collate([train_set.encoded[i] for i in chosen], most)

    def validate(_: Evaluate) -> float:
        return predict(classifier, valid_set.encoded, loop.batch, device.device)[1]

    def examples(step: int) -> str:
        chosen = items_at(loop.order_seed, step, loop.batch, len(train_set.encoded))
        return f"the examples {listed([train_set.examples[i].id for i in chosen])}"

    training = partial(train, classifier, classification_loss, batch_at, validate, loop, device, snapshots)
    if run is None:
        seen = list(training())
    else:
        ledger = Ledger(run.name, snapshots.folder.name, device)
        seen = follow(training, loop.steps, run, "finetune", examples, ledger)
    predictions, _ = predict(classifier, test_set.encoded, loop.batch, device.device)
    return Outcome(classifier, seen, train_set, test_set, predictions)


def write_evidence(path: Path, task: GlueTask, config: FinetuneConfig, outcome: Outcome) -> None:
    """One row a test example, classes by name."""
    rule = digest(replace(config, tasks=[]), *(sha256_file(split) for split in SPLITS[:2]))[:16]
    rows = zip(outcome.test.examples, outcome.predictions, strict=True)
    write_rows(path, TASK_COLUMNS, ((e.id, e.sha256, task.labels[e.label], task.labels[p], rule) for e, p in rows))


def save(folder: Path, name: str, task: GlueTask, pretrained: checkpoint.Loaded, outcome: Outcome) -> None:
    """The fine-tuned model as a checkpoint of its own: the architecture's weights and the head's beside them."""
    best = best_report(outcome.reports)
    config = checkpoint.CheckpointConfig(
        **{**vars(pretrained.config), "step": best.step, "valid_nats": float(best.valid_loss or 0.0)}
        | {"head": {"task": name, "labels": list(task.labels)}}
    )
    head = {f"head.{key}": tensor.cpu() for key, tensor in outcome.classifier.head.state_dict().items()}
    checkpoint.save(folder, outcome.classifier.backbone.state_dict(), pretrained.tokenizer, config, head)


def _rows(split: Path, task: GlueTask, config: FinetuneConfig, pretrained: checkpoint.Loaded) -> Rows:
    most = config.train_examples if split == SPLITS[0] else config.heldout_examples
    examples: Sequence[Example] = sample(task.examples(list(read_documents(split))), most, config.training.seed)
    if not examples:
        raise BadInput(
            f"{split}: gives no example for this task; expected paragraphs of fitting length (finetune.tasks)"
        )
    context = pretrained.model.config.context
    if context < SHORTEST_CONTEXT:
        raise BadInput(f"model.context: {context} is too short to fine-tune on; expected at least {SHORTEST_CONTEXT}")
    layout = LAYOUTS[pretrained.config.objective]
    rows = [Row(*layout.write(e, pretrained.tokenizer, context), e.label) for e in examples]
    segments = getattr(pretrained.model.config, "segments", None)
    if segments is not None and (most := max(max(row.segments) for row in rows)) >= segments:
        raise BadInput(f"model.segments: {segments}; expected at least {most + 1} for this task's pairs")
    return Rows(list(examples), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tune one model on one GLUE-like task.")
    parser.add_argument("name", help="one of `models` in params.yaml")
    parser.add_argument("task", help="one of `finetune.tasks`")
    parser.add_argument("--checkpoint", type=Path, help="fine-tune this checkpoint instead")
    parser.add_argument("--evidence", type=Path, help="and write its evidence into this folder")
    given = parser.parse_args()
    if (given.checkpoint is None) != (given.evidence is None):
        parser.error("--checkpoint and --evidence go together")
    again = given.checkpoint is not None
    main(
        lambda: (
            finetune_checkpoint(given.task, given.checkpoint, given.evidence)
            if again
            else finetune(given.name, given.task)
        )
    )
