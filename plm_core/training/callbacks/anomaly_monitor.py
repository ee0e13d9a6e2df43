"""Detects losses and gradients that suggest divergence: the run ends, continues, or rolls back to a snapshot."""

import math
import statistics
import warnings
from collections.abc import Iterable

from torch import Tensor

from plm_core.config import UserError
from plm_core.training.callbacks import Callback
from plm_core.training.ranks import Ranks
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig


class Diverged(UserError):
    """The loss or the gradient was not finite, or spiked, more often than is tolerated."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch
        """The step (from 0) of ``batch_at`` that the batch belongs to."""


class AnomalyMonitor(Callback):
    """``training.anomalies``: compares each step with those before it, and counts anomalies."""

    saved = ("recent", "anomalies", "rollbacks")

    def __init__(self, config: LoopConfig, ranks: Ranks, snapshots: Snapshots) -> None:
        self._config, self._ranks, self._snapshots = config, ranks, snapshots
        self.recent: list[tuple[float, float]] = []
        """The losses and gradient norms that the next step is compared with."""
        self.anomalies: list[int] = []
        """The steps (from 1) at which something was wrong."""
        self.rollbacks: list[tuple[int, int]] = []
        """Pairs of a step (from 0) and the number of additional batches that are skipped from there on."""

    def batch(self, step: int) -> int:
        """The data index (from 0) of the batch that ``step`` (from 0) reads."""
        return step + sum(passed for begin, passed in self.rollbacks if step >= begin)

    def before_update(self, nll: Tensor, norm: Tensor, num_targets: int) -> str | None:
        """What is wrong with this gradient; ``stop`` checks only at reports, so that no step waits for the GPU."""
        if self._config.anomalies.policy == "stop":
            return None
        loss = float(self._ranks.sum(nll.double().cpu())) / num_targets
        return self.judge(loss, self._ranks.broadcast(float(norm)), self.recent)

    def check(self, steps: Iterable[tuple[int, float, float]], alone: bool = False) -> None:
        """Check completed updates, given as step (from 0), mean loss and gradient norm; with ``alone``, each without
        comparing it with earlier ones.

        Raises:
            Diverged: as ``tolerate``.
        """
        for step, loss, norm in steps:
            if wrong := self.judge(loss, norm, [] if alone else self.recent):
                # Under ``stop`` no batch was skipped: the batch is the step.
                self.tolerate(wrong, step, step)

    def judge(self, loss: float, norm: float, recent: list[tuple[float, float]]) -> str | None:
        """What is wrong with a step's mean loss or gradient norm, compared with the ``recent`` ones; None if nothing
        is, and the step joins them."""
        config = self._config.anomalies
        if not math.isfinite(loss) or not math.isfinite(norm):
            return f"the loss is {loss} and the gradient norm {norm}"
        if config.sigmas is not None and len(recent) >= config.window // 2:
            losses, norms = zip(*recent, strict=True)
            for name, value, before in (("loss", loss, losses), ("gradient norm", norm, norms)):
                mean, deviation = statistics.fmean(before), statistics.stdev(before)
                if value > mean + config.sigmas * deviation:
                    return (
                        f"the {name} is {value:.4g}, more than {config.sigmas:g} standard deviations ({deviation:.3g}) "
                        f"above the mean {mean:.4g} of the previous {len(before)} steps"
                    )
        recent.append((loss, norm))
        del recent[: -config.window]
        return None

    def tolerate(self, wrong: str, step: int, batch: int, weights: bool = False) -> None:
        """Record an anomaly at a step (from 0) that read ``batch``; with ``weights`` the weights themselves are broken.

        Raises:
            Diverged: the policy tolerates no anomalies, or no more of them.
        """
        policy, limit = self._config.anomalies.policy, self._config.anomalies.limit
        self.anomalies.append(step + 1)
        # Skipping an update does not repair weights whose validation is broken.
        if policy == "stop" or len(self.anomalies) > limit or (weights and policy == "skip"):
            rate, warmup = self._config.optimizer.learning_rate, self._config.optimizer.warmup_steps
            good = self._snapshots.newest()
            raise Diverged(
                f"optimizer.learning_rate: at step {step + 1} {wrong}"
                + (f", after {limit} tolerated anomalies" if policy != "stop" and not weights else "")
                + f"; expected a learning rate below {rate} or a warm-up longer than {warmup} steps; "
                f"{f'the last good snapshot is {good}' if good else 'there is no snapshot'}",
                batch,
            )
        done = "its update is skipped" if policy == "skip" else "rolling back to the last periodic snapshot"
        if self._ranks.first:  # the others have seen the same
            warnings.warn(f"at step {step + 1} {wrong}: {done} ({len(self.anomalies)} of {limit})", stacklevel=2)
