"""Muon beside torch's own, digit for digit, and what its updates look like."""

import pytest
import torch

from plm_core.training import muon
from plm_core.training.muon import Muon, newton_schulz

SHAPES = [(24, 8), (8, 24), (8, 8), (24, 8), (16, 8)]


@pytest.fixture(params=[True, False])
def bfloat16(request, monkeypatch):
    """A machine with instructions for bfloat16, and one without."""
    monkeypatch.setattr(muon, "multiplies_bfloat16", lambda kind: request.param)
    return request.param


def drawn(seed):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


@pytest.mark.parametrize("together", [1, 400, muon.TOGETHER])
def test_muon_matches_torch(monkeypatch, together):
    monkeypatch.setattr(muon, "multiplies_bfloat16", lambda kind: True)
    monkeypatch.setattr(muon, "TOGETHER", together)
    ours, theirs = ([torch.nn.Parameter(matrix) for matrix in drawn(1)] for _ in range(2))
    own = Muon([{"params": ours, "weight_decay": 0.3, "lr": 0.02}], 0.9)
    for matrix in ours:
        own.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    for seed in (2, 3, 4):
        for parameters, optimizer in ((ours, own), (theirs, reference)):
            for parameter, gradient in zip(parameters, drawn(seed), strict=True):
                parameter.grad = gradient
            parameters[2].grad = None  # such as one that no batch has reached
            optimizer.step()
    for a, b, first in zip(ours, theirs, drawn(1), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert torch.equal(a, first) == (a is ours[2])


def test_newton_schulz_makes_singular_values_nearly_one(bfloat16):
    for matrix in drawn(5):
        update = newton_schulz(matrix[None])[0]
        assert update.shape == matrix.shape
        assert update.dtype == torch.float32
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ update @ right.T
        assert float(values.diagonal().min()) > 0.5
        assert float(values.diagonal().max()) < 1.3
        beside = float((values - values.diagonal().diag()).abs().max())
        assert beside < (0.06 if bfloat16 else 1e-4)


def test_muon_update_is_independent_of_batched_matrices(bfloat16):
    first, _, _, second, _ = drawn(6)
    for stack in (torch.stack((first, second)), torch.nn.functional.pad(torch.stack((first, second)), (0, 0, 0, 3))):
        for matrix, update in zip((first, second), newton_schulz(stack), strict=True):
            alone = newton_schulz(matrix[None])[0]
            torch.testing.assert_close(update[:24], alone, rtol=0.02, atol=0.02 if bfloat16 else 1e-5)
            assert not update[24:].any()


def test_muon_zero_gradient_is_no_update(bfloat16):
    assert not newton_schulz(torch.zeros(2, 3, 5)).any()


def test_newton_schulz_keeps_float64(bfloat16):
    (matrix, *_) = drawn(7)
    exact = newton_schulz(matrix.double()[None])
    assert exact.dtype == torch.float64
    permuted = newton_schulz(matrix.double().flip(0)[None]).flip(1)
    torch.testing.assert_close(exact, permuted, rtol=1e-11, atol=1e-11)


def test_muon_bounds_matrices_copied_at_once(monkeypatch):
    stacks = []
    monkeypatch.setattr(muon, "TOGETHER", 2 * 24 * 8 + 1)
    monkeypatch.setattr(muon, "newton_schulz", lambda stack: stacks.append(len(stack)) or stack)
    matrices = [torch.nn.Parameter(torch.ones(24, 8)) for _ in range(5)]
    optimizer = Muon([{"params": matrices, "weight_decay": 0.0, "lr": 0.02}], 0.9)
    for matrix in matrices:
        matrix.grad = torch.ones(24, 8)
        optimizer.state[matrix]["momentum_buffer"] = torch.zeros(24, 8)
    optimizer.step()
    assert stacks == [2, 2, 1]
