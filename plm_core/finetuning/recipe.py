"""The recipe of fine-tuning: section ``finetune.training``. In epochs and shares, because tasks differ in size."""

import math
from dataclasses import field, replace
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from plm_core.config import Probability, section
from plm_core.training.config import AnomalyConfig, LoopConfig, OptimizerConfig, Precision


@section
class Recipe:
    """Section ``finetune.training``; see ``LoopConfig`` for what is not explained here."""

    epochs: PositiveFloat
    """How often the training examples are read."""
    batch: PositiveInt
    """Examples per step."""
    optimizer: OptimizerConfig
    """The optimizer, without ``warmup_steps``, which follow from ``warmup``."""
    warmup: Probability = 0.1
    """The share of the steps in which the learning rate increases."""
    validations: PositiveInt = 1
    """How often per epoch the validation examples are predicted. The weights that do best on them are kept."""
    best_by: Literal["loss", "score"] = "loss"
    """What is best: the lowest loss, or the task's highest score. With few examples, predicting the most frequent class
    for every example may have the lowest loss."""
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
