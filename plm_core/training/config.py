"""What a training does besides its model and its objective: section ``training`` of the parameters."""

from dataclasses import dataclass, field

from plm_core.text.views import stream_seed
from plm_core.training.anomalies import AnomalyConfig
from plm_core.training.device import Precision
from plm_core.training.optimizer import OptimizerConfig


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
