"""The permutation objective: orders are uniform, the stream never sees the pair, rows are framed as released."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from papers import make

from plm_core.models.xlnet import Memory
from plm_core.objectives.causal import Causal
from plm_core.objectives.permutation import Permutation, factorisation
from plm_core.text.samplers import draws
from plm_core.text.tokenizers import CLS, EOS, SEP


@given(
    predictable=st.lists(st.booleans(), max_size=99),
    predict=st.integers(1, 9),
    first=st.integers(0, 99),
    seed=st.integers(0, 2**63),
    span=st.integers(1, 7),
)
def test_permutation_predicts_the_last_part_of_the_order(predictable, predict, first, seed, span):
    places, predicted = factorisation(np.array(predictable, dtype=bool), predict, first, draws(seed, 0, 0), span)
    assert len(predicted) == len(set(predicted)) == sum(predictable) // predict
    assert all(predictable[position] for position in predicted)
    assert [places[position] for position in predicted] == list(range(first + 1, first + 1 + len(predicted)))
    given_ = set(range(len(predictable))) - set(predicted.tolist())
    assert all(places[position] == first for position in given_)


def test_permutation_spans_are_random_neighbours():
    """Of 600 positions a sixtieth: spans hardly ever touch. Their first tokens are everywhere."""
    lengths, rising, first = Counter(), 0, Counter()
    for step in range(300):
        _, predicted = factorisation(np.ones(600, dtype=bool), 60, 0, draws(5, step, 0), span=4)
        ordered = np.sort(predicted)
        spans = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
        lengths.update(map(len, spans))
        first.update(int(span[0]) // 100 for span in spans)
        rising += int(np.diff(predicted).clip(0, 1).sum())
    shares = [lengths[length] / lengths.total() for length in (1, 2, 3, 4)]
    assert all(0.17 < share < 0.37 for share in shares), shares  # the last span is cut short where fewer are left
    assert sum(lengths[length] for length in range(5, 11)) < 0.1 * lengths.total()
    assert all(0.12 < first[part] / first.total() < 0.21 for part in range(6))
    assert 0.45 < rising / (300 * 9) < 0.55


@pytest.mark.parametrize("predict", [1, 2])
def test_permutation_orders_are_uniform(predict):
    n, draws_made = 4, 24 * 400
    seen = Counter(
        tuple(factorisation(np.ones(n, dtype=bool), predict, 0, draws(5, step, 1))[1]) for step in range(draws_made)
    )
    orders = list(itertools.permutations(range(n), n // predict))
    expected = draws_made / len(orders)
    assert set(seen) == set(orders)
    assert all(abs(count - expected) < 4.5 * expected**0.5 for count in seen.values())


@pytest.mark.parametrize(("reuse", "pair"), [(17, 12), (29, 0), (None, 15)])
def test_permutation_row_is_stream_and_pair_with_own_orders(store, reuse, pair):
    model, _ = make("xlnet")
    batches = Permutation(predict=3, reuse=reuse).batches(store, model.config, 7)
    R = 29 - pair
    before = None
    for step in range(3):
        batch = batches.at(3, step)
        stream, rest = batch.inputs[:, :R].numpy(), batch.inputs[:, R:].numpy()
        assert batch.queries.shape == batch.targets.shape == (7, R // 3 + max(0, pair - 3) // 3)
        assert (batch.order[:, :R].amax(1) < (batch.order[:, R:].amin(1) if pair else 99)).all()
        assert not np.isin(batch.targets.numpy(), (SEP, CLS)).any()
        for row in range(7 if pair else 0):
            marks = np.flatnonzero(rest[row] == SEP)
            assert (len(marks), marks[-1], rest[row, -1]) == (2, pair - 2, CLS)
            assert batch.segments[row].tolist() == [0] * (R + marks[0] + 1) + [1] * (pair - 2 - marks[0]) + [2]
        if before is not None and pair:
            # A of the step before is the beginning of this step's stream, unless it is cut short by B.
            a = [before[row, : np.flatnonzero(before[row] == SEP)[0]] for row in range(7)]
            assert all(np.array_equal(a[row], stream[row, : len(a[row])]) for row in range(7))
        before = rest


def test_permutation_memory_is_of_the_stream_only(store):
    model, objective = make("xlnet")
    batches = objective.batches(store, model.config, 7)
    R, M = objective.reuse, model.config.memory
    with torch.no_grad():
        carry = objective.loss(model, batches.at(3, 0)).carry
        batch = batches.at(3, 1)
        memory = Memory(*carry)
        hidden = model(batch.inputs, batch.order, batch.segments, memory, batch.queries)
        states, attention_mask = objective.loss(model, batch, carry).carry
        assert torch.equal(states, hidden.states[:, :, R - M : R])
        assert attention_mask.all()
        batch.inputs[:, R:] = 42
        assert torch.equal(objective.loss(model, batch, carry).carry[0], states)


@pytest.mark.parametrize(("reuse", "begins"), [(17, False), (29, False), (None, True)])
@torch.no_grad()
def test_memory_ends_with_its_document(store, reuse, begins):
    """What goes on is what stands behind the last EOS; to one who reads on to the right, EOS begins a document."""
    model, _ = make("xlnet", memory=40)
    objective = Permutation(predict=3, reuse=reuse, packing="documents")
    objective = Causal(streams=True, packing="documents") if reuse is None else objective
    batches, carry = objective.batches(store, model.config, 7), None
    generator, ends = torch.Generator().manual_seed(3), torch.zeros(7, 0, dtype=torch.bool)
    for step in range(4):
        batch = batches.at(3, step)
        batch.inputs[torch.rand(batch.inputs.shape, generator=generator) < 0.05] = EOS
        carry = objective.loss(model, batch, carry).carry
        ends = torch.cat((torch.zeros(7, 40) > 0, ends, batch.inputs[:, :reuse] == EOS), dim=1)
        behind = ends.flip(1).cumsum(1).flip(1)
        real = torch.arange(ends.shape[1]) >= 40
        expected = real & ((behind == 0) | (begins & (behind == 1) & ends))
        assert torch.equal(carry[1], expected[:, -40:])
        assert len(set(expected.sum(1).tolist())) > 3
        ends = ends[:, 40:]


def test_rows_begin_anew_with_each_pass_and_only_then(store):
    model, objective = make("xlnet")
    batches = objective.batches(store, model.config, 7)
    steps = batches.view.steps
    assert steps > 2
    begun = {step for step in range(2 * steps + 2) if batches.at(3, step).begins.all()}
    assert begun == {0, steps, 2 * steps}
    assert not any(batches.at(3, step).begins.any() for step in (1, steps - 1, steps + 1))


def test_b_follows_a_by_a_fair_coin(store):
    model, _ = make("xlnet")
    batches = Permutation(predict=3, reuse=17).batches(store, model.config, 7)
    followed = total = 0
    for step in range(0, 60):
        if batches.view.begins(step + 1):
            continue
        batch, later = batches.at(3, step), batches.at(3, step + 1)
        for row in range(7):
            pair = batch.inputs[row, 17:-2].tolist()
            a, b = pair[: pair.index(SEP)], pair[pair.index(SEP) + 1 :]
            followed += (a + b) == later.inputs[row, : len(a + b)].tolist()
            total += 1
    # A short B from elsewhere may be equal by chance, hence the room above.
    assert -4 * (total / 4) ** 0.5 < followed - total / 2 < 4 * (total / 4) ** 0.5 + total / 20
