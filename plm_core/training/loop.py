"""The loop: state(t+1) = update(state(t), batch_at(t), rng_at(t)), as a generator of reports. Nothing calls back.

Used by pretraining and fine-tuning. Shapes: see the objectives.
"""

import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from time import perf_counter

from torch import nn

from plm_core.config import BadInput
from plm_core.objectives.loss import Batch
from plm_core.training.anomalies import judged
from plm_core.training.compiling import LossOf, compiled
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device
from plm_core.training.meters import Instruments
from plm_core.training.passes import Evaluate, Passes
from plm_core.training.ranks import ALONE, Ranks, Shared, full
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import Done, Report, State, Unfit


class Diverged(BadInput):
    """The loss or the gradient is not finite or far above those before, more often than is put up with."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch
        """The step (from 0) of ``batch_at`` whose batch it was."""


class Stopped(Exception):
    """The training was asked to end before its last step, and its state is saved."""

    def __init__(self, step: int, reason: int) -> None:
        super().__init__(f"state saved at step {step}")
        self.step = step
        """Steps done."""
        self.reason = reason
        """What ``interrupted()`` said."""


def train(
    model: nn.Module,
    loss_of: LossOf,
    batch_at: Callable[[int], Batch],
    validate: Callable[[Evaluate], float],
    config: LoopConfig,
    device: Device,
    snapshots: Snapshots,
    ranks: Ranks = ALONE,
    interrupted: Callable[[], int] = lambda: 0,
) -> Generator[Report, None, None]:
    """Train ``model`` in place and yield the reports of the whole run, those before a resumed snapshot included.

    ``batch_at(step)`` gives the global batch of a step (from 0), ``loss_of(model, rows, carry)`` its loss, where
    ``carry`` is what the loss of the same rows left at the step before, ``validate(evaluate)`` the mean nats on
    held-out data by ``evaluate(rows, carry)``. When the generator ends, the model holds the weights of the best
    validation. A report of a step that was reported before, or of a larger ``passed``, tells of a rollback: the reports
    of its steps and of later ones that came before it are void.

    Raises:
        Diverged: something is wrong with a loss, as ``config.anomalies`` says; the message names the step.
        Unfit: a batch does not fit in memory row by row, or its rows cannot be shared by the processes.
        Stopped: ``interrupted()`` was not 0 after a step, on any process; the state of that step is saved.
        NotSaved: it could not be.
    """
    faster = loss_of
    if config.compile and ranks.size > 1 and ranks.mode == "fsdp":
        warnings.warn("training.compile: not compiled, for the weights are sharded (PLM_PARALLEL=fsdp)", stacklevel=2)
    elif config.compile:
        faster = compiled(loss_of, device.device)
    instruments = Instruments(model, loss_of, device, config.precision, ranks.size)
    some = batch_at(0)
    instruments.calibrate(next(some.split(config.accumulation)))  # before the weights may be sharded
    shared = Shared(model, loss_of, faster, ranks, next(some.split(config.batch)).to(device.device))
    state = State(model, config, ranks)
    if (saved := snapshots.find()) is not None:
        state.restore(saved)
        yield from state.reports
    run = _Run(state, shared, batch_at, validate, config, device, snapshots, ranks, instruments)
    if saved is None and config.anomalies.policy == "rollback":
        run.save()
    try:
        yield from run.reports(interrupted)
    finally:
        snapshots.settle()
    model.load_state_dict(state.best)


def best_report(reports: list[Report]) -> Report:
    """The report of the best validation: the one whose weights ``train`` leaves in the model."""
    return min((r for r in reports if r.valid_loss is not None), key=lambda r: (r.valid_loss, r.step))


@dataclass
class _Run:
    """One process's share of a training: what the functions below have in common."""

    state: State
    shared: Shared
    batch_at: Callable[[int], Batch]
    validate: Callable[[Evaluate], float]
    config: LoopConfig
    device: Device
    snapshots: Snapshots
    ranks: Ranks
    instruments: Instruments

    def __post_init__(self) -> None:
        self.passes = Passes(self.state, self.shared, self.config, self.device, self.ranks, self.instruments)
        self.first = True
        """Whether no report was made by this process yet."""
        self.rate = 0.0
        self.saved = (-1, 0)
        """The step of the last snapshot, and of how many rollbacks."""
        self.start = perf_counter() - self.state.seconds

    def elapsed(self) -> float:
        """Seconds of the whole training, where there is a budget of them."""
        return 0.0 if self.config.minutes is None else perf_counter() - self.start

    def reports(self, interrupted: Callable[[], int]) -> Generator[Report, None, None]:
        """Step by step to the end."""
        state, ended = self.state, self.state.ended
        while not ended:
            moved = self.update()
            stop, state.seconds = self.ranks.agree(interrupted(), self.elapsed())
            self.instruments.lap("other")
            if state.step <= self.config.optimizer.warmup_steps:
                state.warm = state.seconds
            report = self.report() if moved and state.report_due else None
            # Who went back has not ended, even when the time is over: the last step is always validated.
            ended = state.ended and report is not None
            if report is not None:
                if state.step % self.config.snapshot_every == 0 and not ended:
                    self.save()
                yield report
            if stop and not ended:
                self._require_finite()
                self.save()
                self.snapshots.wait()
                raise Stopped(state.step, stop)

    def update(self) -> bool:
        """Do the next step, or leave it out; False when it went back, as its loss and the policy will have it."""
        state, config, model = self.state, self.config, self.shared.model
        if not state.pending:
            self.instruments.start()
        batch = self.batch_at(state.batch)
        count = int(batch.count)  # still on the CPU
        rows = self.ranks.rows(batch).to(self.device.device)
        self.instruments.lap("data")
        nats, carries = self.passes.gradient(rows, count)
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        norm = full(norm)
        wrong = None
        if config.anomalies.policy != "stop":
            loss = float(self.ranks.sum(nats.double().cpu())) / count
            wrong = judged(loss, self.ranks.tell(float(norm)), state.recent, config.anomalies)
        self.rate = state.rate
        if wrong is None:
            state.optimizer.step(self.rate)
            state.carries = carries
        else:
            model.zero_grad(set_to_none=True)
            self._tolerate(wrong, state.step, state.batch)
            if config.anomalies.policy == "rollback":
                self._go_back()
                return False
            # What a model with memory carries is not of the text before the next batch.
            state.carries = [None] * len(state.carries)
        state.pending.append(Done(nats, norm, count, batch.inputs.numel(), wrong is not None))
        state.step += 1
        self.instruments.lap("optimizer")
        return True

    def report(self) -> Report | None:
        """What there is to say of the steps since the last report; None when validation sent the training back."""
        state, config = self.state, self.config
        state.settle()
        positions = sum(done.positions for done in state.pending)
        meters = self.instruments.read(positions)
        meters = replace(meters, joules=self.ranks.total(meters.joules))
        if config.anomalies.policy == "stop":
            for step, loss, norm in state.losses():
                if (wrong := judged(loss, norm, state.recent, config.anomalies)) is not None:
                    self._tolerate(wrong, step, step)
        valid_loss = None
        if state.step % config.valid_every == 0 or state.ended:
            self.shared.model.eval()
            valid_loss = self.ranks.tell(self.validate(self.passes.evaluate))
            if not math.isfinite(valid_loss):
                self._tolerate(f"the validation loss is {valid_loss}", state.step - 1, state.batch - 1, weights=True)
                self._go_back()
                return None
            if valid_loss < min((r.valid_loss for r in state.reports if r.valid_loss is not None), default=math.inf):
                state.keep_best()
        trained = [done for done in state.pending if not done.skipped]
        predictions = sum(done.predictions for done in trained)
        report = Report(
            step=state.step,
            steps=len(state.pending),
            predictions=predictions,
            positions=positions,
            loss=math.fsum(float(done.nats) for done in trained) / predictions if trained else math.nan,
            gradient_norm=float(state.pending[-1].norm),
            learning_rate=self.rate,
            skipped=len(state.pending) - len(trained),
            passed=state.batch - state.step,
            valid_loss=valid_loss,
            meters=meters,
            first=self.first,
        )
        state.pending, self.first = [], False
        state.reports.append(report)
        return report

    def save(self) -> None:
        """Begin a snapshot of the state, unless it is that of the last one."""
        state, step = self.state, (self.state.step, len(self.state.rollbacks))
        if self.saved == step:
            return
        self.saved = step
        self.snapshots.save(state.tensors(), state.fixed(), state.progress(), self.config.snapshot_every)

    def _require_finite(self) -> None:
        """Raise Diverged rather than save weights of a step that no report has looked at and whose loss is broken."""
        self.state.settle()
        for step, loss, norm in self.state.losses():
            if (wrong := judged(loss, norm, [], self.config.anomalies)) is not None:  # by none before it
                self._tolerate(wrong, step, step)

    def _tolerate(self, wrong: str, step: int, batch: int, weights: bool = False) -> None:
        """Take note of an anomaly at a step (from 0); ``weights`` when no skipped update mends it.

        Raises:
            Diverged: the policy puts up with none, or with no more.
        """
        state, config = self.state, self.config
        policy, limit = config.anomalies.policy, config.anomalies.limit
        state.anomalies.append(step + 1)
        if policy == "stop" or len(state.anomalies) > limit or (weights and policy == "skip"):
            rate, warmup = config.optimizer.learning_rate, config.optimizer.warmup_steps
            good = self.snapshots.newest()
            raise Diverged(
                f"optimizer.learning_rate: at step {step + 1} {wrong}"
                + (f", after {limit} anomalies that were put up with" if policy != "stop" and not weights else "")
                + f"; expected finite numbers: lower the learning rate ({rate}) or lengthen the warm-up ({warmup} "
                f"steps); {f'the last good snapshot is {good}' if good else 'there is no snapshot'}",
                batch,
            )
        done = "its update is left out" if policy == "skip" else "back to the last periodic snapshot, past its batches"
        if self.ranks.first:
            warnings.warn(f"at step {step + 1} {wrong}: {done} ({len(state.anomalies)} of {limit})", stacklevel=2)

    def _go_back(self) -> None:
        """To the last periodic snapshot; the batches read since are passed over."""
        state = self.state
        anomalies, rollbacks, step = state.anomalies, state.rollbacks, state.anomalies[-1]
        parts = len(state.carries)
        saved = self.snapshots.find(at_most=step - 1, every=self.config.snapshot_every)
        if saved is None:
            raise Unfit(
                f"snapshot_every: no snapshot of a step up to {step - 1} in {self.snapshots.folder} to go back to"
            )
        state.restore(saved)
        self.snapshots.remove_after(state.step)
        state.anomalies, state.rollbacks = anomalies, [*rollbacks, (state.step, step - state.step)]
        # What a model with memory carries is of the text that is passed over.
        state.carries = [None] * max(parts, len(state.carries))
