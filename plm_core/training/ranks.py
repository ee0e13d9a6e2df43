"""The processes that train one model together, as torchrun started them: DDP and FSDP2.

Their number is a property of the machine and never a parameter: they share the rows of one global batch, each computes
the loss of its own rows, and the gradient is that of the whole batch.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor

from plm_core.config import UserError
from plm_core.training.device import Device
from plm_core.training.training_config import LoopConfig

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
        both = torch.tensor([float(stop), seconds], dtype=torch.float64)
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.control)
        return int(both[0]), float(both[1])

    def sum(self, values: Tensor) -> Tensor:
        """The sum of float64 values on the CPU over all processes."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def total(self, value: float | None) -> float | None:
        """The sum over all processes; None if one of them has no value."""
        total = self.sum(torch.tensor([value or 0.0, float(value is not None)], dtype=torch.float64))
        return float(total[0]) if total[1] == self.size else None

    def gathered(self, value: Any) -> list[Any]:
        """The value of each process, in their order."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.control)
        return values

    def broadcast(self, value: float) -> float:
        """The first process's value: decisions use it, because the others may differ in the last bit."""
        first = torch.tensor([value], dtype=torch.float64)
        if self.size > 1:
            dist.broadcast(first, 0, group=self.control)
        return float(first)


ALONE = Ranks()
"""A process that trains by itself."""


class Unfit(UserError):
    """The batch does not fit the machine: its memory, or its processes."""


def require_fit(config: LoopConfig, device: Device, ranks: Ranks) -> None:
    """Raise Unfit if the processes cannot share the rows of a batch evenly, or would not compute alike."""
    if config.batch % ranks.size:
        raise Unfit(
            f"batch: {config.batch} rows for {ranks.size} processes (PLM_RANKS, or torchrun); expected a multiple of "
            f"{ranks.size}"
        )
    # With ddp, a process without bfloat16 would train in float32; with fsdp it would crash or hang the others. Other
    # differences between GPUs only cost time.
    facts = {
        "torch": torch.__version__,
        "bfloat16": device.bfloat16 or config.precision != "bfloat16",
        "device": torch.cuda.get_device_name() if device.device.type == "cuda" else "CPU",
    }
    gathered = ranks.gathered(facts)
    for name in facts:
        values = {str(other[name]): f"{other[name]} in process {rank}" for rank, other in enumerate(gathered)}
        if len(values) == 1:
            continue
        difference = f"{name}: {', '.join(values.values())}"
        if name != "device" or "CPU" in values:
            raise Unfit(f"{difference}; expected the same in all processes, as on machines of one kind")
        if ranks.first:
            warnings.warn(f"{difference}: a step takes as long as the slower ones need", stacklevel=3)


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
    # Numbers and snapshots go through the hosts, each in its own group: neither waits for the other, nor for a GPU.
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (size,))
    control, background = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    return Ranks(dist.get_rank(), size, cast(Mode, mode), mesh, control, background)


def leave() -> None:
    """Undo ``join``."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_weights(weights: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The weights on the host of the first process, sharded ones gathered one by one; every process must call it."""
    on_first = {}
    for name, tensor in weights.items():
        gathered = full_tensor(tensor)
        if ranks.first:
            on_first[name] = gathered.cpu()
    return on_first


def full_tensor(tensor: Any) -> Tensor:
    """The tensor, gathered if it is sharded; every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
