"""Losses and gradients that show that training is diverging, and what is done about them. Used by the loop."""

import math
import statistics
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from plm_core.config import section


@section
class AnomalyConfig:
    """Section ``training.anomalies``."""

    policy: Literal["stop", "skip", "rollback"] = "stop"
    """``stop`` ends the run. ``skip`` leaves out the update of that step (as SkipStepOptimizer of OLMo-core does).
    ``rollback`` returns to the last periodic snapshot and skips the batches read since (Chowdhery et al. 2022, section
    5.1). Both check each step before its update, which waits for the GPU; ``stop`` checks at reports."""
    sigmas: PositiveFloat | None = None
    """A loss or gradient norm this many standard deviations above the mean of the previous steps is an anomaly too;
    null: only one that is not finite. OLMo-core uses 6, and a window of 128."""
    window: Annotated[int, Field(ge=4)] = 128
    """The number of previous steps to compare with; at least half of them are needed."""
    limit: NonNegativeInt = 10
    """This many anomalies are tolerated in a run; the next one ends it."""


def judged(loss: float, norm: float, recent: list[tuple[float, float]], config: AnomalyConfig) -> str | None:
    """What is wrong with a step's mean loss or gradient norm; None if nothing is.

    ``recent`` holds the losses and norms of the previous steps, the newest last; a step with nothing wrong is added.
    """
    if not math.isfinite(loss) or not math.isfinite(norm):
        return f"the loss is {loss} and the gradient norm {norm}"
    if config.sigmas is not None and len(recent) >= config.window // 2:
        for name, value, before in zip(("loss", "gradient norm"), (loss, norm), zip(*recent, strict=True), strict=True):
            mean, deviation = statistics.fmean(before), statistics.stdev(before)
            if value > mean + config.sigmas * deviation:
                return (
                    f"the {name} is {value:.4g}, more than {config.sigmas:g} standard deviations ({deviation:.3g}) "
                    f"above the mean {mean:.4g} of the previous {len(before)} steps"
                )
    recent.append((loss, norm))
    del recent[: -config.window]
    return None
