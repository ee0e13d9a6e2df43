"""The laps of a clock add up to the whole, whatever their names."""

import time

import pytest
import torch

from plm_core.training.clock import Clock

CPU = torch.device("cpu")


@pytest.fixture
def now(monkeypatch):
    """A time that moves only when it is told to."""
    moment = [7.0]
    monkeypatch.setattr("plm_core.training.clock.perf_counter", lambda: moment[0])
    return moment


def test_laps_of_one_name_are_added_and_a_split_begins_anew(now):
    clock = Clock(CPU)
    for name, seconds in [("data", 1.0), ("forward", 4.0), ("data", 2.0), ("forward", 0.5)]:
        now[0] += seconds
        clock.lap(name)
    assert clock.split() == {"data": 3.0, "forward": 4.5}
    assert clock.split() == {}
    now[0] += 16.0
    clock.lap("other")
    assert clock.split() == {"other": 16.0}  # from the last lap on: nothing is lost between two splits


def test_a_start_forgets_what_was_before(now):
    clock = Clock(CPU)
    now[0] += 1.0
    clock.lap("data")
    now[0] += 64.0
    clock.start()
    now[0] += 2.0
    clock.lap("forward")
    now[0] += 32.0  # no lap ends here
    assert clock.split() == {"forward": 2.0}


def test_the_parts_add_up_to_the_whole_on_a_real_clock():
    before = time.perf_counter()
    clock = Clock(CPU)
    after = time.perf_counter()
    for name in ("data", "forward", "data", "other"):
        time.sleep(0.003)
        lapping = time.perf_counter()
        clock.lap(name)
    whole = time.perf_counter() - before
    parts = clock.split()
    assert lapping - after <= sum(parts.values()) + 1e-9 <= whole + 2e-9
    assert parts["data"] >= 2 * 0.003 > 0
    assert list(parts) == ["data", "forward", "other"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_time_belongs_to_the_lap_that_queued_the_work():
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    a @ a
    torch.cuda.synchronize()
    clock = Clock(device)
    for _ in range(20):
        a @ a
    clock.lap("work")
    clock.lap("nothing")
    parts = clock.split()
    assert parts["work"] > parts["nothing"] >= 0
