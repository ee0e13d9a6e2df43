"""The processes that train one model together, as torchrun started them: DDP and FSDP2. Used by the loop.

Their number is a fact of the machine and never a parameter: they share the rows of one global batch, each computes the
loss of its own rows, and the gradient is that of the whole batch.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plm_core.config import UserError
from plm_core.objectives.loss import Batch, Carry, Loss
from plm_core.training.blocks import blocks_of
from plm_core.training.compiling import LossOf

Mode = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Ranks:
    """This process among the ``size`` processes that train together."""

    rank: int = 0
    """The number of this process, from 0; the first one writes files and messages."""
    size: int = 1
    mode: Mode = "ddp"
    """``ddp``: each holds the whole model (Li et al. 2020). ``fsdp``: weights, gradients and optimizer state are
    sharded (Zhao et al. 2023; torch's ``fully_shard``)."""
    mesh: Any = None
    """The processes as a DeviceMesh of one dimension."""
    control: Any = None
    """A gloo process group for numbers on the host: agreeing on them does not wait for a GPU."""
    background: Any = None
    """A gloo process group for the thread that writes snapshots."""

    @property
    def first(self) -> bool:
        """Whether this process writes what only one should write."""
        return self.rank == 0

    @property
    def sharding(self) -> bool:
        """Whether each process holds only a part of the weights."""
        return self.size > 1 and self.mode == "fsdp"

    def sharded(self, rows: Tensor) -> Tensor:
        """This process's rows as its shard of all rows."""
        if self.size == 1:
            return rows
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(rows, self.mesh, [Shard(0)], run_check=False)

    def all_reduce_max(self, stop: int, seconds: float) -> tuple[int, float]:
        """The largest ``stop`` and the longest time of all processes: the same result on each."""
        if self.size == 1:
            return stop, seconds
        told = torch.tensor([float(stop), seconds], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.control)
        return int(told[0]), float(told[1])

    def sum(self, values: Tensor) -> Tensor:
        """The sum of float64 values on the CPU over all processes."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def total(self, value: float | None) -> float | None:
        """The sum over all processes; None if one of them has no value."""
        told = self.sum(torch.tensor([value or 0.0, float(value is not None)], dtype=torch.float64))
        return float(told[0]) if told[1] == self.size else None

    def gathered(self, value: Any) -> list[Any]:
        """The value of each process, in their order."""
        told = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(told, value, group=self.control)
        return told

    def broadcast(self, value: float) -> float:
        """The first process's value: decisions use it, because the others may differ in the last bit."""
        told = torch.tensor([value], dtype=torch.float64)
        if self.size > 1:
            dist.broadcast(told, 0, group=self.control)
        return float(told)


ALONE = Ranks()
"""A process that trains by itself."""


class Shared:
    """The loss of a model, alone or shared with other processes."""

    def __init__(
        self, model: nn.Module, loss_of: LossOf, compiled: LossOf, ranks: Ranks, row: Batch, mixed: bool = False
    ) -> None:
        """``compiled`` is what a step runs, ``loss_of`` the original function, ``row`` a row of some batch.

        With FSDP the parameters of the model become sharded (``DTensor``), in place. If ``mixed``, those of the blocks
        are gathered in bfloat16, in which autocast would multiply them: half of the bytes.
        """
        self.model, self._loss_of, self._compiled, self._ranks = model, loss_of, compiled, ranks
        self._wrapped: Any = None
        if ranks.size > 1:
            self._wrapped = (
                _fsdp(model, loss_of, ranks.mesh, mixed)
                if ranks.sharding
                else _ddp(model, loss_of, compiled, row, ranks.size)
            )

    def loss(self, rows: Batch, carry: Carry | None) -> Loss:
        """The loss on this process's rows; its gradients become those of all rows."""
        return self._compiled(self.model, rows, carry) if self._wrapped is None else self._wrapped(rows, carry)

    @torch.no_grad()
    def evaluate(self, rows: Batch, carry: Carry | None) -> Loss:
        """The loss on rows, without a gradient; with sharded weights every process has to call it."""
        if self._ranks.sharding:
            with torch.compiler.set_stance("force_eager"):  # as without sharding, whatever the number of rows
                return self._wrapped(rows, carry)
        return self._loss_of(self.model, rows, carry)

    def add_gradient(self, loss: Loss, count: int) -> None:
        """Add the gradient of the loss divided by ``count``, the predictions of the global batch."""
        # DDP and FSDP take the mean over the processes.
        (loss.nll * (self._ranks.size / count) if self._ranks.size > 1 else loss.nll / count).backward()

    def part(self, last: bool) -> AbstractContextManager[object]:
        """The context of a micro-batch: gradients are exchanged only with the last one, for all of them."""
        return nullcontext() if last or self._wrapped is None or self._ranks.sharding else self._wrapped.no_sync()


def _ddp(model: nn.Module, loss_of: LossOf, compiled: LossOf, row: Batch, ranks: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    # Unless weights are declared unused, DDP reorders its sums after a process's first step. With more than two numbers
    # that changes the sum, and an interrupted run would have a different result.
    unused = ranks > 2
    if not unused:
        # Whether the objective leaves weights without a gradient, such as those of segments. DDP's static_graph=True
        # would find them by itself, but with micro-batches (no_sync) its gradients are wrong.
        gradients = torch.autograd.grad(loss_of(model, row, None).nll, list(model.parameters()), allow_unused=True)
        unused = any(gradient is None for gradient in gradients)
    return DistributedDataParallel(_LossModule(model, compiled), find_unused_parameters=unused)


def _fsdp(model: nn.Module, loss_of: LossOf, mesh: Any, mixed: bool) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    # The model chooses the dtype between blocks (blocks.narrowed); gradients are added up in float32.
    lower = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = lower if mixed else MixedPrecisionPolicy()
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
        if hasattr(block, "keys"):  # XLNet calls it in addition to forward
            register_fsdp_forward_method(block, "keys")
    return fully_shard(_LossModule(model, loss_of), mesh=mesh)


class _LossModule(nn.Module):
    """The module that DDP and FSDP wrap: their hooks need ``forward``, but a loss calls other methods of a model."""

    def __init__(self, model: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.model = model
        self._loss_of = loss_of

    def forward(self, batch: Batch, carry: Carry | None) -> Loss:
        return self._loss_of(self.model, batch, carry)


def join() -> Ranks:
    """Join the processes that torchrun started; ``ALONE`` without torchrun.

    ``PLM_PARALLEL`` chooses between ``ddp`` (the default) and ``fsdp``.

    Raises:
        UserError: ``PLM_PARALLEL`` is neither.
    """
    mode = os.environ.get("PLM_PARALLEL", "ddp")
    if mode not in ("ddp", "fsdp"):
        raise UserError(f"PLM_PARALLEL: found {mode!r}; expected ddp or fsdp")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (size,))
    control, background = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    return Ranks(dist.get_rank(), size, cast(Mode, mode), mesh, control, background)


def leave() -> None:
    """Undo ``join``."""
    if dist.is_initialized():
        dist.destroy_process_group()


def whole(weights: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The weights on the host of the first process, sharded ones gathered one by one; every process must call it."""
    found = {}
    for name, tensor in weights.items():
        gathered = full(tensor)
        if ranks.first:
            found[name] = gathered.cpu()
    return found


def full(tensor: Any) -> Tensor:
    """The tensor, gathered if it is sharded; every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
