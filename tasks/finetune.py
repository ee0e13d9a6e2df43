"""Stage finetune: one model on one GLUE-like task, from one seed. `python -m tasks.finetune <name> <task> <seed>`.

Stage transfer is the same with `--after TASK`: it starts from the model fine-tuned on that task with the same seed,
with a new head (Phang et al. 2018, "Sentence Encoders on STILTs"; Liu et al. 2019, section 5.1, for RTE, STS-B and MRPC
after MNLI).

With `--checkpoint` and `--evidence` another checkpoint is fine-tuned on the current examples, with all seeds, and only
its evidence is written: that is how the gate compares a champion with a challenger on the same examples.
"""

import argparse
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plm_core import checkpoint
from plm_core.benchmarks.checks import COLUMNS, FILE, counted, examined, read_checks
from plm_core.benchmarks.examples import SPLITS, Example, file_of, read_examples
from plm_core.benchmarks.task import GlueTask, verified_task
from plm_core.config import listed
from plm_core.evaluation.evidence import TASK_COLUMNS
from plm_core.files import CHECKSUMS, sha256_file
from plm_core.finetuning import results
from plm_core.finetuning.batches import Batching
from plm_core.finetuning.classifier import (
    Classifier,
    Predicted,
    collate,
    draw_anew,
    example_loss,
    predict,
    set_dropout,
)
from plm_core.finetuning.config import PARAMETERS, FinetuneConfig
from plm_core.finetuning.featurize import Rows, encoded, read_rows
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.lora import adapt, merge
from plm_core.finetuning.scale import Scale
from plm_core.objectives.loss import Batch
from plm_core.shared import paths
from plm_core.text.samplers import stream_seed
from plm_core.training.callbacks.metrics import StepMetrics, Validation, best_report
from plm_core.training.device import Device, prepare
from plm_core.training.loop import train
from plm_core.training.snapshot import Snapshots
from plm_core.training.step import Evaluate
from tasks.reporting.costs import CostReport
from tasks.runtime.evidence import write_rows, write_sealed
from tasks.runtime.stage import Stage, main, stage
from tasks.runtime.training import follow, snapshots_folder, write_curve
from tasks.settings import params


class Outcome(NamedTuple):
    """A fine-tuned model and its answers to the test examples."""

    classifier: Classifier
    reports: list[StepMetrics]
    train: Rows
    test: Rows
    predicted: Predicted
    """Example by example."""
    threshold: float
    """``results.no_answer_threshold``; 0 if every question has an answer."""

    def metrics(self, task: GlueTask) -> dict[str, float]:
        """The numbers for the tracker and the metrics file."""
        found = results.measured(task, self.train.examples, self.test.examples, self.predicted)
        found |= {"cut": self.test.cut, "best_step": best_report(self.reports).step}
        return found | ({"no_answer_threshold": self.threshold} if task.unanswerable else {})


def finetune(name: str, task_name: str, seed: int, after: str | None = None) -> None:
    """Fine-tune a pretrained model, or that of task ``after``; write classifier, evidence, curve and metrics."""
    config = params.section("finetune", FinetuneConfig)
    data = examples_of(task_name)
    base = paths.MODELS / name
    key = f"{name}-{task_name}-{seed}"
    folder = paths.FINETUNED / f"{name}-{after}-{seed}" if after else base
    sections = [f"finetune.{parameter}" for parameter in PARAMETERS]
    before = [examples_of(after), base] if after else []
    tags = {"plm.task": task_name, "plm.seed": str(seed)}
    inputs = [folder, data, *before]
    with stage(f"finetune-{key}", sections, inputs, training=True, model=name, tags=tags) as run:
        task = verified_task(data)
        device = prepare(threads=1, deterministic=config.training.deterministic)
        pretrained = checkpoint.load(folder, device.device)
        snapshots = Snapshots(snapshots_folder(run, config.rule, task_name, seed))
        outcome = fit(pretrained, task, config, seed, device, snapshots, run)
        evidence = paths.EVIDENCE / name / f"{task_name}.{seed}.csv"
        curve = paths.CURVES / f"{key}.csv"
        write_evidence(evidence, config.measured([data, *before[:1]]), task, outcome)
        write_curve(curve, outcome.reports)
        save(paths.FINETUNED / key, task, pretrained, outcome)
        run.metrics |= outcome.metrics(task)

        def asked(examples: list[Example]) -> list[Any]:
            input_format = input_format_of(pretrained.config.objective)
            rows = encoded(examples, task, input_format, pretrained.tokenizer, pretrained.model.config.context)
            said = predict(outcome.classifier, rows.encoded, config.training.batch, device.device)
            return results.answered(task, rows, said, pretrained.tokenizer, outcome.threshold).answers

        checked = paths.CHECKS / name / f"{task_name}.{seed}.csv"
        known = (example.id for example in read_examples(file_of(data, "test"), task))
        checks = read_checks(data / FILE, task, known)  # of all test examples, of which ours may be a sample
        judged = examined(task, checks, outcome.test.examples, outcome.predicted.answers, asked)
        write_rows(checked, COLUMNS, judged)
        run.metrics |= counted(judged)
        run.outputs += [evidence, curve, paths.FINETUNED / key, checked]
        scores = {f"{task_name}.{seed}.{metric}": value for metric, value in run.metrics.items()}
        run.tracker.checkpoint_metrics(sha256_file(base / CHECKSUMS), scores)
        tell(key, task, run.metrics, outcome)
    snapshots.remove()


def tell(key: str, task: GlueTask, metrics: dict[str, float], outcome: Outcome) -> None:
    """Print the score, and what its reader should know."""
    score, baseline, examples, cut = (metrics[name] for name in ("score", "baseline", "examples", "cut"))
    print(f"{key}: {task.score} {score:.3f}, without reading {baseline:.3f}, {examples} examples")
    if cut:
        context = outcome.classifier.backbone.config.context
        print(f"{key}: test examples longer than model.context ({context}), which were cut: {cut}")
    if (always := results.constant(task, outcome.predicted)) is not None:
        print(f"{key}: always answers {always!r}: it has not learned to tell the classes apart")


def examples_of(task_name: str) -> Path:
    """The folder with the examples of a task; UserError for a name that is not a section of ``examples``."""
    params.require_examples("finetune.tasks", [task_name])
    return paths.EXAMPLES / task_name


def finetune_checkpoint(task_name: str, folder: Path, evidence: Path) -> None:
    """Fine-tune any checkpoint on the current examples, with every seed, and write only its evidence."""
    config = params.section("finetune", FinetuneConfig)
    after = config.learned_before(task_name)
    folders = [examples_of(name) for name in (task_name, after) if name]
    tasks = [verified_task(folder) for folder in folders]
    device = prepare(threads=1, deterministic=config.training.deterministic)
    for seed in config.seeds:
        model = checkpoint.load(folder, device.device)
        for task in reversed(tasks):  # each starts from the weights that the previous one left
            with tempfile.TemporaryDirectory() as scratch:
                outcome = fit(model, task, config, seed, device, Snapshots(Path(scratch)), None)
            model = replace(model, config=described(model, task, outcome))
        write_evidence(evidence / f"{task_name}.{seed}.csv", config.measured(folders), tasks[0], outcome)


def fit(
    pretrained: checkpoint.Loaded,
    task: GlueTask,
    config: FinetuneConfig,
    seed: int,
    device: Device,
    snapshots: Snapshots,
    run: Stage | None,
) -> Outcome:
    """Train a classifier on the model, keep the weights with the best validation, and predict the test examples."""
    train_set, valid_set, test_set = (rows_of(split, task, config, pretrained) for split in SPLITS)
    batching = Batching([row.longest for row in train_set.encoded], config.training.batch, stream_seed(seed, "order"))
    loop = config.training.loop(batching.epoch, seed)
    scale = Scale.of(task, train_set)
    train_set, valid_set = scale.standardized(train_set), scale.standardized(valid_set)
    classifier = new_classifier(pretrained, task, config, seed).to(device.device)
    most = pretrained.model.config.context if loop.compile else None

    def batch_at(step: int) -> Batch:
        return collate([train_set.encoded[i] for i in batching.at(step)], most, classifier.kind.batch)

    def validate(_: Evaluate) -> Validation:
        held_out = predict(classifier, valid_set.encoded, loop.batch, device.device)
        by_score = config.training.best_by == "score" and math.isfinite(held_out.loss)
        score = results.score(task, valid_set, held_out, pretrained.tokenizer) if by_score else None
        return Validation(held_out.loss, score)

    def examples(step: int) -> str:
        return f"the examples {listed([train_set.examples[train_set.owners[i]].id for i in batching.at(step)])}"

    training = partial(train, classifier, example_loss, batch_at, validate, loop, device, snapshots)
    if run is None:
        seen = list(training())
    else:
        costs = CostReport(run.name, snapshots.folder.name, device)
        seen = follow(training, loop.steps, run, "finetune", examples, costs)
    merge(classifier.backbone)
    scale.fold(classifier.head)
    predicted = predict(classifier, test_set.encoded, loop.batch, device.device)
    threshold = 0.0
    if task.unanswerable:
        held_out = predict(classifier, valid_set.encoded, loop.batch, device.device)
        threshold = results.no_answer_threshold(task, valid_set, held_out, pretrained.tokenizer)
    answers = results.answered(task, test_set, predicted, pretrained.tokenizer, threshold)
    return Outcome(classifier, seen, train_set, test_set, answers, threshold)


def rows_of(split: str, task: GlueTask, config: FinetuneConfig, pretrained: checkpoint.Loaded) -> Rows:
    """The examples of a split that are used, as rows for the model; UserError if they allow no score."""
    most = config.train_examples if split == "train" else config.heldout_examples
    rows = read_rows(file_of(paths.EXAMPLES / task.name, split), task, most, pretrained)
    if split == "test" or (split == "valid" and config.training.best_by == "score"):
        results.require_scorable(task, split, rows.examples)
    return rows


def new_classifier(pretrained: checkpoint.Loaded, task: GlueTask, config: FinetuneConfig, seed: int) -> Classifier:
    """The pretrained model with a new head of random weights."""
    input_format = input_format_of(pretrained.config.objective)
    torch.manual_seed(stream_seed(seed, "head"))
    if pretrained.config.head is None and input_format.unread:
        draw_anew(pretrained.model, input_format.unread)
    if config.lora is not None:
        adapt(pretrained.model, config.lora)
    if config.training.backbone_dropout is not None:
        set_dropout(pretrained.model, config.training.backbone_dropout)
    auxiliary = config.auxiliary if input_format.predicts_next else 0.0
    return Classifier(pretrained.model, input_format, task.kind, len(task.labels), config.dropout, auxiliary)


def write_evidence(path: Path, rule: str, task: GlueTask, outcome: Outcome) -> None:
    """Write one row per test example."""
    write_sealed(path, TASK_COLUMNS, results.evidence(task, outcome.test.examples, outcome.predicted, rule))


def described(pretrained: checkpoint.Loaded, task: GlueTask, outcome: Outcome) -> checkpoint.CheckpointConfig:
    """The description of the fine-tuned model."""
    best = best_report(outcome.reports)
    head = {"task": task.name, "labels": list(task.labels)}
    return replace(pretrained.config, step=best.step, valid_nats=float(best.valid_loss or 0.0), head=head)


def save(folder: Path, task: GlueTask, pretrained: checkpoint.Loaded, outcome: Outcome) -> None:
    """Save the fine-tuned model as its own checkpoint: the architecture's weights together with the head's."""
    config = described(pretrained, task, outcome)
    head = {f"head.{key}": tensor.cpu() for key, tensor in outcome.classifier.head.state_dict().items()}
    checkpoint.save(folder, outcome.classifier.backbone.state_dict(), pretrained.tokenizer, config, head)


if __name__ == "__main__":
    # Without typer, which takes a tenth of a second to import: this stage runs more often than all others.
    parser = argparse.ArgumentParser(description="Fine-tune one model on one GLUE-like task.")
    parser.add_argument("name", help="one of `models` in params.yaml")
    parser.add_argument("task", help="one of `finetune.tasks`")
    parser.add_argument("seed", type=int, nargs="?", help="one of `finetune.seeds`")
    parser.add_argument("--after", metavar="TASK", help="start from the model fine-tuned on this task")
    parser.add_argument("--checkpoint", type=Path, help="fine-tune this checkpoint instead, with every seed")
    parser.add_argument("--evidence", type=Path, help="and write its evidence into this folder")
    given = parser.parse_args()
    if (given.checkpoint is None) != (given.evidence is None) or (given.checkpoint is None) == (given.seed is None):
        parser.error("expected a seed, or --checkpoint and --evidence together")
    if given.checkpoint and given.after:
        parser.error("--after: given with --checkpoint, which follows finetune.transfers; expected one of them")
    if given.checkpoint:
        main(lambda: finetune_checkpoint(given.task, given.checkpoint, given.evidence), gpus=1)
    else:
        main(lambda: finetune(given.name, given.task, given.seed, given.after), gpus=1)
