"""What is applied to a model once, before the loop: activation checkpointing, compilation, DDP or FSDP2.

torch.compile (Ansel et al. 2024) makes one full graph per combination of shapes: which one a step runs depends on its
batch and never on earlier steps, so a resumed run computes the same as an uninterrupted one.
``TORCHINDUCTOR_CACHE_DIR`` sets where torch caches the compiled code.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from plm_core.objectives.objective import Batch, Carry, Loss
from plm_core.training.device import Device
from plm_core.training.ranks import Ranks
from plm_core.training.training_config import LoopConfig

Forward = Callable[..., Any]
LossOf = Callable[[nn.Module, Batch, Carry | None], Loss]

_compile = partial(torch.compile, dynamic=False, fullgraph=True)
"""Compile into one graph of fixed shapes: with dynamic ones its layout would depend on the first batch."""


def parallelize(
    model: nn.Module, loss_of: LossOf, row: Batch, config: LoopConfig, device: Device, ranks: Ranks
) -> "ParallelLoss":
    """Prepare ``model``, in place, for the steps of this configuration; ``row`` is a row of some batch.

    With FSDP the parameters become sharded (``DTensor``). Call ``restore_blocks`` when training has ended.
    """
    # Wrapped in this order, a compiled block includes its recomputation.
    if config.activation_checkpointing:
        wrap(model, recompute)
    faster = loss_of
    if config.compile and ranks.sharding:
        # Hooks gather sharded weights block by block, and a graph cannot contain hooks.
        if _can_compile(device.device):
            wrap(model, _compile)
    elif config.compile:
        # Communication between processes during the backward pass cannot be captured in a CUDA graph.
        faster = compiled(loss_of, device.device, config.batch if ranks.size == 1 else None)
    # Only on a GPU: autocast on a CPU leaves norms in the dtype of their weights.
    mixed = config.precision == "bfloat16" and device.bfloat16 and device.device.type == "cuda"
    return ParallelLoss(model, loss_of, faster, ranks, row.to(device.device), mixed)


class ParallelLoss:
    """The loss of a model as a step computes it, alone or together with other processes."""

    def __init__(
        self, model: nn.Module, loss_of: LossOf, compiled: LossOf, ranks: Ranks, row: Batch, mixed: bool = False
    ) -> None:
        """``compiled`` is what a step runs, ``loss_of`` the original; with ``mixed``, FSDP gathers in bfloat16."""
        self.model, self._loss_of, self._compiled, self._ranks = model, loss_of, compiled, ranks
        self._wrapped: Any = None
        if ranks.sharding:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

            # Weights are gathered in bfloat16, in which autocast would multiply them anyway: half the bytes. The model
            # chooses the dtype between blocks (blocks.to_compute_dtype); gradients are added up in float32.
            lower = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
            for block in blocks_of(model):
                fully_shard(block, mesh=ranks.mesh, mp_policy=lower if mixed else MixedPrecisionPolicy())
                if hasattr(block, "keys"):  # XLNet calls it in addition to forward
                    register_fsdp_forward_method(block, "keys")
            self._wrapped = fully_shard(_LossModule(model, loss_of), mesh=ranks.mesh)
        elif ranks.size > 1:
            from torch.nn.parallel import DistributedDataParallel

            # Unless weights are declared unused, DDP reorders its sums after a process's first step. With more than two
            # terms that changes the rounding, and a resumed run would have a different result.
            unused = ranks.size > 2
            if not unused:
                # Whether the objective leaves weights without a gradient, such as those of segments. DDP's
                # static_graph=True would find them by itself, but with micro-batches (no_sync) its gradients are wrong.
                nll = loss_of(model, row, None).nll
                gradients = torch.autograd.grad(
                    nll, [p for p in model.parameters() if p.requires_grad], allow_unused=True
                )
                unused = any(gradient is None for gradient in gradients)
            self._wrapped = DistributedDataParallel(_LossModule(model, compiled), find_unused_parameters=unused)

    def __call__(self, rows: Batch, carry: Carry | None) -> Loss:
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

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """The context of a micro-batch: gradients are exchanged only with the last one, for all of them."""
        return nullcontext() if last or self._wrapped is None or self._ranks.sharding else self._wrapped.no_sync()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks in a model, such as ELECTRA's two."""
    return [block for module in model.modules() for block in getattr(module, "blocks", ())]


def wrap(model: nn.Module, by: Callable[[Forward], Forward]) -> None:
    """Replace the forward pass of each block; one that is wrapped already is wrapped again."""
    # Only ``forward``, so that weights keep their names and hooks stay outside.
    for block in blocks_of(model):
        block.forward = by(block.forward)


def restore_blocks(model: nn.Module) -> None:
    """Restore each block's own forward pass."""
    for block in blocks_of(model):
        vars(block).pop("forward", None)


def recompute(forward: Forward) -> Forward:
    """Keep only the inputs of a block: the backward pass computes it again (Chen et al. 2016).

    Dropout draws the same masks again, so gradients are bit-identical.
    """
    return partial(checkpoint, forward, use_reentrant=False)


def compiled(loss_of: LossOf, device: torch.device, replayed: int | None = None) -> LossOf:
    """Compile ``loss_of``; on a machine that cannot compile, return it unchanged, with a warning.

    Weight names stay the same, because the function is compiled and not the model. Dropout draws different numbers than
    without compilation, and sums are rounded differently; both are the same in every run. On a GPU the passes over
    batches of ``replayed`` rows are captured as CUDA graphs and replayed: the host launches one graph per pass instead
    of hundreds of kernels. Not for micro-batches: a replay overwrites the previous one's results, including gradients.
    """
    if not _can_compile(device):
        return loss_of
    graph = _compile(loss_of)
    captured = _compile(loss_of, mode="reduce-overhead") if device.type == "cuda" else graph

    def loss(model: nn.Module, batch: Batch, carry: Carry | None) -> Loss:
        result = (captured if len(batch.inputs) == replayed else graph)(model, batch, carry)
        if result.carry is None:
            return result
        # The next replay must not overwrite its own inputs. Strides are part of a graph's signature, and a snapshot
        # does not keep them.
        return replace(result, carry=tuple(t.clone(memory_format=torch.contiguous_format) for t in result.carry))

    return loss


def _can_compile(device: torch.device) -> bool:
    """Whether there is a working compiler; if not, a warning says why."""
    # ``device.prepare`` set this flag where the compiler does not see it; without it, threads add up in any order.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # If blocks are recomputed, the compiler mistakes a torch mode that ends within a block for a side effect.
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Fine-tuning pads to more lengths than the eight graphs that torch allows by default.
    torch._dynamo.config.recompile_limit = 64
    # Hide advice that no user can act on.
    for message in (r"\s*Online softmax is disabled", "TensorFloat32 tensor cores"):
        warnings.filterwarnings("ignore", message, UserWarning, r"torch\._inductor\b")
    try:
        _compile(lambda x: x + 1)(torch.zeros(3, device=device))
    except (RuntimeError, OSError) as error:  # such as a compiler without its headers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"training.compile: not compiled, because this machine cannot: {reason}", stacklevel=3)
        return False
    return True


class _LossModule(nn.Module):
    """The module that DDP and FSDP wrap: their hooks need ``forward``, but a loss calls other methods of a model."""

    def __init__(self, model: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.model = model
        self._loss_of = loss_of

    def forward(self, batch: Batch, carry: Carry | None) -> Loss:
        return self._loss_of(self.model, batch, carry)
