"""A loss in chunks is the loss, and its gradients the gradients, and most logits are never in memory."""

from itertools import product

import pytest
import torch
from compilers import pretend
from papers import PAPERS, make
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from plm_core.models.output_layer import Output, padded
from plm_core.objectives import objective as objectives
from plm_core.objectives.objective import IGNORED, output_nll, summed_nll

N, D, V = 23, 13, 99


def made(dtype=torch.float64, bias=True):
    draw = torch.Generator().manual_seed(3)
    shapes = [(N, D), (V, D), (V,)][: 2 + bias]
    inputs = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(V, (N,), generator=draw)
    targets[[0, 7, 22]] = IGNORED
    return inputs, targets, torch.rand(N, generator=draw, dtype=torch.float64)


class Largest(TorchDispatchMode):
    """The most rows of logits in one tensor."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.shape[-1] == V and tensor.shape != (D, V):
                self.rows = max(self.rows, tensor.numel() // V)
        return output


@pytest.mark.parametrize("rows", [1, 4, 22], ids=lambda rows: f"{rows} rows")
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("multiple", [1, 64])
def test_chunked_loss_and_gradients_match_full_logits(monkeypatch, rows, weighted, bias, multiple):
    inputs, targets, weights = made(bias=bias)
    weights = weights if weighted else None
    expected = summed_nll(Output(*inputs).logits(), targets, weights)
    monkeypatch.setattr(objectives, "AT_ONCE", rows * V)
    monkeypatch.setattr("plm_core.models.output_layer.padded", lambda *given: padded(*given, multiple))
    with Largest() as seen, FlopCounterMode(display=False) as counter:
        nll = output_nll(Output(*inputs), targets, weights)
        gradients = torch.autograd.grad(nll / 7, inputs)
    assert seen.rows == -(-N // -(-N // rows)) <= rows
    assert counter.get_total_flops() == 3 * 2 * N * D * len(padded(inputs[1], None, multiple)[0])
    torch.testing.assert_close(nll, expected, rtol=1e-13, atol=0)
    for left, right in zip(gradients, torch.autograd.grad(expected / 7, inputs), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_chunked_loss_without_gradient_costs_one_product(monkeypatch):
    (hidden, weight, bias), targets, _ = made()
    monkeypatch.setattr(objectives, "AT_ONCE", 4 * V)
    expected = output_nll(Output(hidden, weight, bias), targets)
    # Not even that of the logits, which is made from their exponentials.
    with torch.no_grad(), FlopCounterMode(display=False) as counter, monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "exp_", None)
        assert torch.equal(output_nll(Output(hidden, weight, bias), targets), expected)
    assert counter.get_total_flops() == 2 * N * D * V
    output_nll(Output(hidden.detach(), weight, bias.detach()), targets).backward()
    assert (hidden.grad, bias.grad) == (None, None)
    assert weight.grad is not None


def test_chunked_loss_in_bfloat16_sums_in_float32(monkeypatch):
    exact, targets, _ = made()
    truth = torch.autograd.grad(output_nll(Output(*exact), targets), exact)
    inputs, _, _ = made(torch.float32)

    def far():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nll = output_nll(Output(*inputs), targets)
        assert nll.dtype == torch.float32
        return [float((a - b).norm() / b.norm()) for a, b in zip(torch.autograd.grad(nll, inputs), truth, strict=True)]

    plain = far()
    monkeypatch.setattr(objectives, "AT_ONCE", 4 * V)
    assert all(0 < chunked < 1.5 * whole < 0.05 for chunked, whole in zip(far(), plain, strict=True))


def test_chunked_bfloat16_gradient_is_divided_exactly(monkeypatch):
    (hidden, weight, bias), targets, _ = made(torch.float32)
    monkeypatch.setattr(objectives, "AT_ONCE", 4 * V)

    def gradient(dtype):
        read = hidden.detach().bfloat16().to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nll = output_nll(Output(read, weight, bias), targets)
        return torch.autograd.grad(nll / 53, read)[0].double()  # 1/53 in bfloat16 is 0.28 % too much

    rough, exact = gradient(torch.bfloat16), gradient(torch.float32)
    assert float((rough * exact).sum() / (exact * exact).sum()) == pytest.approx(1, abs=5e-4)


@pytest.mark.parametrize("name", PAPERS)
def test_chunked_step_matches_for_every_architecture(store, monkeypatch, name):
    model, objective = make(name)
    batch = objective.batches(store, model.config, 5).at(3, 1)

    def step():
        model.zero_grad()
        nll = objective.loss(model, batch).nll
        nll.backward()
        return [nll.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    expected = step()
    monkeypatch.setattr(objectives, "AT_ONCE", 1000)
    for left, right in zip(step(), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("multiple", [1, 64])
def test_chunked_loss_compiles(monkeypatch, multiple):
    inputs, targets, weights = made()
    expected = output_nll(Output(*inputs), targets, weights)
    monkeypatch.setattr(objectives, "AT_ONCE", 4 * V)
    monkeypatch.setattr("plm_core.models.output_layer.padded", lambda *given: padded(*given, multiple))
    monkeypatch.setattr("plm_core.models.output_layer._in_place", None)
    nll = torch.compile(output_nll, dynamic=False, fullgraph=True)(Output(*inputs), targets, weights)
    torch.testing.assert_close(nll, expected, rtol=1e-12, atol=0)
    gradients = (torch.autograd.grad(nats, inputs) for nats in (nll, expected))
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_chunked_loss_compiled_for_gpu_uses_larger_chunks(monkeypatch):
    sizes, whole = [], []
    monkeypatch.setattr("plm_core.models.output_layer.nll_in_chunks", lambda *given: sizes.append(given[-1]))
    monkeypatch.setattr(objectives, "summed_nll", lambda logits, *_: whole.append(logits.shape))
    with FakeTensorMode():
        for device, compiling, mixed in product(("cuda", "cpu"), (False, True), (False, True)):
            pretend(monkeypatch, compiling)
            monkeypatch.setattr(torch, "is_autocast_enabled", lambda _, mixed=mixed: mixed)
            output = Output(torch.empty(2**14, 8, device=device), torch.empty(2**15, 8, device=device))
            output_nll(output, torch.empty(2**14, dtype=torch.long, device=device))
    assert sizes == [2**12] * 3 + [2**14] + [2**12] * 4
    assert not whole
