"""Section ``finetune`` of the parameters. The recipe is in epochs and shares, because tasks differ in size."""

import math
from collections.abc import Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from plm_core.benchmarks.example_readers import file_of
from plm_core.config import Probability, digest, section
from plm_core.shared.files import sha256_file
from plm_core.training.training_config import AnomalyConfig, LoopConfig, LoRAConfig, OptimizerConfig, Precision

PARAMETERS = ("train_examples", "heldout_examples", "dropout", "auxiliary", "lora", "training", "features", "texts")
"""The fields that a result depends on. The lists of tasks and seeds are not among them: adding one reruns no other."""
READING = "long texts in parts, numbers in standard deviations"
"""How examples become rows with labels. It is part of ``rule``: results obtained differently are never compared."""


@section
class Transfer:
    """An entry of ``finetune.transfers``."""

    task: str
    """A section of ``examples``."""
    after: str
    """The task, one of ``finetune.tasks``, that is learned first."""


@section
class FeaturesConfig:
    """Section ``finetune.features``: models that are not fine-tuned. Their layers are mixed, and a small model on
    top is trained for each task (``plm_core/finetuning/features.py``)."""

    models: list[str]
    """The names of these models."""
    width: PositiveInt = 128
    """The cells of the LSTM over the mix, in each direction."""
    dropout: Probability = 0.5
    """The dropout of the mix."""
    learning_rate: PositiveFloat = 1e-3
    """The peak learning rate of what is trained, in place of ``training.optimizer.learning_rate``."""


@section
class Recipe:
    """Section ``finetune.training``; see ``LoopConfig`` for what is not explained here."""

    epochs: PositiveFloat
    """The number of passes over the training examples."""
    batch: PositiveInt
    """Examples per step."""
    optimizer: OptimizerConfig
    """The optimizer, without ``warmup_steps``, which follow from ``warmup``."""
    warmup: Probability = 0.1
    """The share of the steps in which the learning rate increases."""
    validations: PositiveInt = 1
    """How often per epoch the validation examples are predicted. The weights that do best on them are kept."""
    best_by: Literal["loss", "score"] = "loss"
    """What counts as best: the lowest loss, or the task's highest score. With few examples, predicting the most
    frequent class for every example may have the lowest loss."""
    backbone_dropout: Probability | None = None
    """The dropout of the pretrained model during fine-tuning; null: as in pretraining. The papers have 0.1."""
    accumulation: PositiveInt = 1
    precision: Precision = "float32"
    compile: bool = False
    """Whether to compile; examples are then padded to a few lengths."""
    deterministic: bool = False
    anomalies: AnomalyConfig = field(default_factory=AnomalyConfig)
    report_every: PositiveInt = 10

    def __post_init__(self) -> None:
        if self.optimizer.warmup_steps:
            raise ValueError("optimizer.warmup_steps: follows from warmup; expected it to be left out")
        self.loop(1, 1)

    def loop(self, epoch: int, seed: int) -> LoopConfig:
        """The loop for a task whose epoch has this many steps; every validation is followed by a snapshot."""
        steps = max(1, math.ceil(self.epochs * epoch))
        reports = min(self.report_every, max(1, round(epoch / self.validations)))
        between = max(1, round(epoch / self.validations / reports)) * reports
        return LoopConfig(
            seed=seed,
            steps=steps,
            batch=self.batch,
            optimizer=replace(self.optimizer, warmup_steps=int(self.warmup * steps)),
            accumulation=self.accumulation,
            precision=self.precision,
            compile=self.compile,
            deterministic=self.deterministic,
            anomalies=self.anomalies,
            report_every=reports,
            valid_every=between,
            snapshot_every=between,
        )


@section
class TextRecipe:
    """Section ``finetune.texts``: how answers that are texts are learned and written (``translation`` and
    ``summarization``). The defaults are those of Vaswani et al. 2017."""

    beams: PositiveInt = 4
    """How many texts are continued at a time; 1 for the likeliest token each time."""
    length_penalty: NonNegativeFloat = 0.6
    """Alpha of Wu et al. 2016, equation 14: the larger, the longer the answers; with 0 they are short."""
    label_smoothing: Probability = 0.1
    """The share of a target's probability that is spread over the vocabulary in training."""


@section
class FinetuneConfig:
    """Section ``finetune`` of the parameters."""

    tasks: list[str]
    """Names of sections of ``examples``; [] for none."""
    transfers: list[Transfer]
    """More tasks, which start from the model fine-tuned on another task; [] for none."""
    seeds: list[int]
    """Each task is learned once per seed, which sets the head's first weights, the examples' order and the dropout."""
    train_examples: PositiveInt | None
    """At most this many training examples per task; null for all."""
    heldout_examples: PositiveInt | None
    """At most this many validation and this many test examples per task; null for all."""
    dropout: Probability
    """The dropout before the head's linear layer."""
    auxiliary: NonNegativeFloat
    """Lambda of Radford et al. 2018, equation 5: the weight of the language model's loss on the examples, for causally
    pretrained models; 0 for none. The paper has 0.5."""
    lora: LoRAConfig | None
    """Train low-rank additions to the model's matrices (LoRA); null to train all weights. With LoRA, the embeddings of
    special tokens that causal pretraining never reads keep their random initial values."""
    training: Recipe
    """The training recipe, the same for every task."""
    texts: TextRecipe = field(default_factory=TextRecipe)
    """For tasks whose answers are texts."""
    features: FeaturesConfig | None = None
    """Use some models as features instead of training their weights, without ``auxiliary`` and ``lora``; null for
    none."""

    def __post_init__(self) -> None:
        every = [*self.tasks, *(transfer.task for transfer in self.transfers)]
        for transfer in self.transfers:
            if every.count(transfer.task) > 1:
                raise ValueError(f"transfers: {transfer.task} appears twice, here or in tasks; expected each task once")
            if transfer.after not in self.tasks:
                raise ValueError(f"transfers: found after: {transfer.after}; expected one of tasks")
        if self.features and self.training.compile:
            raise ValueError("training.compile: true; expected false with features, whose LSTM is not compiled")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: found {self.seeds}; expected at least one, and each once")

    @property
    def rule(self) -> str:
        """The digest of what a result depends on."""
        return digest(READING, *(getattr(self, name) for name in PARAMETERS))

    def measured(self, folders: Iterable[Path]) -> str:
        """The digest of ``rule`` and the training examples in each folder, for the column ``measured`` of evidence."""
        files = (file_of(folder, split) for folder in folders for split in ("train", "valid"))
        return digest(self.rule, *map(sha256_file, files))[:16]

    def features_of(self, name: str) -> FeaturesConfig | None:
        """How this model is used as features; None if it is fine-tuned."""
        return self.features if self.features and name in self.features.models else None

    def learned_before(self, task: str) -> str | None:
        """The task that is learned before this one, if any."""
        return next((transfer.after for transfer in self.transfers if transfer.task == task), None)
