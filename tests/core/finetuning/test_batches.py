"""Batches of like length: each example once an epoch, the same whoever asks, and little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plm_core.finetuning.featurize import Batching


@given(count=st.integers(1, 299), batch=st.integers(1, 37), seed=st.integers(0, 9))
def test_an_epoch_reads_each_example_once_but_for_less_than_a_batch(count, batch, seed):
    batching = Batching(np.random.default_rng(seed).integers(1, 99, count), batch, seed)
    epochs = [[batching.at(e * batching.epoch + i) for i in range(batching.epoch)] for e in range(2)]
    for read in epochs:
        assert all(len(chosen) == batch for chosen in read)
        found = np.bincount(np.concatenate(read), minlength=count)
        if count >= batch:
            assert found.max() == 1
            assert count - found.sum() < batch
        else:
            assert found.min() >= batch // count
    assert batching.epoch == max(1, count // batch)


def test_a_batch_is_a_function_of_seed_and_step():
    lengths = np.random.default_rng(1).integers(1, 99, 299)
    one, other = Batching(lengths, 13, 5), Batching(lengths, 13, 5)
    expected = [one.at(step).tolist() for step in range(60)]
    assert [other.at(step).tolist() for step in reversed(range(60))] == expected[::-1]
    assert [Batching(lengths, 13, 7).at(step).tolist() for step in range(60)] != expected
    assert expected[: one.epoch] != expected[one.epoch : 2 * one.epoch]


def test_examples_of_a_batch_are_of_like_length_and_batches_come_in_any_order():
    lengths = np.random.default_rng(1).integers(8, 128, 5000)
    batching = Batching(lengths, 32, 1)
    longest = np.array([lengths[batching.at(step)].max() for step in range(batching.epoch)])
    padded = longest.sum() * 32
    assert lengths.sum() / padded > 0.95
    shuffled = lengths[np.random.default_rng(2).permutation(5000)[: batching.epoch * 32]].reshape(-1, 32)
    assert lengths.sum() / (shuffled.max(1).sum() * 32) < 0.6
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.2
