"""Choosing rows and columns: torch's own results and gradients, without what adds up or sorts."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from plm_core.models.blocks import rows_at, windows_at

B, H, T, D = 2, 3, 7, 4


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


def at(*shape):
    return torch.randint(0, T, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("x", "chosen"), [((B, T, D), (B, 5)), ((B, H, T, D), (B, 1, 5))])
def test_chosen_rows_and_gradients_match_gather(x, chosen):
    x, chosen = drawn(*x), at(*chosen)
    assert any(row.unique().numel() < row.numel() for row in chosen.flatten(0, -2)), "one is chosen twice"
    expected = x.gather(-2, chosen[..., None].expand(*x.shape[:-2], -1, D))
    assert torch.equal(rows_at(x, chosen), expected)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    left, right = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (rows_at(x, chosen), expected))
    torch.testing.assert_close(left, right, rtol=1e-14, atol=1e-14)
    assert gradcheck(rows_at, (x, chosen))
    assert gradgradcheck(rows_at, (x, chosen))


def test_masks_are_chosen_too():
    seen = torch.rand(B, 1, T, T) < 0.5
    chosen = at(B, 5)
    assert torch.equal(rows_at(seen, chosen[:, None])[1, 0, 3], seen[1, 0, chosen[1, 3]])


def test_windows_and_gradients_match_gather():
    x, starts = drawn(B, H, 5, 9), torch.tensor([[0, 5, 2, 3, 3], [1, 1, 4, 0, 5]])
    columns = (starts[:, None, :, None] + torch.arange(4)).expand(B, H, 5, 4)
    assert torch.equal(windows_at(x, starts, 4), x.gather(-1, columns))
    weights = torch.randn(B, H, 5, 4, dtype=torch.float64)
    left, right = (
        torch.autograd.grad((y * weights).sum(), x)[0] for y in (windows_at(x, starts, 4), x.gather(-1, columns))
    )
    assert torch.equal(left, right)
    assert gradcheck(windows_at, (x, starts, 4))


class Called(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_no_gradient_is_scattered():
    """Else the test says nothing: torch's own gather is seen to scatter."""
    x, starts = drawn(B, H, T, D), at(B, 1, 5)
    for work, scatters in (
        (lambda: rows_at(x, starts).sum().backward(), False),
        (lambda: windows_at(x, torch.zeros(B, T, dtype=torch.long), 3).sum().backward(), False),
        (lambda: x.gather(-2, starts[..., None].expand(B, H, -1, D)).sum().backward(), True),
    ):
        with Called() as called:
            work()
        assert bool({n for n in called.names if n.startswith(("scatter", "index_put", "index_add"))}) == scatters
