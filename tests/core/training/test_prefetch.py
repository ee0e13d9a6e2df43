"""Batches made a step ahead: which are made, when, and what becomes of an error."""

import threading

import pytest
import torch
from folds import batch_at

from plm_core.training.loop import Prefetch

CPU = torch.device("cpu")


@pytest.fixture
def made():
    """The steps whose batches were made, and by whom."""
    return []


@pytest.fixture
def batches(made):
    """Of which that of step 3 cannot be made."""

    def make(step):
        made.append((step, threading.current_thread().name))
        if step == 3:
            raise OSError("step 3")
        return batch_at(step)

    with Prefetch(make, CPU) as ahead:
        yield ahead


def steps(made):
    return [step for step, _ in made]


def test_each_batch_is_made_once_by_one_other_thread(batches, made):
    for step in range(3):
        assert torch.equal(batches(step, last=step == 2).inputs, batch_at(step).inputs)
    assert steps(made) == [0, 1, 2]
    assert len({name for _, name in made}) == 1
    assert threading.current_thread().name not in {name for _, name in made}


def test_an_error_is_raised_at_its_own_step(batches):
    assert torch.equal(batches(2).inputs, batch_at(2).inputs)
    with pytest.raises(OSError, match="step 3"):
        batches(3)


def test_behind_the_last_step_nothing_is_made_and_no_thread_is_left(made):
    with Prefetch(lambda step: made.append((step, "")) or batch_at(step), CPU) as batches:
        batches(7, last=True)
    assert steps(made) == [7]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
