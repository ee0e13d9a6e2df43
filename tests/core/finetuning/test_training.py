"""Epochs and shares become steps of a loop, whose batches are of like length and hold each example once an epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.finetuning.featurize import Batching
from plm_core.finetuning.finetune_config import Recipe
from plm_core.training.optimizer import OptimizerConfig


@given(
    epoch=st.integers(1, 9999),
    epochs=st.floats(0.01, 9),
    validations=st.integers(1, 9),
    warmup=st.floats(0, 0.99),
    report_every=st.integers(1, 99),
)
def test_every_task_gets_a_loop(epoch, epochs, validations, warmup, report_every):
    recipe = Recipe(epochs, 8, OptimizerConfig(0.1), warmup, validations, report_every=report_every)
    loop = recipe.loop(epoch, 5)
    assert epochs * epoch <= loop.steps < epochs * epoch + 1
    assert loop.optimizer.warmup_steps <= warmup * loop.steps < loop.optimizer.warmup_steps + 1
    assert loop.valid_every == loop.snapshot_every
    often = epoch / validations
    assert abs(loop.valid_every - often) <= (report_every / 2 if often >= report_every else 1)
    assert (loop.seed, loop.batch, loop.optimizer.learning_rate) == (5, 8, 0.1)


def test_an_epoch_is_validated_at_its_end():
    loop = Recipe(3, 32, OptimizerConfig(1e-3), 0.1, report_every=1).loop(70, 1)
    assert (loop.steps, loop.valid_every, loop.optimizer.warmup_steps) == (210, 70, 21)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"accumulation": 3}, "accumulation: 3 does not divide batch 8"),
        ({"optimizer": {"learning_rate": 0.1, "warmup_steps": 5}}, "optimizer.warmup_steps: follows from warmup"),
    ],
)
def test_wrong_finetune_section_is_refused(section, says):
    given = {"epochs": 1, "batch": 8, "optimizer": {"learning_rate": 0.1}} | section
    with pytest.raises(UserError) as error:
        from_dict(Recipe, given, "finetune.training")
    assert str(error.value).startswith(f"finetune.training.{says}")


@given(count=st.integers(1, 299), batch=st.integers(1, 37), seed=st.integers(0, 9))
def test_an_epoch_reads_each_example_once_but_for_less_than_a_batch(count, batch, seed):
    batching = Batching(np.random.default_rng(seed).integers(1, 99, count), batch, seed)
    epochs = [[batching.at(e * batching.epoch + i) for i in range(batching.epoch)] for e in range(2)]
    for read in epochs:
        assert all(len(chosen) == batch for chosen in read)
        times = np.bincount(np.concatenate(read), minlength=count)
        if count >= batch:
            assert times.max() == 1
            assert count - times.sum() < batch
        else:
            assert times.min() >= batch // count
    assert batching.epoch == max(1, count // batch)


def test_a_batch_is_a_function_of_seed_and_step():
    lengths = np.random.default_rng(1).integers(1, 99, 299)
    first, second = Batching(lengths, 13, 5), Batching(lengths, 13, 5)
    expected = [first.at(step).tolist() for step in range(60)]
    assert [second.at(step).tolist() for step in reversed(range(60))] == expected[::-1]
    assert [Batching(lengths, 13, 7).at(step).tolist() for step in range(60)] != expected
    assert expected[: first.epoch] != expected[first.epoch : 2 * first.epoch]


def test_batches_group_examples_of_like_length():
    lengths = np.random.default_rng(1).integers(8, 128, 5000)
    batching = Batching(lengths, 32, 1)
    longest = np.array([lengths[batching.at(step)].max() for step in range(batching.epoch)])
    padded = longest.sum() * 32
    assert lengths.sum() / padded > 0.95
    shuffled = lengths[np.random.default_rng(2).permutation(5000)[: batching.epoch * 32]].reshape(-1, 32)
    assert lengths.sum() / (shuffled.max(1).sum() * 32) < 0.6
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.2
