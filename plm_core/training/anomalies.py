"""Losses and gradients that show that training is diverging: the run ends, continues, or rolls back to a snapshot.

Used by the loop.
"""

import math
import statistics
import warnings

from plm_core.config import UserError
from plm_core.training.config import AnomalyConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import State, Unfit


class Diverged(UserError):
    """The loss or the gradient is not finite or spikes, more often than is tolerated."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch
        """The step (from 0) of ``batch_at`` that the batch belongs to."""


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


def tolerate(wrong: str, step: int, batch: int, state: State, snapshots: Snapshots, weights: bool = False) -> None:
    """Record an anomaly at a step (from 0) that read ``batch``; with ``weights`` the weights themselves are broken.

    Raises:
        Diverged: the policy tolerates no anomalies, or no more of them.
    """
    policy, limit = state.config.anomalies.policy, state.config.anomalies.limit
    state.anomalies.append(step + 1)
    # Skipping an update does not repair weights whose validation is broken.
    if policy == "stop" or len(state.anomalies) > limit or (weights and policy == "skip"):
        rate, warmup = state.config.optimizer.learning_rate, state.config.optimizer.warmup_steps
        good = snapshots.newest()
        raise Diverged(
            f"optimizer.learning_rate: at step {step + 1} {wrong}"
            + (f", after {limit} tolerated anomalies" if policy != "stop" and not weights else "")
            + f"; expected a learning rate below {rate} or a warm-up longer than {warmup} steps; "
            f"{f'the last good snapshot is {good}' if good else 'there is no snapshot'}",
            batch,
        )
    done = "its update is left out" if policy == "skip" else "rolling back to the last periodic snapshot"
    if state.ranks.first:  # the others have seen the same
        warnings.warn(f"at step {step + 1} {wrong}: {done} ({len(state.anomalies)} of {limit})", stacklevel=2)


def check_losses(state: State, snapshots: Snapshots, alone: bool = False) -> None:
    """Check the steps since the last report, whose numbers are settled; with ``alone``, not against earlier steps.

    Raises:
        Diverged: as ``tolerate``.
    """
    for step, loss, norm in state.losses():
        if wrong := judged(loss, norm, [] if alone else state.recent, state.config.anomalies):
            # Under ``stop`` no batch was skipped: the batch is the step.
            tolerate(wrong, step, step, state, snapshots)


def go_back(state: State, snapshots: Snapshots) -> None:
    """Roll back to the last periodic snapshot, and skip the batches read since.

    Raises:
        Unfit: there is no such snapshot.
    """
    # The snapshot is older, so restoring it would lose these.
    anomalies, rollbacks = state.anomalies, state.rollbacks
    parts = len(state.carries)
    step = anomalies[-1]
    saved = snapshots.find(at_most=step - 1, every=state.config.snapshot_every)
    if saved is None:
        raise Unfit(f"snapshot_every: no snapshot of a step up to {step - 1} in {snapshots.folder} to roll back to")
    state.restore(saved)
    snapshots.remove_after(state.step)
    state.anomalies = anomalies
    state.rollbacks = [*rollbacks, (state.step, step - state.step)]
    # A model's memory holds text that is now skipped.
    state.carries = [None] * max(parts, len(state.carries))
