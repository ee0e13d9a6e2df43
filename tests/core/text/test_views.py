"""What a step reads is a function of (seed, step): every epoch visits every window once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import BadInput
from plm_core.text.store import TokenStore, write_store
from plm_core.text.views import Windows, epoch_order, items_at, stream_seed

SEEDS = st.integers(0, 2**63 - 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory, documents, tokenizer):
    folder = tmp_path_factory.mktemp("views") / "train"
    write_store(folder, ((d.id, d.text) for d in documents), tokenizer, shard_tokens=777)
    return TokenStore(folder)


@given(seed=SEEDS, epoch=st.integers(0, 99), count=st.integers(1, 199))
def test_each_epoch_is_a_permutation(seed, epoch, count):
    assert sorted(epoch_order(seed, epoch, count)) == list(range(count))


@given(seed=SEEDS, batch=st.integers(1, 13), count=st.integers(1, 37), epochs=st.integers(1, 4))
def test_steps_read_epoch_after_epoch_each_item_once(seed, batch, count, epochs):
    steps = -(-epochs * count // batch)
    read = np.concatenate([items_at(seed, step, batch, count) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(read[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(seed=SEEDS, step=st.integers(0, 10**6), batch=st.integers(1, 13), count=st.integers(1, 99))
def test_any_step_is_read_without_those_before(seed, step, batch, count):
    epoch_order.cache_clear()
    alone = items_at(seed, step, batch, count)
    for before in range(max(0, step - 3), step):
        items_at(seed, before, batch, count)
    assert np.array_equal(items_at(seed, step, batch, count), alone)


@given(seed=SEEDS, step=st.integers(0, 99))
def test_a_batch_of_12_reads_what_two_of_6_read(seed, step):
    halves = [items_at(seed, 2 * step + half, 6, 37) for half in range(2)]
    assert np.array_equal(items_at(seed, step, 12, 37), np.concatenate(halves))


def test_epochs_and_seeds_draw_other_orders():
    assert not np.array_equal(epoch_order(1, 0, 99), epoch_order(1, 1, 99))
    assert not np.array_equal(epoch_order(1, 0, 99), epoch_order(2, 0, 99))
    assert not epoch_order(1, 0, 99).flags.writeable


def test_named_streams_of_one_seed_are_independent():
    names = [("weights",), ("order",), ("dropout", 0, 1), ("dropout", 1, 0), ("dropout", 0), ("dropout", "0")]
    assert len({stream_seed(7, *name) for name in names}) == len(names)
    assert stream_seed(7, "order") != stream_seed(8, "order")
    assert all(0 <= stream_seed(7, "x", i) < 2**63 for i in range(99))


def test_windows_overlap_by_one_and_cover_the_stream_but_for_less_than_a_context(store):
    windows = Windows(store, 13)
    stream = store.tokens(0, len(store))
    rows = windows.first_rows(10**9)
    assert rows.shape == (len(windows), 14)
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])
    targets = rows[:, 1:].flatten()
    assert np.array_equal(targets, stream[1 : 1 + len(targets)])
    assert len(stream) - 1 - len(targets) < 13


def test_the_rows_of_a_step_are_the_windows_of_its_items(store):
    windows = Windows(store, 13)
    rows = windows.rows_at(5, 99, 7)
    assert rows.shape == (7, 14)
    items = items_at(5, 99, 7, len(windows))
    for row, item in zip(rows, items, strict=True):
        assert np.array_equal(row, store.tokens(item * 13, item * 13 + 14))


@pytest.mark.parametrize("surplus", [0, 1, 99])
def test_a_context_longer_than_the_data_is_refused_by_name(store, surplus):
    with pytest.raises(BadInput, match=rf"train: holds {len(store)} tokens, fewer than one window .* model\.context"):
        Windows(store, len(store) + surplus)
    assert len(Windows(store, len(store) - 1)) == 1
