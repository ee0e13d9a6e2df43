"""Losses and gradients that tell of a model that breaks, and what is done about them. Used by the loop."""

import math
import statistics
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from plm_core.config import section


@section
class AnomalyConfig:
    """Section ``training.anomalies``."""

    policy: Literal["stop", "skip", "rollback"] = "stop"
    """``stop`` ends the training. ``skip`` leaves the update of that step out (as SkipStepOptimizer of OLMo-core does).
    ``rollback`` goes back to the last periodic snapshot and passes over the batches read since (Chowdhery et al. 2022,
    section 5.1). Both look at each step before its update, for which a GPU is waited for; ``stop`` looks at reports."""
    sigmas: PositiveFloat | None = None
    """A loss or gradient norm so many standard deviations above the mean of the steps before is an anomaly too; null:
    only one that is not finite. OLMo-core takes 6, and a window of 128."""
    window: Annotated[int, Field(ge=4)] = 128
    """How many steps before are looked at; none is judged by fewer than half of them."""
    limit: NonNegativeInt = 10
    """So many anomalies are put up with in a training; the next one ends it."""


def judged(loss: float, norm: float, recent: list[tuple[float, float]], config: AnomalyConfig) -> str | None:
    """What is wrong with a step's mean loss or gradient norm; None when nothing is.

    ``recent`` are the losses and norms of the steps before, the newest last; a step with nothing wrong is added.
    """
    if not math.isfinite(loss) or not math.isfinite(norm):
        return f"the loss is {loss} and the gradient norm {norm}"
    if config.sigmas is not None and len(recent) >= config.window // 2:
        for name, value, before in zip(("loss", "gradient norm"), (loss, norm), zip(*recent, strict=True), strict=True):
            mean, deviation = statistics.fmean(before), statistics.stdev(before)
            if value > mean + config.sigmas * deviation:
                return (
                    f"the {name} is {value:.4g}, more than {config.sigmas:g} deviations ({deviation:.3g}) above the "
                    f"mean {mean:.4g} of the {len(before)} steps before"
                )
    recent.append((loss, norm))
    del recent[: -config.window]
    return None
