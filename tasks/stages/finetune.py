"""Stage finetune: one model on one GLUE-like task, from one seed.

`python -m tasks.stages.finetune <name> <task> <seed>`

Stage transfer is the same with `--after TASK`: it starts from the model fine-tuned on that task with the same seed,
with a new head (Phang et al. 2018, "Sentence Encoders on STILTs"; Liu et al. 2019, section 5.1, for RTE, STS-B and MRPC
after MNLI).

With `--checkpoint` and `--evidence` another checkpoint is fine-tuned on the current examples, with all seeds, and only
its evidence is written: that is how the gate compares a champion with a challenger on the same examples.
"""

import argparse
import math
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import torch

from plm_core import checkpoint
from plm_core.benchmarks.behaviour_checks import COLUMNS, FILE, check_counts, read_checks, run_behaviour_checks
from plm_core.benchmarks.example_readers import SPLITS, file_of
from plm_core.benchmarks.task import KINDS, GlueTask, read_examples, verified_task
from plm_core.config import join_names
from plm_core.evaluation.evidence import TASK_COLUMNS
from plm_core.evaluation.sealed_csv import write_rows, write_sealed
from plm_core.finetuning import finetune_results
from plm_core.finetuning.classifier import (
    Classifier,
    collate,
    draw_anew,
    example_loss,
    new_features,
    predict,
    set_dropout,
)
from plm_core.finetuning.featurize import Batching, Rows, read_rows
from plm_core.finetuning.finetune_config import PARAMETERS, FeaturesConfig, FinetuneConfig
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_heads import Predicted, example_answers
from plm_core.finetuning.task_model import LearnedTask, TaskModel, learned_task, on_top
from plm_core.finetuning.text_writer import TextModel
from plm_core.objectives.objective import Batch
from plm_core.shared import paths
from plm_core.text.samplers import stream_seed
from plm_core.training.callbacks.loss_metrics import StepMetrics, Validation, best_report
from plm_core.training.device import Device, prepare
from plm_core.training.loop import train
from plm_core.training.lora import adapt, merge
from plm_core.training.snapshot import Snapshots
from plm_core.training.step import Evaluate
from tasks.parameters import stage_parameters
from tasks.reporting.training_costs import CostReport
from tasks.runtime.stage import Stage, main, stage
from tasks.runtime.training_monitor import follow, snapshots_folder, write_curve


class FinetuneOutcome(NamedTuple):
    """A fine-tuned model and its answers to the test examples."""

    classifier: Classifier | TextModel
    reports: list[StepMetrics]
    train: Rows
    test: Rows
    predicted: Predicted
    """Example by example."""
    learned: LearnedTask
    """What the checkpoint says about the task."""
    untrained: float | None
    """The score of the pretrained model, for a kind whose head has nothing to learn."""


def finetune(name: str, task_name: str, seed: int, after: str | None = None) -> None:
    """Fine-tune a pretrained model, or that of task ``after``; write classifier, evidence, curve and metrics."""
    config = stage_parameters.section("finetune", FinetuneConfig)
    stage_parameters.require_examples("finetune.tasks", filter(None, (task_name, after)))
    data = paths.EXAMPLES / task_name
    base = paths.MODELS / name
    key = f"{name}-{task_name}-{seed}"
    inputs = [base, data]
    learned_from = [data]
    if after:
        learned_from.append(paths.EXAMPLES / after)
        inputs = [paths.FINETUNED / f"{name}-{after}-{seed}", *learned_from, base]
    sections = [f"finetune.{parameter}" for parameter in PARAMETERS]
    tags = {"plm.task": task_name, "plm.seed": str(seed)}
    with stage(f"finetune-{key}", sections, inputs, training=True, model=name, tags=tags) as run:
        task = verified_task(data)
        device = prepare(threads=1, deterministic=config.training.deterministic)
        pretrained = checkpoint.load(inputs[0], device.device)
        snapshots = Snapshots(snapshots_folder(run, config.rule, task_name, seed))
        outcome = fit(name, pretrained, task, config, seed, device, snapshots, run)
        test = outcome.test
        predicted = outcome.predicted

        # What the gate and the report read, and the model itself.
        evidence = paths.EVIDENCE / name / f"{task_name}.{seed}.csv"
        rows = finetune_results.evidence(task, test.examples, predicted, config.measured(learned_from))
        write_sealed(evidence, TASK_COLUMNS, rows)
        curve = paths.CURVES / f"{key}.csv"
        write_curve(curve, outcome.reports)
        # A checkpoint of its own: the architecture's weights together with the head's.
        weights = outcome.classifier.backbone.state_dict()
        described = description_of(pretrained, outcome)
        checkpoint.save(paths.FINETUNED / key, weights, pretrained.tokenizer, described, on_top(outcome.classifier))
        run.metrics |= finetune_results.measured(task, outcome.train.examples, test.examples, predicted)
        run.metrics |= {"cut": test.cut, "best_step": best_report(outcome.reports).step}
        run.metrics |= {"no_answer_threshold": outcome.learned.threshold} if task.unanswerable else {}
        run.metrics |= {} if outcome.untrained is None else {"score_untrained": outcome.untrained}

        # The behavioural checks refer to all test examples; those predicted may be only a sample.
        model = TaskModel(outcome.classifier, outcome.learned, pretrained, config.training.batch, device.device)
        checks = read_checks(data / FILE, task, (e.id for e in read_examples(file_of(data, "test"), task)))
        judged = run_behaviour_checks(
            task, checks, test.examples, predicted.answers, lambda examples: model.predict(examples).answers
        )
        checked = paths.CHECKS / name / f"{task_name}.{seed}.csv"
        write_rows(checked, COLUMNS, judged)
        run.metrics |= check_counts(judged)

        run.outputs += [evidence, curve, paths.FINETUNED / key, checked]
        score, baseline = (run.metrics[figure] for figure in ("score", "baseline"))
        signed = finetune_results.signed(task, test.examples)
        print(f"{key}: {signed} {score:.3f}, without reading {baseline:.3f}, {len(test.examples)} examples")
        if test.cut:
            context = pretrained.model.config.context
            print(f"{key}: test examples longer than model.context ({context}), which were cut: {test.cut}")
        if (always := finetune_results.constant_class(task, predicted)) is not None:
            print(f"{key}: always answers {always!r}: it has not learned to tell the classes apart")
    snapshots.remove()


def finetune_checkpoint(name: str, task_name: str, folder: Path, evidence: Path) -> None:
    """Fine-tune a checkpoint of the model NAME on the current examples, with every seed; write only its evidence."""
    config = stage_parameters.section("finetune", FinetuneConfig)
    names = [task for task in (task_name, config.learned_before(task_name)) if task]
    stage_parameters.require_examples("finetune.tasks", names)
    folders = [paths.EXAMPLES / task for task in names]
    tasks = [verified_task(folder) for folder in folders]
    device = prepare(threads=1, deterministic=config.training.deterministic)
    for seed in config.seeds:
        model = checkpoint.load(folder, device.device)
        for task in reversed(tasks):  # each starts from the weights that the previous one left
            with tempfile.TemporaryDirectory() as scratch:
                outcome = fit(name, model, task, config, seed, device, Snapshots(Path(scratch)), None)
            described = description_of(model, outcome)
            model = replace(model, config=described, extra=on_top(outcome.classifier))
        rows = finetune_results.evidence(tasks[0], outcome.test.examples, outcome.predicted, config.measured(folders))
        write_sealed(evidence / f"{task_name}.{seed}.csv", TASK_COLUMNS, rows)


def fit(
    name: str,
    pretrained: checkpoint.Loaded,
    task: GlueTask,
    config: FinetuneConfig,
    seed: int,
    device: Device,
    snapshots: Snapshots,
    run: Stage | None,
) -> FinetuneOutcome:
    """Train a classifier on the model of this name, keep the weights that validate best, and predict the test examples.

    Raises:
        UserError: the examples allow no score, or the model cannot read them.
    """
    # The examples, refused before training if they allow no score.
    sets = []
    for split in SPLITS:
        most = config.train_examples if split == "train" else config.heldout_examples
        sets.append(read_rows(file_of(paths.EXAMPLES / task.name, split), task, most, pretrained))
        if split == "test" or (split == "valid" and config.training.best_by == "score"):
            finetune_results.require_scorable(task, split, sets[-1].examples)
    train_set, valid_set, test_set = sets
    batching = Batching([row.longest for row in train_set.encoded], config.training.batch, stream_seed(seed, "order"))
    loop = config.training.loop(batching.epoch, seed)
    features = config.features_of(name)
    if features:
        loop = replace(loop, optimizer=replace(loop.optimizer, learning_rate=features.learning_rate))
    classifier = new_classifier(pretrained, task, config, seed, train_set, features).to(device.device)
    if isinstance(classifier, Classifier):
        classifier.standardize(train_set.encoded)
    scale = classifier.kind.scale(train_set)
    train_set, valid_set = scale.standardized(train_set), scale.standardized(valid_set)
    most_tokens = pretrained.model.config.context if loop.compile else None

    def batch_at(step: int) -> Batch:
        return collate([train_set.encoded[i] for i in batching.at(step)], most_tokens, classifier.kind)

    def validate(_: Evaluate) -> Validation:
        by_score = config.training.best_by == "score"
        held_out = predict(classifier, valid_set.encoded, loop.batch, device.device, answers=by_score)
        by_score = by_score and math.isfinite(held_out.loss)
        score = finetune_results.score(task, valid_set, held_out, pretrained.tokenizer) if by_score else None
        return Validation(held_out.loss, score)

    def examples(step: int) -> str:
        return f"the examples {join_names([train_set.examples[train_set.owners[i]].id for i in batching.at(step)])}"

    # Without a head to learn, the pretrained model can already answer: that score shows what training adds.
    untrained = None
    if classifier.kind.reads == "mean" and not features:
        before = predict(classifier, test_set.encoded, loop.batch, device.device)
        untrained = finetune_results.score(task, test_set, before, pretrained.tokenizer)
    training = partial(train, classifier, example_loss, batch_at, validate, loop, device, snapshots)
    if run is None:
        reports = list(training())
    else:
        costs = CostReport(run.name, snapshots.folder.name, device)
        reports = follow(training, loop.steps, run, "finetune", examples, costs)
    # From here on it is a model like any other: without adapters, and with numbers in their own unit.
    merge(classifier.backbone)
    scale.fold(classifier.head)
    predicted = predict(classifier, test_set.encoded, loop.batch, device.device)
    threshold = 0.0
    if task.unanswerable:
        held_out = predict(classifier, valid_set.encoded, loop.batch, device.device)
        threshold = classifier.kind.threshold(task, valid_set, held_out, pretrained.tokenizer)
    answers = example_answers(task, test_set, predicted, pretrained.tokenizer, threshold)
    pair = train_set.examples[0].b is not None
    learned = learned_task(classifier, task, pair, threshold)
    return FinetuneOutcome(classifier, reports, train_set, test_set, answers, learned, untrained)


def new_classifier(
    pretrained: checkpoint.Loaded,
    task: GlueTask,
    config: FinetuneConfig,
    seed: int,
    train: Rows,
    features: FeaturesConfig | None,
) -> Classifier | TextModel:
    """The pretrained model with a new head of random weights, or one that learns to write texts as long as those of
    ``train``."""
    input_format = input_format_of(pretrained.config.objective, pretrained.config.model)
    torch.manual_seed(stream_seed(seed, "head"))
    # Vectors that are computed from characters have not been pushed by the softmax.
    if pretrained.config.head is None and input_format.unread and hasattr(pretrained.model, "tokens"):
        draw_anew(pretrained.model, input_format.unread)
    if features:
        mixed = new_features(pretrained, features)
        return Classifier(pretrained.model, input_format, task.kind, len(task.labels), config.dropout, features=mixed)
    if config.lora is not None:
        adapt(pretrained.model, config.lora)
    if config.training.backbone_dropout is not None:
        set_dropout(pretrained.model, config.training.backbone_dropout)
    if KINDS[task.kind].writes_texts:
        most = max(len(row.label) for row in train.encoded if isinstance(row.label, list))
        writer = resolve_name(str(input_format.writer))
        return TextModel(pretrained.model, writer, task.kind, config.texts, most, pretrained.tokenizer.vocab_size)
    auxiliary = config.auxiliary if input_format.predicts_next else 0.0
    return Classifier(pretrained.model, input_format, task.kind, len(task.labels), config.dropout, auxiliary)


def description_of(pretrained: checkpoint.Loaded, outcome: FinetuneOutcome) -> checkpoint.CheckpointConfig:
    """The description of the fine-tuned model."""
    best = best_report(outcome.reports)
    return replace(
        pretrained.config, step=best.step, valid_nats=float(best.valid_loss or 0.0), head=asdict(outcome.learned)
    )


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
        main(lambda: finetune_checkpoint(given.name, given.task, given.checkpoint, given.evidence), gpus=1)
    else:
        main(lambda: finetune(given.name, given.task, given.seed, given.after), gpus=1)
