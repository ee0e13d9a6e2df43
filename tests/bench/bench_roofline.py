"""What a step of each paper should take on a GPU, by its operations and bytes. `make roofline`, on any machine.

The step runs on torch's meta device, at the sizes and in the batches of ``bench_train.py``, in bfloat16, with AdamW.
Each operation is counted with its floating-point operations and the bytes that it reads and writes, and takes as long
as the datasheet allows for the longer of the two (Williams et al. 2009, "Roofline"). Two ends are told:

- fused: only products of matrices, attention and the optimizer move bytes; all else happens on the way. A compiled
  step comes near, and none is faster.
- eager: every operation reads its inputs and writes its outputs.

A second table says which depth of the size dial so many minutes of a GPU are for. Both stand in
``docs/how-to/gpus.md``.
"""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from bench_gpu import drawn_store
from bench_reference import table as markdown
from bench_train import OBJECTIVES, OPTIMIZER, SIZES, TOKENS, VOCABULARY, plain
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from plm_core.configs.architectures import MODELS
from plm_core.text.token_store import TokenStore
from plm_core.training.flops import META, datasheet_flops, step_flops
from plm_core.training.optimizer import Optimizer
from plm_core.training.size_presets import HEAD, batch_rows

GPUS = {
    "H100": (datasheet_flops("NVIDIA H100 80GB HBM3") or 0.0, 3.35e12),
    "H200": (datasheet_flops("NVIDIA H200") or 0.0, 4.8e12),
    "A100": (datasheet_flops("NVIDIA A100-SXM4-80GB") or 0.0, 2.039e12),
}
"""FLOP/s in bfloat16 and bytes a second, by the datasheets of the SXM boards."""
LOWER = {"linear", "matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm", "addmm"}
HIGHER = {"layer_norm", "rms_norm", "softmax", "log_softmax", "cross_entropy"}
"""The operations of the models that autocast runs in bfloat16 and in float32 (PyTorch, "Automatic Mixed Precision
package: CUDA Op-Specific Behavior")."""
LAUNCH = 5e-6
"""Seconds, about, that PyTorch takes on the host to start an operation."""
MINUTES, USED, TOKENS_A_WEIGHT = (5, 20, 60, 480), 0.4, 20
"""How long one is to train, which share of the datasheet's rate it reaches, what it reads (Hoffmann et al. 2022)."""


@dataclass(frozen=True)
class Counted:
    """An operation."""

    flops: int
    bytes: int

    def seconds(self, gpu: str) -> float:
        rate, bandwidth = GPUS[gpu]
        return max(self.flops / rate, self.bytes / bandwidth)


class Work(TorchDispatchMode):
    """Counts operations on meta: products of matrices, and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.products = list[Counted]()
        self.rest = list[Counted]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        reads, writes = ([x for x in tree_leaves(some) if _on_meta(x)] for some in ((args, kwargs), output))
        if not function.is_view and writes:
            moved = sum(map(_bytes, reads)) + sum(map(_bytes, writes))
            count = flop_registry.get(function.overloadpacket)
            flops = count(*args, **kwargs, out_val=output) if count else 0
            (self.products if count else self.rest).append(Counted(flops, moved))
        return output


class AsOnGpu(TorchFunctionMode):
    """Autocast to bfloat16, which the meta device lacks, and attention as a fused kernel that stores no weights."""

    def __enter__(self) -> Self:
        # By the flags that models read (blocks.to_compute_dtype); ``torch.autocast`` sets none without a GPU.
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        attention = function is F.scaled_dot_product_attention
        if attention or name in LOWER | HIGHER:
            dtype = torch.float32 if name in HIGHER else torch.bfloat16
            args = tuple(_cast(value, dtype) for value in args)
            kwargs = {key: _cast(value, dtype) for key, value in kwargs.items()}
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        if attention and (mask is None or not mask.requires_grad):
            return _Fused.apply(*args[:3])
        # With a mask that has a gradient, such as XLNet's bias, kernels store the weights.
        return function(*args, **kwargs)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class _Fused(torch.autograd.Function):
    """Attention that only has the shapes of its results."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def _on_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device == META


def _bytes(tensor: torch.Tensor) -> int:
    """What an expanded tensor repeats is read once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def table(papers: list[str], sizes: dict[str, dict[str, Any]], positions: int) -> Iterator[list[str]]:
    """A line for each paper, fused to eager."""
    yield ["paper", "TFLOP", "GB", *(f"{gpu}, ms (MFU)" for gpu in GPUS), "launches, ms"]
    with tempfile.TemporaryDirectory() as folder:
        store = drawn_store(Path(folder), VOCABULARY)
        for paper in papers:
            yield line(paper, sizes[paper], store, positions)


def line(paper: str, sizes: dict[str, Any], store: TokenStore, positions: int) -> list[str]:
    """What there is to say of a paper."""
    entry, objective = MODELS[paper], OBJECTIVES[paper]
    shape = plain(sizes)
    model = entry.model(entry.config(**shape)).to(META)
    batch = objective.batches(store, model.config, positions // shape["context"]).at(0, 0)
    optimizer = Optimizer(model, OPTIMIZER)
    with Work() as work:
        with AsOnGpu():
            loss = objective.loss(model, batch.to(META))
        loss.nll.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(0.0)
    flops = step_flops(model, objective.loss, batch)
    # A fused kernel's products are none of torch's: what the definition needs beyond those that were seen.
    attention = Counted(max(0, flops - sum(part.flops for part in work.products)), 0)
    state = Counted(0, 7 * sum(p.nbytes for p in model.parameters()))  # AdamW reads four numbers and writes three
    fused = [*work.products, attention, state]
    eager = [*work.products, *work.rest, attention]
    moved = (f"{sum(part.bytes for part in some) / 1e9:.0f}" for some in (fused, eager))
    cells = [paper, f"{flops / 1e12:.1f}", " to ".join(moved)]
    for gpu, (rate, _) in GPUS.items():
        seconds = [sum(part.seconds(gpu) for part in some) for some in (fused, eager)]
        used = (f"{flops / rate / took:.0%}" for took in seconds)
        cells.append(f"{' to '.join(f'{1e3 * took:.1f}' for took in seconds)} ({' to '.join(used)})")
    return [*cells, f"{1e3 * LAUNCH * len(eager):.1f}"]


def depths(gpu: str) -> Iterator[list[str]]:
    """For each time the deepest GPT of the size dial that reads its tokens in it."""
    yield ["minutes", "size", "million weights", "billion tokens", "rows", "steps"]
    context, vocabulary = SIZES["gpt"]["context"], SIZES["gpt"]["vocab_size"]
    for minutes in MINUTES:
        for depth in itertools.count(1):
            width = HEAD * depth
            weights = 12 * depth * width**2 + (vocabulary + context) * width  # Kaplan et al. 2020, section 2.1
            tokens = TOKENS_A_WEIGHT * weights
            seconds = tokens * (6 * weights + 12 * depth * width * context) / (USED * GPUS[gpu][0])  # PaLM, appendix B
            if seconds > 60 * minutes:
                break
            batch = batch_rows(depth, width, context)
            steps = round(tokens / batch / context, -2)
            cells = [f"`{depth}`", f"{weights / 1e6:.0f}", f"{tokens / 1e9:.1f}", f"{batch}", f"{steps:,.0f}"]
        yield [f"{minutes}", *cells]


if __name__ == "__main__":
    print(markdown(table(list(OBJECTIVES), SIZES, TOKENS)), markdown(depths("H200")), sep="\n\n")
