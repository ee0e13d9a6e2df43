"""What a training does besides its model and its objective: section ``training`` of the parameters."""

from dataclasses import dataclass, field
from typing import Literal

from plm_core.text.samplers import stream_seed
from plm_core.training.anomalies import AnomalyConfig
from plm_core.training.precision import Precision

DECAY_FRACTION = 0.2
"""Beyond it a longer decay gains little (Hägele et al. 2024, section 3)."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Section ``optimizer`` of a training."""

    learning_rate: float
    """The peak learning rate, for Muon's updates too: they are scaled to the size of AdamW's."""
    warmup_steps: int = 0
    """Steps of linear growth from 0 to the peak."""
    name: Literal["adamw", "muon"] = "adamw"
    """``muon``: Muon for the matrices of the blocks (``hidden_matrices``), AdamW for the rest."""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """How the learning rate falls after the warm-up (``schedule.learning_rate_at``)."""
    decay_fraction: float = DECAY_FRACTION
    """The last share of what follows the warm-up, in which the rate of ``wsd`` falls; only ``wsd`` has one."""
    final_fraction: float = 0.1
    """The learning rate of the last step, as a fraction of the peak."""
    weight_decay: float = 0.1
    """Decoupled decay, on matrices and embeddings only."""
    beta_1: float = 0.9
    """Adam's decay of the mean of gradients."""
    beta_2: float = 0.95
    """Adam's decay of the mean of squared gradients (0.95: Brown et al. 2020, appendix B)."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    clip_norm: float = 1.0
    """The gradient is scaled down to this 2-norm over all parameters when it is longer."""
    layer_decay: float = 1.0
    """The rate of each layer, as a fraction of the next layer's: below 1, fine-tuning changes the lower layers less
    (Howard and Ruder 2018, section 3.2). See ``rate_scales``."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)}; expected above 0")
        for name in ("beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 0 and below 1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay: {self.layer_decay}; expected above 0 and at most 1")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction: {self.final_fraction}; expected between 0 and 1")
        if not 0 < self.decay_fraction <= 1:
            raise ValueError(f"decay_fraction: {self.decay_fraction}; expected above 0 and at most 1")
        if self.schedule != "wsd" and self.decay_fraction != DECAY_FRACTION:
            raise ValueError(f"decay_fraction: schedule {self.schedule} has none; expected schedule: wsd")
        if not (self.warmup_steps >= 0 and self.weight_decay >= 0):
            raise ValueError(
                f"warmup_steps: {self.warmup_steps}, weight_decay: {self.weight_decay}; expected at least 0"
            )


@dataclass(frozen=True)
class LoopConfig:
    """Section ``training``."""

    seed: int
    """Draws the initial weights, the order of the data and the dropout masks."""
    steps: int
    """Updates of the weights."""
    batch: int
    """Rows of the global batch, whatever the accumulation and the number of processes."""
    optimizer: OptimizerConfig
    minutes: float | None = None
    """A budget of time: the learning rate falls with the clock, or with the steps where they end sooner, and the
    training ends when the time is over. It counts from the first step, validation and snapshots included, and goes on
    after an interruption. How far such a training comes is the machine's doing: its result is not reproducible."""
    accumulation: int = 1
    """Into how many parts a batch is cut to save memory; must divide ``batch``. Several processes share them."""
    precision: Precision = "float32"
    """Of the forward pass; ``bfloat16`` falls back to ``float32`` where the hardware lacks it."""
    compile: bool = False
    """Compile the loss function (torch.compile): faster steps after a first one that takes half a minute, or a few
    seconds when the same was compiled before. A decision, for its sums are rounded otherwise. Validation is not
    compiled. Falls back to false, with a warning, on a machine without a C++ compiler and for sharded weights."""
    deterministic: bool = True
    """On a GPU, only kernels that repeat bit by bit, of which some are slower. On a CPU they always do."""
    anomalies: AnomalyConfig = field(default_factory=AnomalyConfig)
    """What happens when a loss is not finite, or far above those before it."""
    report_every: int = 10
    """Steps between two reports of the training loss."""
    valid_every: int = 100
    """Steps between two validations; a multiple of ``report_every``. The last step is always validated."""
    snapshot_every: int = 100
    """Steps between two snapshots; a multiple of ``report_every``."""
    keep_snapshots: int = 2
    """How many snapshots are kept, the newest; each holds the best weights so far."""

    @property
    def order_seed(self) -> int:
        """The seed of the order of the data: with a step, all that a batch depends on."""
        return stream_seed(self.seed, "order")

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "accumulation", "report_every", "valid_every", "snapshot_every", "keep_snapshots")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 1")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes: {self.minutes}; expected above 0, or null for no budget of time")
        if self.batch % self.accumulation:
            raise ValueError(f"accumulation: {self.accumulation} does not divide batch {self.batch}")
        for name in ("valid_every", "snapshot_every"):
            if getattr(self, name) % self.report_every:
                raise ValueError(f"{name}: {getattr(self, name)} is not a multiple of report_every {self.report_every}")
        if self.optimizer.warmup_steps >= self.steps:
            raise ValueError(
                f"optimizer.warmup_steps: {self.optimizer.warmup_steps}; expected fewer than the {self.steps} steps"
            )
