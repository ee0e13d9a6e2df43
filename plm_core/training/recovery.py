"""What a training does about an anomaly: it ends, goes on, or goes back to a snapshot. Used by the loop."""

import warnings

from plm_core.config import UserError
from plm_core.training.anomalies import judged
from plm_core.training.config import LoopConfig
from plm_core.training.ranks import Ranks
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import State, Unfit


class Diverged(UserError):
    """The loss or the gradient is not finite or far above those before, more often than is put up with."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch
        """The step (from 0) of ``batch_at`` whose batch it was."""


def tolerate(
    wrong: str, step: int, batch: int, state: State, snapshots: Snapshots, ranks: Ranks, weights: bool = False
) -> None:
    """Take note of an anomaly at a step (from 0) that read ``batch``; ``weights``: no skipped update mends it.

    Raises:
        Diverged: the policy puts up with none, or with no more.
    """
    config = state.config
    policy, limit = config.anomalies.policy, config.anomalies.limit
    state.anomalies.append(step + 1)
    # No update that is left out mends weights whose validation is broken.
    if policy == "stop" or len(state.anomalies) > limit or (weights and policy == "skip"):
        rate, warmup = config.optimizer.learning_rate, config.optimizer.warmup_steps
        good = snapshots.newest()
        raise Diverged(
            f"optimizer.learning_rate: at step {step + 1} {wrong}"
            + (f", after {limit} anomalies that were put up with" if policy != "stop" and not weights else "")
            + f"; expected a learning rate below {rate} or a warm-up longer than {warmup} steps; "
            f"{f'the last good snapshot is {good}' if good else 'there is no snapshot'}",
            batch,
        )
    done = "its update is left out" if policy == "skip" else "back to the last periodic snapshot, past its batches"
    if ranks.first:  # the others have seen the same
        warnings.warn(f"at step {step + 1} {wrong}: {done} ({len(state.anomalies)} of {limit})", stacklevel=2)


def look_at_losses(state: State, snapshots: Snapshots, ranks: Ranks, alone: bool = False) -> None:
    """Judge the steps since the last report, whose numbers are settled; ``alone``: by none before them.

    Raises:
        Diverged: as ``tolerate``.
    """
    for step, loss, norm in state.losses():
        wrong = judged(loss, norm, [] if alone else state.recent, state.config.anomalies)
        if wrong is not None:
            tolerate(wrong, step, step, state, snapshots, ranks)


def go_back(state: State, snapshots: Snapshots, config: LoopConfig) -> None:
    """To the last periodic snapshot; the batches read since are passed over.

    Raises:
        Unfit: there is none.
    """
    # Restoring forgets them: the snapshot is from before.
    anomalies = state.anomalies
    rollbacks = state.rollbacks
    step = anomalies[-1]
    parts = len(state.carries)
    saved = snapshots.find(at_most=step - 1, every=config.snapshot_every)
    if saved is None:
        raise Unfit(f"snapshot_every: no snapshot of a step up to {step - 1} in {snapshots.folder} to go back to")
    state.restore(saved)
    snapshots.remove_after(state.step)
    state.anomalies = anomalies
    state.rollbacks = [*rollbacks, (state.step, step - state.step)]
    # What a model with memory carries is of the text that is passed over.
    state.carries = [None] * max(parts, len(state.carries))
