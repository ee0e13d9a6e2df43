"""Section ``training`` of the parameters: everything about a training run except its model and its objective."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from plm_core.config import PositiveShare, Probability, Share, section
from plm_core.text.samplers import stream_seed

Precision = Literal["float32", "bfloat16"]
DECAY_FRACTION = 0.2
"""A longer decay gains little (Hägele et al. 2024, section 3)."""
MOMENTUM = 0.95
"""Jordan et al. 2024; Liu et al. 2025, section 2.1."""


@section
class OptimizerConfig:
    """Section ``training.optimizer``."""

    learning_rate: PositiveFloat
    """The peak learning rate, also for Muon, whose updates are scaled to the size of AdamW's."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear growth from 0 to the peak."""
    name: Literal["adamw", "muon"] = "adamw"
    """``muon``: Muon for the matrices of the blocks (``hidden_matrices``), AdamW for the rest."""
    schedule: Literal["cosine", "linear", "wsd", "inverse_sqrt"] = "cosine"
    """How the learning rate falls after the warm-up (``learning_rate_at``)."""
    decay_fraction: PositiveShare = DECAY_FRACTION
    """The final share of the steps after the warm-up, during which the rate falls; only for ``wsd``."""
    final_fraction: Share = 0.1
    """The learning rate of the last step, as a fraction of the peak."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled decay, on matrices and embeddings only."""
    momentum: Probability = MOMENTUM
    """Muon's Nesterov momentum; only for ``muon``."""
    beta_1: Probability = 0.9
    """Adam's decay of the mean of gradients."""
    beta_2: Probability = 0.95
    """Adam's decay of the mean of squared gradients (0.95: Brown et al. 2020, appendix B)."""
    epsilon: PositiveFloat = 1e-8
    """Adam's epsilon."""
    clip_norm: PositiveFloat = 1.0
    """The largest 2-norm of the gradient over all parameters; a longer one is scaled down to it."""
    head_steps: NonNegativeInt = 0
    """The number of first steps that train only what follows the blocks, such as a new head on a published model, whose
    random weights would disturb the rest (Howard and Ruder 2018, section 3.3). See ``above_blocks``."""
    layer_decay: PositiveShare = 1.0
    """Each layer's rate as a fraction of the rate of the layer above: below 1, fine-tuning changes the lower layers
    less (Howard and Ruder 2018, section 3.2). See ``rate_scales``."""

    def __post_init__(self) -> None:
        if self.name != "muon" and self.momentum != MOMENTUM:
            raise ValueError(f"momentum: {self.name} has none; expected name: muon")
        if self.schedule != "wsd" and self.decay_fraction != DECAY_FRACTION:
            raise ValueError(f"decay_fraction: schedule {self.schedule} has none; expected schedule: wsd")


@section
class LoRAConfig:
    """Section ``lora`` of fine-tuning and of a pretraining run with a ``start``."""

    rank: PositiveInt
    """The rank of the products that are added to the matrices."""
    alpha: PositiveFloat
    """The products are scaled by alpha / rank."""
    targets: Annotated[tuple[Literal["attention", "feed_forward"], ...], Field(min_length=1)] = ("attention",)
    """The layers whose matrices are adapted; the paper adapts the attention's."""


@section
class DistillationConfig:
    """What a student learns from: the losses of ``plm_core.training.distillation`` and the weight of each. The defaults
    are DistilBERT's 5, 2 and 1, divided by their sum so that ``clip_norm`` keeps its meaning."""

    temperature: PositiveFloat = 2.0
    """Both models' logits are divided by it before they are compared (Hinton et al. 2015, section 2)."""
    soft: NonNegativeFloat = 0.625
    """Soft targets: the divergence of the student's predictions from the teacher's, times the squared temperature."""
    task: NonNegativeFloat = 0.25
    """The objective's own loss."""
    cosine: NonNegativeFloat = 0.125
    """One minus the cosine between the two models' last hidden states, which must be equally wide."""
    relations: NonNegativeFloat = 0.0
    """MiniLM's divergence of the relations of queries, keys and values in the last layer, for a masked model, also one
    that is narrower than its teacher."""
    relation_heads: PositiveInt = 12
    """Into how many parts queries, keys and values are divided for that, whatever the models' ``heads``; must divide
    both widths."""

    def __post_init__(self) -> None:
        if not (self.soft or self.cosine or self.relations):
            raise ValueError("soft, cosine, relations: all are 0; expected one that learns from the teacher")


@section
class AnomalyConfig:
    """Section ``training.anomalies``."""

    policy: Literal["stop", "skip", "rollback"] = "stop"
    """``stop`` ends the run. ``skip`` leaves out the update of that step (as SkipStepOptimizer of OLMo-core does).
    ``rollback`` returns to the last periodic snapshot and skips the batches read since (Chowdhery et al. 2022, section
    5.1). Both check each step before its update, which waits for the GPU; ``stop`` checks at reports."""
    sigmas: PositiveFloat | None = None
    """A loss or gradient norm this many standard deviations above the mean of the previous steps is also an anomaly;
    null: only one that is not finite. OLMo-core uses 6 and a window of 128."""
    window: Annotated[int, Field(ge=4)] = 128
    """The number of previous steps to compare with; at least half of them are needed."""
    limit: NonNegativeInt = 10
    """This many anomalies are tolerated in a run; the next one ends it."""


@section
class LoopConfig:
    """Section ``training``."""

    seed: int
    """The seed of the initial weights, the order of the data and the dropout masks."""
    steps: NonNegativeInt
    """The number of weight updates; 0, only with a ``start``, evaluates that model as it is."""
    batch: PositiveInt
    """The rows of the global batch, independent of accumulation and the number of processes."""
    optimizer: OptimizerConfig
    """The optimizer and its learning rate."""
    minutes: PositiveFloat | None = None
    """A time budget: the learning rate falls with the clock, or with the steps if they end sooner, and the run ends
    when time is up. Time counts from the first step, validation and snapshots included, and continues after an
    interruption. How far such a run gets depends on the machine, so its result is not reproducible."""
    accumulation: PositiveInt = 1
    """Gradient accumulation: into how many micro-batches a batch is split to save memory; must divide ``batch``.
    Several processes divide the micro-batches among themselves."""
    precision: Precision = "float32"
    """The precision of the forward pass; ``bfloat16`` falls back to ``float32`` if the hardware lacks it."""
    compile: bool = False
    """Compile the loss function (torch.compile): faster steps after a first one that takes half a minute (one or two
    minutes on a GPU), or a few seconds if the same code was compiled before. It is a parameter because it changes
    rounding. Validation is not compiled. Falls back to false, with a warning, on a machine without a C++ compiler. If
    the weights are sharded, only the blocks are compiled, one by one."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each block, and recompute the rest in the backward pass (Chen et al. 2016): the same
    results with far less memory, in steps that take about a third longer."""
    deterministic: bool = False
    """On a GPU, use only bitwise reproducible kernels, some of which are slower. On a CPU they always are."""
    anomalies: AnomalyConfig = field(default_factory=AnomalyConfig)
    """What happens when a loss is not finite or spikes."""
    report_every: PositiveInt = 10
    """Steps between two reports of the training loss."""
    valid_every: PositiveInt = 100
    """Steps between two validations; a multiple of ``report_every``. The last step is always validated."""
    snapshot_every: PositiveInt = 100
    """Steps between two snapshots; a multiple of ``report_every``."""
    keep_snapshots: PositiveInt = 2
    """How many of the newest snapshots are kept; each holds the best weights so far."""

    @property
    def order_seed(self) -> int:
        """The seed of the order of the data: a batch depends only on this and the step."""
        return stream_seed(self.seed, "order")

    def __post_init__(self) -> None:
        if self.batch % self.accumulation:
            raise ValueError(f"accumulation: {self.accumulation} does not divide batch {self.batch}")
        for name in ("valid_every", "snapshot_every"):
            if getattr(self, name) % self.report_every:
                raise ValueError(f"{name}: {getattr(self, name)} is not a multiple of report_every {self.report_every}")
        if self.steps and self.optimizer.warmup_steps >= self.steps:
            raise ValueError(
                f"optimizer.warmup_steps: {self.optimizer.warmup_steps}; expected fewer than the {self.steps} steps"
            )
