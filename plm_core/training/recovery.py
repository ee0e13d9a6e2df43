"""The reaction to an anomaly: the run ends, continues, or rolls back to a snapshot. Used by the loop."""

import warnings

from plm_core.config import UserError
from plm_core.training.anomalies import judged
from plm_core.training.config import LoopConfig
from plm_core.training.ranks import Ranks
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import State, Unfit


class Diverged(UserError):
    """The loss or the gradient is not finite or spikes, more often than is tolerated."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch
        """The step (from 0) of ``batch_at`` that the batch belongs to."""


def tolerate(
    wrong: str, step: int, batch: int, state: State, snapshots: Snapshots, ranks: Ranks, weights: bool = False
) -> None:
    """Record an anomaly at a step (from 0) that read ``batch``.

    With ``weights`` the weights themselves are broken, so skipping an update does not help.

    Raises:
        Diverged: the policy tolerates no anomalies, or no more of them.
    """
    config = state.config
    policy, limit = config.anomalies.policy, config.anomalies.limit
    state.anomalies.append(step + 1)
    # Skipping an update does not repair weights whose validation is broken.
    if policy == "stop" or len(state.anomalies) > limit or (weights and policy == "skip"):
        rate, warmup = config.optimizer.learning_rate, config.optimizer.warmup_steps
        good = snapshots.newest()
        raise Diverged(
            f"optimizer.learning_rate: at step {step + 1} {wrong}"
            + (f", after {limit} tolerated anomalies" if policy != "stop" and not weights else "")
            + f"; expected a learning rate below {rate} or a warm-up longer than {warmup} steps; "
            f"{f'the last good snapshot is {good}' if good else 'there is no snapshot'}",
            batch,
        )
    done = "its update is left out" if policy == "skip" else "rolling back to the last periodic snapshot"
    if ranks.first:  # the others have seen the same
        warnings.warn(f"at step {step + 1} {wrong}: {done} ({len(state.anomalies)} of {limit})", stacklevel=2)


def look_at_losses(state: State, snapshots: Snapshots, ranks: Ranks, alone: bool = False) -> None:
    """Check the steps since the last report, whose numbers are settled; with ``alone``, not against earlier steps.

    Raises:
        Diverged: as ``tolerate``.
    """
    for step, loss, norm in state.losses():
        wrong = judged(loss, norm, [] if alone else state.recent, state.config.anomalies)
        if wrong is not None:
            # Under ``stop`` no batch was skipped: the batch is the step.
            tolerate(wrong, step, step, state, snapshots, ranks)


def go_back(state: State, snapshots: Snapshots, config: LoopConfig) -> None:
    """Roll back to the last periodic snapshot, and skip the batches read since.

    Raises:
        Unfit: there is no such snapshot.
    """
    # The snapshot is older, so restoring it would lose these.
    anomalies = state.anomalies
    rollbacks = state.rollbacks
    step = anomalies[-1]
    parts = len(state.carries)
    saved = snapshots.find(at_most=step - 1, every=config.snapshot_every)
    if saved is None:
        raise Unfit(f"snapshot_every: no snapshot of a step up to {step - 1} in {snapshots.folder} to roll back to")
    state.restore(saved)
    snapshots.remove_after(state.step)
    state.anomalies = anomalies
    state.rollbacks = [*rollbacks, (state.step, step - state.step)]
    # A model's memory holds text that is now skipped.
    state.carries = [None] * max(parts, len(state.carries))
