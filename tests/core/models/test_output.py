"""A padded vocabulary changes the product, and neither logits nor gradients."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from plm_core.models import output_layer
from plm_core.models.output_layer import Output, padded


def made(vocabulary):
    draw = torch.Generator().manual_seed(3)
    shapes = ((5, 7, 13), (vocabulary, 13), (vocabulary,))
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("vocabulary", "product"), [(99, 128), (128, 128), (129, 192), (1, 64)])
def test_padded_vocab_output_matches_the_plain_product(monkeypatch, vocabulary, product, with_bias):
    monkeypatch.setattr(output_layer, "padded", lambda *given: padded(*given, 64))
    inputs = made(vocabulary)[: 2 + with_bias]
    with FlopCounterMode(display=False) as counter:
        logits = Output(*inputs).logits()
    assert counter.get_total_flops() == 2 * 35 * 13 * product
    expected = F.linear(*inputs)
    assert logits.shape == expected.shape == (5, 7, vocabulary)
    torch.testing.assert_close(logits, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), inputs)
    for left, right in zip(gradients, torch.autograd.grad(expected.logsumexp(-1).sum(), inputs), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_output_on_cpu_is_the_plain_product():
    hidden, weight, bias = made(99)
    with FlopCounterMode(display=False) as counter:
        logits = Output(hidden, weight, bias).logits()
    assert counter.get_total_flops() == 2 * 35 * 13 * 99
    assert torch.equal(logits, F.linear(hidden, weight, bias))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_output_on_cuda_pads_the_vocabulary():
    hidden, weight, bias = (tensor.detach().cuda() for tensor in made(99))
    with FlopCounterMode(display=False) as counter:
        logits = Output(hidden, weight, bias).logits()
    assert counter.get_total_flops() == 2 * 35 * 13 * 128
    torch.testing.assert_close(logits, F.linear(hidden, weight, bias), rtol=1e-12, atol=1e-12)
