"""The training loop: state(t+1) = step(state(t), batch_at(t), rng_at(t)), as a generator of reports."""

import math
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Self

import torch
from torch import nn

from plm_core.objectives.objective import Batch
from plm_core.text.samplers import stream_seed
from plm_core.training.callbacks.anomaly_monitor import AnomalyMonitor
from plm_core.training.callbacks.loss_metrics import BestWeights, Metrics, StepMetrics, Validation, best_report
from plm_core.training.callbacks.speed_monitor import SpeedMonitor
from plm_core.training.device import Device, thread_beside
from plm_core.training.learning_rate import TimeBudget
from plm_core.training.parallelize import LossOf, parallelize, restore_blocks
from plm_core.training.ranks import ALONE, Ranks, require_fit
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import RunState, TrainState
from plm_core.training.step import Evaluate, TrainStep
from plm_core.training.training_config import LoopConfig


class Stopped(Exception):
    """The run was asked to end before its last step, and its state is saved."""

    def __init__(self, step: int, reason: int) -> None:
        super().__init__(f"state saved at step {step}")
        self.step = step
        """The number of steps done."""
        self.reason = reason
        """What ``interrupted()`` returned."""


def train(
    model: nn.Module,
    loss_of: LossOf,
    batch_at: Callable[[int], Batch],
    validate: Callable[[Evaluate], Validation],
    config: LoopConfig,
    device: Device,
    snapshots: Snapshots,
    ranks: Ranks = ALONE,
    interrupted: Callable[[], int] = lambda: 0,
) -> Generator[StepMetrics, None, None]:
    """Train ``model`` in place and yield the reports of the whole run, including those before a resumed snapshot.

    ``batch_at(step)`` returns this process's rows of the batch of a step (from 0); it is called in a thread, one step
    ahead. ``loss_of(model, rows, carry)`` returns their loss, where ``carry`` is the memory that the previous step left
    for these rows. ``validate(evaluate)`` scores held-out data with ``evaluate(rows, carry)``. When the generator ends,
    the model holds the weights of the best validation. If a step is reported again, or ``passed`` has grown, there was
    a rollback: this report replaces all earlier reports of its steps and of later ones.

    Raises:
        Diverged: an anomaly that ``config.anomalies`` does not tolerate; the message names the step.
        Unfit: not even one row at a time fits in memory, or the processes cannot share the rows or compute alike.
        Stopped: ``interrupted()`` was not 0 after a step, on any process; the state of that step is saved.
        NotSaved: that state could not be saved.
    """
    require_fit(config, device, ranks)
    policy = config.anomalies.policy
    every = config.snapshot_every

    # The model. Its operations are counted before ``parallelize``: recomputed blocks would count twice.
    first_batch = batch_at(0)
    speed = SpeedMonitor(model, loss_of, device, config.precision, ranks.size)
    speed.calibrate(next(first_batch.split(config.accumulation)))
    loss = parallelize(model, loss_of, next(first_batch.split(config.batch)), config, device, ranks)

    # The state: each part has one owner. The optimizer's tensors exist from now on, so that a snapshot can fill them.
    metrics = Metrics(ranks)
    budget = TimeBudget(config)
    anomalies = AnomalyMonitor(config, ranks, snapshots)
    best = BestWeights(model, ranks)
    state = TrainState(model, config, ranks)
    run = RunState(state, metrics, budget, anomalies, best)
    train_step = TrainStep(loss, config, device, ranks, speed, anomalies)

    # Resume, or begin.
    if (saved := snapshots.find()) is not None:
        run.restore(saved)
        yield from metrics.reports
    elif policy == "rollback":
        run.save(snapshots, every)
    train_step.rehearse(state, first_batch)
    budget.start()
    ended = budget.ended(state.step)

    try:
        with Prefetch(batch_at, device.device) as batches:
            while not ended:
                # A step. Its time includes neither what follows it here nor what the caller does with a report.
                if not metrics.pending:
                    speed.start()
                step = state.step
                number = anomalies.batch(step)
                rate = budget.rate(step)
                # Seeds depend on the step and not on earlier draws, so that a resumed run draws the same numbers.
                seeds = partial(stream_seed, config.seed, "dropout", step)
                result = train_step(state, batches(number, last=step + 1 == config.steps), rate, seeds)
                metrics.pending.append(result)

                # An anomaly: end the run, continue without the update, or roll back.
                rolled_back = False
                if result.anomaly is not None:
                    anomalies.tolerate(result.anomaly, step, number)
                    if rolled_back := policy == "rollback":
                        run.roll_back(snapshots, every)

                # All processes agree on the time and on stopping: one that went on alone would wait forever.
                stop, seconds = ranks.all_reduce_max(interrupted(), budget.elapsed())
                budget.update(state.step, seconds)
                ended = budget.ended(state.step)
                speed.lap("other")

                # Every so many steps: report and validate.
                report = None
                if not rolled_back and (state.step % config.report_every == 0 or ended):
                    metrics.settle()  # waits for the device, so that the meters read the full time of these steps
                    throughput = speed.read(sum(done.positions for done in metrics.pending))
                    throughput = replace(throughput, joules=ranks.total(throughput.joules))
                    if policy == "stop":  # the other policies have checked each step before its update
                        anomalies.check(metrics.losses(state.step))
                    valid = None
                    if state.step % config.valid_every == 0 or ended:
                        model.eval()
                        valid = validate(partial(train_step.evaluate, state))
                        # One process decides for all: if the last bit differed, they would keep different weights.
                        score = None if valid.score is None else ranks.broadcast(valid.score)
                        valid = Validation(ranks.broadcast(valid.loss), score)
                    if valid is not None and not math.isfinite(valid.loss):
                        anomalies.tolerate(f"the validation loss is {valid.loss}", step, number, weights=True)
                        run.roll_back(snapshots, every)
                    else:
                        passed = anomalies.batch(state.step) - state.step
                        report = metrics.report(state.step, rate, passed, valid, throughput, first=speed.reads == 1)
                        if valid is not None and best_report(metrics.reports) is report:
                            best.keep(state.step)
                # After a rollback the run has not ended, even if the time is up: the last step is always validated.
                ended = ended and report is not None

                # Every so many steps: a snapshot. It includes the report, which a resumed run must not repeat.
                if report is not None:
                    if state.step % every == 0 and not ended:
                        run.save(snapshots, every)
                    yield report

                # Stop when asked to, with the state saved.
                if stop and not ended:
                    metrics.settle()
                    anomalies.check(metrics.losses(state.step), alone=True)  # those that no report has checked yet
                    run.save(snapshots, every)
                    snapshots.wait()
                    raise Stopped(state.step, stop)
    finally:
        snapshots.settle()
        restore_blocks(model)
    model.load_state_dict(best.weights)


class Prefetch:
    """Calls ``batch_at`` one step ahead in a thread; for a GPU, the batch is in pinned memory."""

    def __init__(self, batch_at: Callable[[int], Batch], device: torch.device) -> None:
        self._batch_at, self._device = batch_at, device
        self._thread = thread_beside("batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def __call__(self, step: int, last: bool = False) -> Batch:
        """Return the batch of a step, and start preparing that of ``step`` + 1 unless this is the ``last``.

        Exceptions of ``batch_at`` are raised here, at the step they belong to.
        """
        made = self._next[1] if self._next and self._next[0] == step else self._thread.submit(self._made, step)
        self._next = None if last else (step + 1, self._thread.submit(self._made, step + 1))
        return made.result()

    def _made(self, step: int) -> Batch:
        return self._batch_at(step).pinned(self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
