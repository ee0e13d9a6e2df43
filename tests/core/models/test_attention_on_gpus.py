"""Which of torch's attention kernels a model runs on a GPU, and that the one in blocks is the others' function."""

import operator
from functools import partial

import pytest
import torch
from compilers import pretend
from rounds import few
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, flex_attention

from plm_core.models import blocks, gpt
from plm_core.models.blocks import TILE, attend
from plm_core.models.rotary import angles
from plm_core.training import parallelize
from plm_core.training.parallelize import recompute, wrap

WHOLE = 2 * TILE


@pytest.fixture
def ran(monkeypatch):
    """What was run: ``blocks``, or torch's function with its first choice of a kernel."""
    kernels = []

    def kernel(q, *_):
        cudnn = torch.backends.cuda.cudnn_sdp_enabled()
        kernels.append("cudnn" if cudnn and torch._C._get_sdp_priority_order()[0] == cudnn_first else "torch's choice")
        return q

    cudnn_first = SDPBackend.CUDNN_ATTENTION.value
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    monkeypatch.setattr(blocks, "_in_blocks", lambda q, *_: kernels.append("blocks") or q)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as device.prepare leaves it
    yield kernels
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    ("case", "compiled", "expected"),
    [
        ({}, True, "cudnn"),
        ({"causal": True}, False, "cudnn"),
        ({"causal": True, "dropout": 0.1}, True, "cudnn"),
        ({"Q": WHOLE - 64, "K": WHOLE - 64}, True, "torch's choice"),
        ({"Q": 1}, False, "torch's choice"),
        ({"masked": True}, True, "blocks"),
        ({"masked": True}, False, "torch's choice"),
        ({"masked": True, "dropout": 0.1}, True, "torch's choice"),
        ({"masked": True, "Q": 5}, True, "torch's choice"),
        ({"masked": True, "Q": TILE, "K": TILE}, True, "torch's choice"),
        ({"masked": True, "heads": 3}, True, "torch's choice"),
        ({"masked": True, "D": 8}, True, "torch's choice"),
        ({"bias": True}, True, "torch's choice"),
    ],
    ids=str,
)
def test_attention_kernel_is_chosen_by_visibility(ran, monkeypatch, case, compiled, expected):
    Q, K, D = (case.get(name, default) for name, default in (("Q", WHOLE), ("K", WHOLE), ("D", 16)))
    pretend(monkeypatch, compiled)
    with FakeTensorMode():
        q, k, v = (torch.empty(2, 3, n, D, device="cuda") for n in (Q, K, K))
        heads = case.get("heads", 1)
        mask = torch.ones(2, heads, Q, K, dtype=torch.bool, device="cuda") if case.get("masked") else None
        bias = torch.empty(2, 3, Q, K, device="cuda") if case.get("bias") else None
        attend(q, k, v, mask, case.get("causal", False), bias, case.get("dropout", 0.0))
    assert ran == [expected]
    assert not torch.backends.cuda.cudnn_sdp_enabled()


MASKS = {
    "padding": lambda T: (torch.arange(T) < torch.tensor([[T - 70], [T]]))[:, None, None],
    "window": lambda T: torch.ones(T, T, dtype=torch.bool).tril(9).triu(-20)[None, None],
    "documents": lambda T: (
        torch.arange(T)[:, None] // torch.tensor([50, 90])[:, None, None] == torch.arange(T) // 50
    ).tril()[:, None],
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("T", [TILE + 12, few(WHOLE)])
@pytest.mark.parametrize("name", MASKS)
def test_flex_attention_matches_and_compiles_as_one_graph(monkeypatch, name, T):
    # torch refuses a gradient of it on a CPU, where it only writes down the whole product.
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    draw, mask = torch.Generator().manual_seed(1), MASKS[name](T)
    leaves = [torch.randn(2, 3, T, 16, generator=draw, requires_grad=True) for _ in range(3)]
    weight = torch.randn(2, 3, T, 16, generator=draw)

    def values(function):
        y = function(*leaves, mask)
        return y, *torch.autograd.grad((y * weight).sum(), leaves)

    expected = values(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask).nan_to_num())
    tiles = (
        F.pad(mask.expand(-1, 1, T, T), (0, -T % TILE, 0, -T % TILE)).unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
    )
    assert torch.equal(blocks._blocks_of(mask, T).to_dense().bool(), tiles.any(5).any(3))
    whole = torch.compile(blocks._in_blocks, backend="aot_eager", fullgraph=True, dynamic=False)
    for actual in (values(blocks._in_blocks), values(whole)):
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiler_computes_angles_once_and_does_not_look_into_them():
    graphs = []
    positions = torch.arange(7)

    def twice(x):
        by = angles(positions, 4, 1e4, torch.float32)
        return x * by.cos + x * by.sin

    compiled = torch.compile(twice, backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True)
    x = torch.randn(1, 1, 7, 2)
    assert torch.equal(compiled(x), twice(x))
    called = {str(node.target) for node in graphs[0].graph.nodes if node.op.startswith("call")}
    assert called == {"plm.angles.default", *map(str, (operator.getitem, operator.mul, operator.add)), "to"}


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_the_compiler_is_told_the_shape_of_angles(shape):
    positions = torch.arange(7).expand(shape)
    torch.library.opcheck(torch.ops.plm.angles, (positions, 6, 1e4, 4.0, 16))
    assert (
        angles(positions.to("meta"), 6, 1e4, torch.float32).cos.shape
        == angles(positions, 6, 1e4, torch.float32).cos.shape
    )


@pytest.mark.slow
def test_masks_in_blocks_are_compiled_where_blocks_are_recomputed(monkeypatch, make):
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(gpt, "attend", lambda q, k, v, attn_mask, **_: blocks._in_blocks(q, k, v, attn_mask))
    monkeypatch.setattr(parallelize, "_compile", partial(parallelize._compile, backend="aot_eager"))
    model = make("gpt")
    ids = torch.randint(99, (2, 17), generator=torch.Generator().manual_seed(1))
    documents = (torch.arange(17) // 5).expand(2, 17)

    def loss(model, ids, documents):
        return model.read(ids, documents=documents).square().sum()

    wrap(model, recompute)
    assert parallelize._can_compile(torch.device("cpu"))
    weights = list(model.blocks.parameters())
    functions = loss, parallelize._compile(loss)
    expected, ours = (torch.autograd.grad(function(model, ids, documents), weights) for function in functions)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
