"""The loss over some of the vocabulary estimates that over all of it, as by hand, and in training alone."""

import math
from dataclasses import replace

import pytest
import torch
from papers import make

from plm_core.models import sampled
from plm_core.models.output import Output
from plm_core.models.sampled import sampled_nll, size
from plm_core.objectives.loss import IGNORED, output_nll, summed_nll

N, D, V = 12, 5, 61


def made(bias=True, targets=N):
    draw = torch.Generator().manual_seed(3)
    shapes = [(targets, D), (V, D), (V,)][: 2 + bias]
    inputs = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    return Output(*inputs), torch.randint(V // 4, (targets,), generator=draw)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("count", [2, 5])
def test_loss_and_gradients_are_as_by_hand(monkeypatch, bias, count):
    output, targets = made(bias)
    targets[4] = IGNORED
    drawn = torch.tensor([int(targets[1]), 40, 40, 55, 7])[-count:]
    monkeypatch.setattr(torch, "randint", lambda *_, **__: drawn)
    near = targets.clamp(min=0)[: sampled.NEAR * count] if count == 5 else None
    if near is None:  # eight of twelve, spread over them
        near = targets.clamp(min=0)[[i * N // 8 for i in range(8)]]
    known = set(near.tolist())
    far = [token for token in drawn.tolist() if token not in known]
    logits = output.hidden @ output.weight.T + (output.bias if bias else 0)
    expected = []
    for i, target in enumerate(targets.tolist()):
        if target == IGNORED:
            expected.append(torch.zeros(()))
            continue
        inside = sum(logits[i, token].exp() for token in known if token != target)
        outside = sum(logits[i, token].exp() for token in far if token != target) * (V - len(known)) / len(far)
        expected.append((logits[i, target].exp() + inside + outside).log() - logits[i, target])
    expected = torch.stack(expected)
    found = sampled_nll(output, targets, count, IGNORED)
    torch.testing.assert_close(found, expected.to(found))
    wanted = [tensor for tensor in output if tensor is not None]
    gradients = torch.autograd.grad(found.sum(), wanted)
    for one, other in zip(gradients, torch.autograd.grad(expected.sum(), wanted), strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_the_sum_in_the_softmax_is_right_on_average():
    torch.manual_seed(1)
    output, targets = made()
    logits = output.logits()
    # e to the loss is the sum over what the target adds to it.
    whole = (logits.logsumexp(1) - logits.gather(1, targets[:, None])[:, 0]).exp()
    found = torch.stack([sampled_nll(output, targets, 6, IGNORED).exp() for _ in range(4000)]) / whole
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - 1).abs() < 5 * error).all()
    assert (found.std(0) > 0).all()


def test_it_is_for_what_saves_logits(monkeypatch):
    output, targets = made(targets=70)
    assert [size(3, 70), size(3, 7), size(12, 70), size(13, 70)] == [15, 10, 60, 65]
    asked = []
    monkeypatch.setattr(sampled, "sampled_nll", lambda *given: asked.append(given[2]) or torch.zeros(70))
    for count in (12, 13):
        output_nll(output, targets, sampled=count)
    assert asked == [12]
    assert torch.equal(output_nll(output, targets, sampled=13), summed_nll(output.logits(), targets))


def test_weights_count_each_target():
    output, targets = made()
    weights = torch.arange(N, dtype=torch.float64)
    torch.manual_seed(1)
    nats = sampled_nll(output, targets, 3, IGNORED)
    torch.manual_seed(1)
    assert output_nll(output, targets, weights, 3).item() == pytest.approx((nats * weights).sum().item(), rel=1e-12)


@pytest.mark.parametrize("name", ["gpt", "transformer_xl", "gpt_bert", "bert", "roberta", "xlnet"])
def test_an_objective_samples_in_training_alone(store, name):
    model, objective = make(name)
    few = replace(objective, sampled_softmax=2)
    batch = objective.batches(store, model.config, 5).at(3, 1)
    losses = {}
    for training in (True, False):
        model.train(training)
        torch.manual_seed(1)
        losses[training] = [each.loss(model, batch).nll.item() for each in (objective, few)]
    assert losses[False][0] == losses[False][1]
    assert losses[True][1] != pytest.approx(losses[True][0], rel=1e-6)
    assert losses[True][1] == pytest.approx(losses[True][0], rel=0.2)


def test_one_graph_will_do_for_all_batches():
    graph = torch.compile(sampled_nll, backend="aot_eager", fullgraph=True, dynamic=False)
    for seed in (1, 2):
        torch.manual_seed(seed)
        output, targets = made()
        targets = (targets + seed) % V
        torch.manual_seed(seed)
        expected = sampled_nll(output, targets, 3, IGNORED)
        torch.manual_seed(seed)
        torch.testing.assert_close(graph(output, targets, 3, IGNORED), expected)
    assert len(torch._dynamo.utils.counters["graph_break"]) == 0
