"""The learning rate: linear warm-up in steps, then a decay over the progress of a run. Used by the loop.

Sources: Goyal et al. 2017, section 2.2 (warm-up), Loshchilov and Hutter 2017 (cosine), Hu et al. 2024, "MiniCPM",
section 4 (warm-up, stable, decay), Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed
Training Durations", section 3 (the form of its decay).
"""

import math

from plm_core.training.config import OptimizerConfig


def progress_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """The progress of ``step`` (from 0) of ``steps`` after the warm-up: 0 at its first step, 1 at its last; negative
    in the warm-up."""
    return (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)


def learning_rate_at(step: int, progress: float, config: OptimizerConfig) -> float:
    """The learning rate of ``step`` (from 0): linear warm-up, then the schedule's decay to the final fraction.

    ``progress`` is the share of the decay that is done, in steps (``progress_at``) or in time: 0 is the peak, and from
    1 on the rate is the final one. It has no effect in the warm-up.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
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
