"""A step of a training, and a look at held-out rows: the passes over a batch, in parts that fit into memory.

Used by the loop. Out of memory cuts the rows into twice as many parts, of the same batch.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plm_core.objectives.loss import Batch, Carry, Loss
from plm_core.shared.memory import is_out_of_memory
from plm_core.training.anomalies import judged
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device
from plm_core.training.profiler import Profiler
from plm_core.training.ranks import Ranks, Shared, full
from plm_core.training.state import Done, State, Unfit, joined

T = TypeVar("T")
Seeds = Callable[[int], int]
"""The randomness of a step: the number of a part, over all processes, to the seed of its dropout."""

Evaluate = Callable[[Batch, Carry | None], Loss]
"""The loss of rows that continue what another call's rows left, without a gradient."""


@dataclass(frozen=True)
class Setup:
    """What the steps of a training are done with; none of it changes from step to step."""

    shared: Shared
    config: LoopConfig
    device: Device
    ranks: Ranks
    profiler: Profiler


def update(setup: Setup, state: State, batch: Batch, rate: float, seeds: Seeds) -> str | None:
    """Do the next step of ``state``, in place, by the gradient of the global batch; returns what is wrong with it.

    ``batch`` has the rows of this process.

    What is looked at before the update leaves it out when something is wrong. With the policy ``rollback`` the step
    then counts for nothing.
    """
    # Still on the CPU: nobody waits for a GPU to learn it.
    num_targets = int(setup.ranks.sum(batch.num_targets.double()))
    rows = batch.to(setup.device.device)
    setup.profiler.lap("data")
    nll, carries = _fitting(setup, state, partial(_passes, setup, state, rows, num_targets, seeds))
    # With sharded weights the norm is one number of all shards, put together here.
    norm = full(nn.utils.clip_grad_norm_(setup.shared.model.parameters(), setup.config.optimizer.clip_norm))
    wrong = None
    if setup.config.anomalies.policy != "stop":
        loss = float(setup.ranks.sum(nll.double().cpu())) / num_targets
        wrong = judged(loss, setup.ranks.broadcast(float(norm)), state.recent, setup.config.anomalies)
    if wrong is None:
        state.optimizer.step(rate)
        state.carries = carries
    else:
        setup.shared.model.zero_grad(set_to_none=True)
        # What a model with memory carries is not of the text before the next batch.
        state.carries = [None] * len(state.carries)
        if setup.config.anomalies.policy == "rollback":
            return wrong
    state.pending.append(Done(nll, norm, num_targets, batch.inputs.numel() * setup.ranks.size, wrong is not None))
    state.step += 1
    setup.profiler.lap("optimizer")
    return wrong


def evaluate(setup: Setup, state: State, rows: Batch, carry: Carry | None) -> Loss:
    """The loss on rows that every process has, in the precision of a step and no more of them at a time.

    Where the rows can be shared evenly, each process computes its share, and ``carry`` is that of its share.
    """
    ranks = setup.ranks
    shared = ranks.size > 1 and len(rows.inputs) % ranks.size == 0
    if shared:
        rows = list(rows.split(ranks.size))[ranks.rank]

    def looked_at() -> list[Loss]:
        parts = -(-len(rows.inputs) // (state.rows // len(state.carries)))
        carries = [None] * parts if carry is None else zip(*(c.chunk(parts) for c in carry), strict=True)
        with setup.device.autocast(setup.config.precision):
            return [setup.shared.evaluate(*some) for some in zip(rows.split(parts), carries, strict=True)]

    found = _fitting(setup, state, looked_at)
    nll = torch.stack([each.nll for each in found]).sum()
    num_targets = torch.stack([each.num_targets for each in found]).sum()
    if shared:
        dist.all_reduce(nll)
        dist.all_reduce(num_targets)
    return Loss(nll, num_targets, joined([each.carry for each in found]))


def rehearse(setup: Setup, state: State, batch: Batch) -> None:
    """Cut the rows of all processes until each has room for a part of them, which it passes over; nothing is updated.

    In a step the others would wait forever for a process that has run out of memory. A process that is alone needs no
    rehearsal, and with sharded weights the others would wait here too: then nothing is done.
    """
    if setup.ranks.size == 1 or setup.ranks.sharding:
        return
    while True:
        lacking = _lacking(setup, state, batch)
        failed, _ = setup.ranks.all_reduce_max(lacking is not None, 0.0)
        if not failed:
            return
        _cut_smaller(state, lacking or "in another process", agreed=True)


def _lacking(setup: Setup, state: State, batch: Batch) -> str | None:
    """What this process says when it runs out of memory on a part of its rows; None where there is room.

    The first part stands for all, but is tried twice: what follows finds gradients that are there already.
    """
    setup.shared.model.train()
    rows = next(batch.split(len(state.carries))).to(setup.device.device)
    try:
        for _ in state.carries[:2]:
            with setup.shared.part(last=False):
                with setup.device.autocast(setup.config.precision):
                    loss = setup.shared.loss(rows, state.carries[0])
                setup.shared.add_gradient(loss, 1)
        return None
    except RuntimeError as error:
        return _said(error)
    finally:
        _clear(setup)


def _fitting(setup: Setup, state: State, work: Callable[[], T]) -> T:
    """What some work on the rows gives, each time that memory runs out with the rows in twice as many parts."""
    while True:
        try:
            return work()
        except RuntimeError as error:
            # Several processes would have to agree, in the middle of a step that the others have not failed.
            _cut_smaller(state, _said(error), agreed=setup.ranks.size == 1)
        _clear(setup)


def _said(error: RuntimeError) -> str:
    """What an error says in one line. One that is no lack of memory is raised again."""
    if not is_out_of_memory(error):
        raise error
    return " ".join(str(error).split())


def _clear(setup: Setup) -> None:
    """Drop what parts of a step have added to the gradient, and on a GPU the memory they held."""
    setup.shared.model.zero_grad(set_to_none=True)
    if setup.device.device.type == "cuda":
        if setup.config.compile and setup.ranks.size == 1:
            # Of graphs that were captured, one that ran out of memory may be broken; what was compiled would use it.
            torch.compiler.reset()
        torch.cuda.empty_cache()


def _passes(
    setup: Setup, state: State, rows: Batch, num_targets: int, seeds: Seeds
) -> tuple[Tensor, list[Carry | None]]:
    """Forward and backward over each part of the rows: the gradient of a step is left in the parameters.

    Returns:
        the summed nll, and what the parts carry on.
    """
    parts = len(state.carries)
    nll = torch.zeros((), device=setup.device.device)
    carries: list[Carry | None] = []
    setup.shared.model.train()
    for part, some in enumerate(rows.split(parts)):
        # By the part's number over all processes: however a batch is shared out, no two parts draw the same dropout.
        torch.manual_seed(seeds(setup.ranks.rank * parts + part))
        with setup.shared.part(last=part == parts - 1):
            with setup.device.autocast(setup.config.precision):
                loss = setup.shared.loss(some, state.carries[part])
            setup.profiler.lap("forward")
            # Divided by the predictions of the global batch, so that parts and processes just add up.
            setup.shared.add_gradient(loss, num_targets)
            setup.profiler.lap("backward")
        nll = nll + loss.nll.detach()
        carries.append(loss.carry)
    return nll, carries


def _cut_smaller(state: State, error: str, agreed: bool) -> None:
    """Cut the rows of this process into twice as many parts, where all processes have ``agreed`` to do so."""
    parts = len(state.carries)
    if parts == state.rows or not agreed:
        alone = "batch", "one row", ""
        several = "accumulation", f"{state.rows // parts} rows", "more parts, "
        place, rows, more = alone if parts == state.rows else several
        raise Unfit(
            f"{place}: out of memory at step {state.step + 1} with {rows} at a time ({error}); expected {more}"
            "a smaller model.context, or a smaller model"
        )
    state.cut(2 * parts)
    warnings.warn(
        f"out of memory at step {state.step + 1}: from now on {state.rows // len(state.carries)} rows at a time, "
        f"in {len(state.carries)} parts of the same batch ({error})",
        stacklevel=2,
    )
