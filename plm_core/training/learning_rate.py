"""The learning rate of a run, and when the run ends: linear warm-up over steps, then decay over steps or over time.

Sources: Vaswani et al. 2017, section 5.3 (inverse square root), Goyal et al. 2017, section 2.2 (warm-up), Loshchilov
and Hutter 2017 (cosine), Hu et al. 2024, "MiniCPM", section 4 (warm-up, stable, decay), Hägele et al. 2024, "Scaling
Laws and Compute-Optimal Training Beyond Fixed Training Durations", section 3 (the form of its decay).
"""

import math
from time import perf_counter

from plm_core.training.callbacks import Callback
from plm_core.training.training_config import LoopConfig, OptimizerConfig


def progress_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """The progress of ``step`` (from 0) of ``steps`` after the warm-up: 0 at its first step, 1 at its last; negative
    in the warm-up."""
    return (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)


def learning_rate_at(step: int, progress: float, config: OptimizerConfig) -> float:
    """The learning rate of ``step`` (from 0), with the share ``progress`` of the decay done, by steps or by time.

    At a progress of 0 it is the peak; from 1 on, the final rate. During the warm-up, ``progress`` has no effect.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "inverse_sqrt":  # Vaswani et al. 2017, equation 3; the number of steps has no effect
        return config.learning_rate * math.sqrt(max(1, config.warmup_steps) / (step + 1))
    progress = min(1.0, max(0.0, progress))
    if config.schedule == "cosine":
        height = 0.5 * (1 + math.cos(math.pi * progress))
    elif config.schedule == "linear":
        height = 1 - progress
    else:
        # 1 - sqrt is better than a linear decay of the same length (Hägele et al. 2024, section 3).
        decayed = max(0.0, progress - (1 - config.decay_fraction)) / config.decay_fraction
        height = 1 - math.sqrt(min(1.0, decayed))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * height)


class TimeBudget(Callback):
    """``training.minutes``: the time that a run has taken, interruptions excluded; without it, only steps count."""

    saved = ("seconds", "warm")

    def __init__(self, config: LoopConfig) -> None:
        self._config = config
        self._begun = perf_counter()
        self.seconds = 0.0
        """How long the run has taken; 0 unless it has a time budget."""
        self.warm = 0.0
        """How many of these seconds the warm-up took."""

    def start(self) -> None:
        """Continue from the seconds of a snapshot, if there are any."""
        self._begun = perf_counter() - self.seconds

    def elapsed(self) -> float:
        """Seconds so far; 0 without a budget, because they are part of the state and differ between equal runs."""
        return 0.0 if self._config.minutes is None else perf_counter() - self._begun

    def update(self, step: int, seconds: float) -> None:
        """Record that the first ``step`` steps took so many seconds."""
        self.seconds = seconds
        # The decay over time begins after the warm-up, which is counted in steps.
        if step <= self._config.optimizer.warmup_steps:
            self.warm = seconds

    def ended(self, step: int) -> bool:
        """Whether no steps or no time are left after ``step`` steps."""
        budget = self._config.minutes
        return step == self._config.steps or (budget is not None and self.seconds >= 60 * budget)

    def rate(self, step: int) -> float:
        """The learning rate of ``step`` (from 0), which is the next one."""
        config = self._config
        progress = progress_at(step, config.steps, config.optimizer)
        # Whichever is nearer to its end, the steps or the time.
        if config.minutes is not None:
            progress = max(progress, (self.seconds - self.warm) / max(1e-9, 60 * config.minutes - self.warm))
        return learning_rate_at(step, progress, config.optimizer)
