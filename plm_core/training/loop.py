"""The loop: state(t+1) = update(state(t), batch_at(t), rng_at(t)), as a generator of reports. No callbacks.

Used by pretraining and fine-tuning. Shapes: see the objectives.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from time import perf_counter

from torch import nn

from plm_core.objectives.loss import Batch
from plm_core.text.samplers import stream_seed
from plm_core.training.ahead import Ahead
from plm_core.training.anomalies import check_losses, go_back, tolerate
from plm_core.training.blocks import recompute, unwrap, wrap
from plm_core.training.compiling import LossOf, compile_blocks, compiled
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device
from plm_core.training.profiler import Profiler
from plm_core.training.ranks import ALONE, Ranks, Shared
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import State, StepMetrics, Validation, require_fit
from plm_core.training.step import Evaluate, Setup, evaluate, rehearse, update


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

    ``batch_at(step)`` returns this process's rows of the batch of a step (from 0), and is called in a thread, one step
    ahead; ``loss_of(model, rows, carry)`` returns their loss, where ``carry`` is what the loss of the same rows left at
    the previous step; ``validate(evaluate)`` scores held-out data with ``evaluate(rows, carry)``. When the generator
    ends, the model holds the weights of the best validation. A report of a step that was reported before, or with a
    larger ``passed``, follows a rollback: earlier reports of its steps and of later ones are void.

    Raises:
        Diverged: an anomaly that ``config.anomalies`` does not tolerate; the message names the step.
        Unfit: a batch does not fit in memory row by row, or the processes cannot share its rows or compute alike.
        Stopped: ``interrupted()`` was not 0 after a step, on any process; the state of that step is saved.
        NotSaved: that state could not be saved.
    """
    require_fit(config, device, ranks)
    some = batch_at(0)
    setup = _set_up(model, loss_of, some, config, device, ranks)
    state = State(model, config, ranks)
    # The optimizer's state exists by now, so a snapshot has tensors to fill.
    if (saved := snapshots.find()) is not None:
        state.restore(saved)
        yield from state.reports
    elif config.anomalies.policy == "rollback":
        snapshots.save(state.tensors(), state.fixed(), state.progress(), config.snapshot_every)
    rehearse(setup, state, some)
    try:
        with Ahead(batch_at, device.device) as batches:
            yield from _steps(setup, state, batches, validate, snapshots, interrupted)
    finally:
        snapshots.settle()
        unwrap(model)
    model.load_state_dict(state.best)


def best_report(reports: list[StepMetrics]) -> StepMetrics:
    """The report of the best validation (the first among equals), whose weights ``train`` leaves in the model."""

    def rank(report: StepMetrics) -> float:
        return -(report.valid_loss or 0.0) if report.valid_score is None else report.valid_score

    return max((r for r in reports if r.valid_loss is not None), key=lambda r: (rank(r), -r.step))


def _set_up(model: nn.Module, loss_of: LossOf, some: Batch, config: LoopConfig, device: Device, ranks: Ranks) -> Setup:
    """Compile the loss and share it among processes as configured, and calibrate the profiler on ``some`` batch."""
    profiler = Profiler(model, loss_of, device, config.precision, ranks.size)
    # Before weights are sharded and blocks are recomputed, which would count twice.
    profiler.calibrate(next(some.split(config.accumulation)))
    if config.activation_checkpointing:
        wrap(model, recompute)
    faster = loss_of
    if config.compile and ranks.sharding:
        compile_blocks(model, device.device)
    elif config.compile:
        # The communication of several processes during the backward pass cannot be captured.
        faster = compiled(loss_of, device.device, config.batch if ranks.size == 1 else None)
    # Autocast on a CPU leaves norms in the dtype of their weights.
    mixed = config.precision == "bfloat16" and device.bfloat16 and device.device.type == "cuda"
    shared = Shared(model, loss_of, faster, ranks, next(some.split(config.batch)).to(device.device), mixed)
    return Setup(shared, config, device, ranks, profiler)


def _steps(
    setup: Setup,
    state: State,
    batches: Ahead,
    validate: Callable[[Evaluate], Validation],
    snapshots: Snapshots,
    interrupted: Callable[[], int],
) -> Generator[StepMetrics, None, None]:
    """Run all steps: an update each, and at intervals a report, a validation and a snapshot."""
    config = setup.config
    ranks = setup.ranks
    begun = perf_counter() - state.seconds
    ended = state.ended
    while not ended:
        if not state.pending:
            # Validation, snapshots and what the caller does with a report are not part of a step's time.
            setup.profiler.start()
        step, number, rate = state.step, state.batch, state.rate
        # A function of the step, and not of earlier draws, so that a resumed run draws the same.
        seeds = partial(stream_seed, config.seed, "dropout", step)
        wrong = update(setup, state, batches(number, last=step + 1 == config.steps), rate, seeds)
        if wrong is not None:
            tolerate(wrong, step, number, state, snapshots)
        moved = wrong is None or config.anomalies.policy == "skip"
        if not moved:
            go_back(state, snapshots)
        # The clock is read only if there is a time budget: it is part of the state, and differs between runs.
        stop, state.seconds = ranks.all_reduce_max(
            interrupted(), 0.0 if config.minutes is None else perf_counter() - begun
        )
        setup.profiler.lap("other")
        # A time budget counts from the end of the warm-up, which has its number of steps.
        if state.step <= config.optimizer.warmup_steps:
            state.warm = state.seconds
        report = _report(setup, state, validate, snapshots, rate) if moved and state.report_due else None
        # After a rollback the run has not ended, even if the time is up: the last step is always validated.
        ended = state.ended and report is not None
        if report is not None:
            # After the report, which is part of the state: a resumed run must not report these steps again.
            if state.step % config.snapshot_every == 0 and not ended:
                snapshots.save(state.tensors(), state.fixed(), state.progress(), config.snapshot_every)
            yield report
        if stop and not ended:
            state.settle()
            check_losses(state, snapshots, alone=True)  # those that no report has checked yet
            snapshots.save(state.tensors(), state.fixed(), state.progress(), config.snapshot_every)
            snapshots.wait()
            raise Stopped(state.step, stop)


def _report(
    setup: Setup, state: State, validate: Callable[[Evaluate], Validation], snapshots: Snapshots, rate: float
) -> StepMetrics | None:
    """The report of the steps since the last one; None if validation caused a rollback."""
    config = setup.config
    state.settle()  # waits for the device, so that the profiler reads the full time of these steps
    positions = sum(done.positions for done in state.pending)
    throughput = setup.profiler.read(positions)
    throughput = replace(throughput, joules=setup.ranks.total(throughput.joules))
    if config.anomalies.policy == "stop":  # the other policies have checked each step before its update
        check_losses(state, snapshots)
    valid = None
    if state.step % config.valid_every == 0 or state.ended:
        setup.shared.model.eval()
        loss, score = validate(partial(evaluate, setup, state))
        # One process decides for all: if the last bit differed, they would keep different weights.
        tell = setup.ranks.broadcast
        valid = Validation(tell(loss), None if score is None else tell(score))
        if not math.isfinite(valid.loss):
            last = (state.step - 1, state.batch - 1)
            tolerate(f"the validation loss is {valid.loss}", *last, state, snapshots, weights=True)
            go_back(state, snapshots)
            return None
    report = state.told(rate, valid, throughput, first=setup.profiler.reads == 1)
    if valid is not None and best_report(state.reports) is report:
        state.keep_best()
    return report
