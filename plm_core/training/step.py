"""A training step, and the loss on held-out rows: passes over a batch, in micro-batches that fit into memory.

Used by the loop. When memory runs out, the rows are split into smaller micro-batches, those of a step or of held-out
rows.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

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

Seeds = Callable[[int], int]
"""The randomness of a step: from the number of a micro-batch, over all processes, to the seed of its dropout."""

Evaluate = Callable[[Batch, Carry | None], Loss]
"""The loss of rows that continue those of a previous call, without a gradient."""


@dataclass(frozen=True)
class Setup:
    """The environment of all steps; it does not change from step to step."""

    shared: Shared
    config: LoopConfig
    device: Device
    ranks: Ranks
    profiler: Profiler


def update(setup: Setup, state: State, batch: Batch, rate: float, seeds: Seeds) -> str | None:
    """Do the next step of ``state``, in place, with the gradient of the global batch; return what is wrong with it.

    ``batch`` has the rows of this process.

    With the policies ``skip`` and ``rollback`` the loss and the norm are checked first, and a bad update is left out.
    With ``rollback`` the step then does not count.
    """
    # Still on the CPU: no wait for a GPU.
    num_targets = int(setup.ranks.sum(batch.num_targets.double()))
    rows = batch.to(setup.device.device)
    setup.profiler.lap("data")
    while True:  # each time memory runs out, with twice as many micro-batches
        try:
            nll, carries = _passes(setup, state, rows, num_targets, seeds)
            break
        except RuntimeError as error:
            # Several processes would have to agree, in the middle of a step in which the others have not failed.
            _cut_smaller(state, _said(error), agreed=setup.ranks.size == 1)
        _clear(setup)
    # With sharded weights the norm is gathered from all shards.
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
        # A model's memory does not hold the text before the next batch.
        state.carries = [None] * len(state.carries)
        if setup.config.anomalies.policy == "rollback":
            return wrong
    state.pending.append(Done(nll, norm, num_targets, batch.inputs.numel() * setup.ranks.size, wrong is not None))
    state.step += 1
    setup.profiler.lap("optimizer")
    return wrong


def evaluate(setup: Setup, state: State, rows: Batch, carry: Carry | None) -> Loss:
    """The loss on rows that every process has, in the precision of a step and in micro-batches of at most its size.

    If the rows can be shared evenly, each process computes its share, and ``carry`` belongs to that share.
    """
    ranks = setup.ranks
    shared = ranks.size > 1 and len(rows.inputs) % ranks.size == 0
    if shared:
        rows = list(rows.split(ranks.size))[ranks.rank]
    found = None
    while found is None:
        found = _looked_at(setup, state, rows, carry)
    nll = torch.stack([each.nll for each in found]).sum()
    num_targets = torch.stack([each.num_targets for each in found]).sum()
    if shared:
        dist.all_reduce(nll)
        dist.all_reduce(num_targets)
    return Loss(nll, num_targets, joined([each.carry for each in found]))


def rehearse(setup: Setup, state: State, batch: Batch) -> None:
    """Dry run: split the rows until one micro-batch fits on every process; no weight changes.

    In a step the others would wait forever for a process that has run out of memory. A single process needs no
    rehearsal, and with sharded weights the others would wait here too: in both cases nothing is done.
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
    """The error if this process runs out of memory on a micro-batch; None if it fits.

    The first micro-batch represents all, but is tried twice: from the second on, gradients exist already.
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


def _looked_at(setup: Setup, state: State, rows: Batch, carry: Carry | None) -> list[Loss] | None:
    """The losses of micro-batches of held-out rows; None if memory ran out, and the next ones will be smaller.

    Those of a step stay as they are: a step that is replayed keeps its memory, and only the rest is left for these.
    """
    at_once = min(len(rows.inputs), state.rows // len(state.carries), state.evaluated_at_once)
    parts = -(-len(rows.inputs) // at_once)
    carries = [None] * parts if carry is None else zip(*(c.chunk(parts) for c in carry), strict=True)
    try:
        with setup.device.autocast(setup.config.precision):
            return [setup.shared.evaluate(*some) for some in zip(rows.split(parts), carries, strict=True)]
    except RuntimeError as error:
        said = _said(error)
    # Processes communicate only behind these passes, unless weights are sharded: the others wait there.
    _require_smaller(state, at_once, said, agreed=not setup.ranks.sharding)
    state.evaluated_at_once = at_once // 2
    warnings.warn(f"out of memory in validation: from now on {at_once // 2} rows at a time ({said})", stacklevel=3)
    if setup.device.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _said(error: RuntimeError) -> str:
    """The message of an out-of-memory error in one line; any other error is raised again."""
    if not is_out_of_memory(error):
        raise error
    return " ".join(str(error).split())


def _clear(setup: Setup) -> None:
    """Drop the gradient of an incomplete step, and on a GPU the memory that it held."""
    setup.shared.model.zero_grad(set_to_none=True)
    if setup.device.device.type == "cuda":
        if setup.config.compile and setup.ranks.size == 1:
            # A captured graph that ran out of memory may be broken, and the compiled function would use it.
            torch.compiler.reset()
        torch.cuda.empty_cache()


def _passes(
    setup: Setup, state: State, rows: Batch, num_targets: int, seeds: Seeds
) -> tuple[Tensor, list[Carry | None]]:
    """Run forward and backward on each micro-batch: the gradient of a step is left in the parameters.

    Returns:
        the summed nll, and the carries of the micro-batches.
    """
    parts = len(state.carries)
    nll = torch.zeros((), device=setup.device.device)
    carries: list[Carry | None] = []
    setup.shared.model.train()
    for part, some in enumerate(rows.split(parts)):
        # Numbered over all processes: however a batch is shared, no two micro-batches draw the same dropout.
        torch.manual_seed(seeds(setup.ranks.rank * parts + part))
        with setup.shared.part(last=part == parts - 1):
            with setup.device.autocast(setup.config.precision):
                loss = setup.shared.loss(some, state.carries[part])
            setup.profiler.lap("forward")
            # Divided by the predictions of the global batch, so that micro-batches and processes just add up.
            setup.shared.add_gradient(loss, num_targets)
            setup.profiler.lap("backward")
        nll = nll + loss.nll.detach()
        carries.append(loss.carry)
    return nll, carries


def _cut_smaller(state: State, error: str, agreed: bool) -> None:
    """Split the rows of this process into twice as many micro-batches, if all processes have ``agreed`` to it."""
    parts = len(state.carries)
    _require_smaller(state, state.rows // parts, error, agreed)
    state.cut(2 * parts)
    warnings.warn(
        f"out of memory at step {state.step + 1}: from now on {state.rows // len(state.carries)} rows at a time, "
        f"in {len(state.carries)} micro-batches ({error})",
        stacklevel=2,
    )


def _require_smaller(state: State, at_once: int, error: str, agreed: bool) -> None:
    """Raise Unfit if ``at_once`` rows cannot be split, or if not all processes have ``agreed`` to it."""
    if at_once > 1 and agreed:
        return
    alone = "batch", "one row", ""
    several = "accumulation", f"{at_once} rows", "more accumulation, "
    place, rows, more = alone if at_once == 1 else several
    raise Unfit(
        f"{place}: out of memory at step {state.step + 1} with {rows} at a time ({error}); expected {more}"
        "a smaller model.context, or a smaller model"
    )
