"""A permutation model's likelihoods are sums over single predictions in an order, with the memory of the order."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood import order_bits_per_byte
from plm_core.evaluation.likelihood.order_bits_per_byte import score, score_orders
from plm_core.text.tokenizers import EOS

PLAIN = LikelihoodConfig(stride=1)


@torch.no_grad()
def by_hand(model, sequence, orders):
    """One prediction at a time, each in a pass of its own. ``orders``: per segment, the positions in their order."""
    nats, start, memory = 0.0, 0, None
    carried = model.config.memory > 0
    for order in orders:
        segment = torch.tensor([sequence[start : start + len(order)]])
        places = torch.tensor([[order.index(position) for position in range(len(order))]])
        given = 0 if carried and start else 1
        for position in order[given:]:
            hidden = model(segment, places, memory=memory, queries=torch.tensor([[position]]))
            nats += float(F.cross_entropy(model.logits(hidden.query[:, 0]), segment[:, position]))
        before = model.empty_memory(1, 0) if memory is None else memory
        memory = before.extended(hidden.states, torch.ones_like(segment, dtype=torch.bool)).last(model.config.memory)
        start += len(order) - (not carried)
    return nats


def reading_order(length, context, carried):
    """The positions of each segment from left to right; without memory, segments share a token."""
    sizes = []
    while length > (0 if carried or not sizes else 1):
        sizes.append(min(context, length))
        length -= sizes[-1] if carried else sizes[-1] - 1
        if not carried and length == 1:
            break
    return [list(range(size)) for size in sizes]


@pytest.mark.parametrize("memory", [0, 1, 7, 19])
@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 24, 37])
def test_fixed_order_predicts_each_token_once_left_to_right(make_xlnet, make_text, device, memory, length):
    model, text = make_xlnet(memory=memory).eval(), make_text(length)
    orders = reading_order(length + 2, 13, memory > 0)
    assert sum(map(len, orders)) - (1 if memory else len(orders)) == length + 1
    (likelihood,) = score(model, [text], PLAIN, device)
    assert (likelihood.tokens, likelihood.bytes) == (length + 1, sum(text.sizes))
    assert likelihood.nats == pytest.approx(by_hand(model, [EOS, *text.ids, EOS], orders), rel=1e-12)


@pytest.mark.parametrize("memory", [0, 7])
@pytest.mark.parametrize("excerpt", [None, 5, 17])
def test_permutation_likelihood_is_the_mean_of_single_orders(
    make_xlnet, make_text, device, monkeypatch, memory, excerpt
):
    """Orders that are drawn are noted, and each is followed by hand."""
    drawn = []
    original = order_bits_per_byte._order

    def noted(size, given, draw):
        drawn.append(original(size, given, draw))
        return drawn[-1]

    monkeypatch.setattr(order_bits_per_byte, "_order", noted)
    model, text = make_xlnet(memory=memory).eval(), make_text(29)
    (likelihood,) = score_orders(model, [text], LikelihoodConfig(stride=1, excerpt=excerpt, orders=3), device)
    sequence = [EOS, *text.ids, EOS] if excerpt is None else [EOS, *text.ids[:excerpt]]
    assert likelihood.tokens == len(sequence) - 1
    nats = [by_hand(model, sequence, [np.argsort(places).tolist() for places in drawn[i::3]]) for i in range(3)]
    assert len(set(nats)) == 3
    assert likelihood.nats == pytest.approx(sum(nats) / 3, rel=1e-12)
    assert all(sorted(places) == list(range(len(places))) for places in drawn)
    assert all(places[0] == 0 for places in drawn[:3])


def test_permutation_orders_differ_by_text_and_are_reproducible(make_xlnet, make_text, device):
    model = make_xlnet()

    def nats(seed, orders):
        (likelihood,) = score_orders(model, [make_text(12, seed)], LikelihoodConfig(stride=1, orders=orders), device)
        return likelihood.nats

    assert nats(0, 5) == nats(0, 5)
    assert len({nats(0, orders) for orders in (1, 2, 3)}) == 3


def test_the_mean_over_many_orders_is_the_mean_over_all(make_xlnet, make_text, device):
    model, text = make_xlnet().eval(), make_text(3)
    sequence = [EOS, *text.ids, EOS]
    every = [by_hand(model, sequence, [[0, *order]]) for order in itertools.permutations(range(1, 5))]
    (likelihood,) = score_orders(model, [text], LikelihoodConfig(stride=1, orders=600), device)
    spread = float(np.std(every))
    assert abs(likelihood.nats - np.mean(every)) < 4 * spread / 600**0.5
    assert abs(by_hand(model, sequence, [[0, 1, 2, 3, 4]]) - np.mean(every)) > 4 * spread / 600**0.5


def test_no_orders_are_no_scores(make_xlnet, make_text, device):
    assert list(score_orders(make_xlnet(), [make_text(5)], PLAIN, device)) == []


def test_permutation_refuses_too_short_context(make_xlnet, make_text, device):
    with pytest.raises(ValueError, match=r"^context: 1; expected at least 2"):
        list(score(make_xlnet(context=1), [make_text(5)], PLAIN, device))
