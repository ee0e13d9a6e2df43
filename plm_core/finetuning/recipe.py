"""How a fine-tuning trains: section ``finetune.training``. Epochs and shares, for tasks are of very different sizes."""

import math
from dataclasses import field, replace
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from plm_core.config import Probability, section
from plm_core.training.anomalies import AnomalyConfig
from plm_core.training.config import LoopConfig, OptimizerConfig
from plm_core.training.precision import Precision


@section
class Recipe:
    """Section ``finetune.training``; see ``LoopConfig`` for what is not explained here."""

    epochs: PositiveFloat
    """How often the training examples are read."""
    batch: PositiveInt
    """Examples a step."""
    optimizer: OptimizerConfig
    """Without ``warmup_steps``, which follow from ``warmup``."""
    warmup: Probability = 0.1
    """The share of the steps in which the learning rate grows."""
    validations: PositiveInt = 1
    """How often in an epoch the validation examples are predicted. The weights that are best at them are kept."""
    best_by: Literal["loss", "score"] = "loss"
    """Best by the least loss, or by the task's score: where examples are few, the least loss may be that of answering
    the commonest class to all."""
    backbone_dropout: Probability | None = None
    """Of the pretrained model while it is fine-tuned; null: what it was pretrained with. The papers have 0.1."""
    accumulation: PositiveInt = 1
    precision: Precision = "float32"
    compile: bool = False
    """With it, examples are padded to a few lengths."""
    deterministic: bool = False
    anomalies: AnomalyConfig = field(default_factory=AnomalyConfig)
    report_every: PositiveInt = 10

    def __post_init__(self) -> None:
        if self.optimizer.warmup_steps:
            raise ValueError("optimizer.warmup_steps: follows from warmup; expected it to be left out")
        self.loop(1, 1)

    def loop(self, epoch: int, seed: int) -> LoopConfig:
        """The loop for a task whose epoch has so many steps; a snapshot stands behind every validation."""
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
