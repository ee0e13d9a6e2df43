"""An estimate of the memory that a step needs, by which a batch is split into micro-batches. Used by the loop.

The step runs on torch's meta device, where tensors have sizes but no values, and the live bytes are added up. This
works for every model and objective, on any machine. Kernel workspaces and fragmentation are not included. A compiled
step mostly needs less, because many of its tensors are never written; but it computes more logits at once (loss.py).
"""

import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plm_core.objectives.loss import Batch
from plm_core.training.compiling import LossOf
from plm_core.training.config import OptimizerConfig
from plm_core.training.flops import META, on_meta
from plm_core.training.optimizer import Optimizer
from plm_core.training.precision import Precision

LOWER = {"linear", "matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm", "addmm"}
HIGHER = {"layer_norm", "rms_norm", "softmax", "log_softmax", "cross_entropy"}
"""The operations of the models that autocast runs in bfloat16 and in float32 (PyTorch, "Automatic Mixed Precision
package: CUDA Op-Specific Behavior")."""


def step_memory(
    model: nn.Module,
    loss_of: LossOf,
    rows: Batch,
    precision: Precision,
    config: OptimizerConfig,
    replayed: bool = False,
) -> int:
    """The peak of live bytes in a step on ``rows``: weights, gradients, the optimizer's state and activations. The
    passes of a step that is ``replayed`` keep their memory. For the other arguments and errors see ``step_on_meta``."""
    with _Alive() as alive:
        step_on_meta(model, loss_of, rows, precision, config, alive.keep if replayed else lambda: None)
    return alive.most


def step_on_meta(
    model: nn.Module,
    loss_of: LossOf,
    rows: Batch,
    precision: Precision,
    config: OptimizerConfig,
    behind_passes: Callable[[], None] = lambda: None,
) -> None:
    """Run a step on ``rows`` on the meta device, with the operations that a GPU would run, so that they can be counted.

    ``loss_of`` must not be compiled; the model is not changed. ``behind_passes`` is called before the update.

    Raises:
        RuntimeError, ValueError: see ``flops.step_flops``.
    """
    small = on_meta(model)
    optimizer = Optimizer(small, config)
    batch = rows.to(META)
    with torch.enable_grad(), _AsOnDevice(precision):
        loss = loss_of(small, batch, None)
        # Recomputed blocks run here again, as on the device. ``backward`` would disable the mode.
        one = torch.ones_like(loss.nll)
        _engine_run_backward((loss.nll,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    behind_passes()
    nn.utils.clip_grad_norm_(small.parameters(), 1.0)
    optimizer.step(0.0)


def room_on(device: torch.device) -> int | None:
    """The bytes available to a step in total, weights and state included; None for a CPU, whose memory is shared.

    A tenth is reserved for what the estimate does not include.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(0.9 * (free + torch.cuda.memory_reserved(device)))


def parts_that_fit(needed: Callable[[int], int], gradients: int, rows: int, room: int) -> int:
    """The smallest number of micro-batches (1, 2, 4 and so on) with which a step on ``rows`` fits.

    Args:
        needed: The bytes of a step on a given number of rows.
        gradients: The bytes of all gradients, which exist before the forward pass of every micro-batch but the first.
        rows: The rows of the batch; also the result if not even one row fits.
        room: The bytes available.
    """
    parts = 1
    while parts < rows and needed(-(-rows // parts)) + gradients * (parts > 1) > room:
        parts = min(2 * parts, rows)
    return parts


class _Alive(TorchDispatchMode):
    """Adds up the bytes of the storages that are alive, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def keep(self) -> None:
        """Count the most so far as alive from now on: the pool of a CUDA graph keeps its memory."""
        self._now = self.most

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.device == META:
                self._add(tensor.untyped_storage())
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if key in self._known:
            return

        def gone(_: object) -> None:
            self._now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self._now += size
        self.most = max(self.most, self._now)


class _AsOnDevice(TorchFunctionMode):
    """Autocast, which the meta device lacks, and attention as a fused kernel that does not store its weights."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._mixed = precision == "bfloat16"

    def __enter__(self) -> Self:
        # By the flags that models read (blocks.narrowed); ``torch.autocast`` sets none without a GPU.
        self._before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        torch.set_autocast_enabled("cuda", self._mixed)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_autocast_enabled("cuda", self._before[0])
        torch.set_autocast_dtype("cuda", self._before[1])

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        attention = function is F.scaled_dot_product_attention
        if self._mixed and (attention or name in LOWER | HIGHER):
            dtype = torch.float32 if name in HIGHER else torch.bfloat16
            args = tuple(_cast(value, dtype) for value in args)
            kwargs = {key: _cast(value, dtype) for key, value in kwargs.items()}
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        if attention and (mask is None or not mask.requires_grad):
            return _Fused.apply(*args[:3], mask)
        # With a mask that has a gradient, such as XLNet's bias, kernels store the weights.
        return function(*args, **kwargs)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class _Fused(torch.autograd.Function):
    """Uses as much memory as flash attention (Dao et al. 2022), which stores its output and one number per query. Of a
    mask each call stores its own copy, as numbers to be added; compiled steps need none (blocks.py)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out = torch.empty_like(q)
        added = None if mask is None else torch.empty_like(mask, dtype=q.dtype)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device), added)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v = ctx.saved_tensors[:3]
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
