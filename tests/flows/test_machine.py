"""Cores in one process, GPUs across processes."""

import os
import subprocess
import sys
import threading
import time

import pytest

from flows import machine
from flows.graph import Stage
from flows.machine import Machine, MachineError
from flows.process import CancelledError

ALL = Stage("all", cores="all")
ONE = Stage("one")
GPU = Stage("gpu", gpu=True, cores="all")


def test_a_stage_waits_until_its_cores_are_free():
    shared = Machine(2)
    order: list[str] = []
    with shared.acquire(ONE):
        waiting = _later(shared, ALL, order)
        assert order == []
    waiting.join(5)
    assert order == ["all"]


def test_first_come_first_served_so_that_small_stages_do_not_starve_a_large_one():
    shared = Machine(2)
    order: list[str] = []
    with shared.acquire(ONE):
        large = _later(shared, ALL, order)
        small = _later(shared, ONE, order)  # there would be a core for it now
        assert order == []
    large.join(5)
    small.join(5)
    assert order == ["all", "one"]


def _later(shared: Machine, stage: Stage, order: list[str]) -> threading.Thread:
    def work() -> None:
        with shared.acquire(stage):
            order.append(stage.name)
            time.sleep(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    return thread


def test_more_cores_than_there_are_is_all_of_them():
    with Machine(2).acquire(Stage("big", cores=64)) as grant:
        assert grant == machine.Grant({})


def test_each_gpu_goes_to_one_stage_with_one_core_for_it(tmp_path):
    shared = Machine(4, ("GPU-a", "GPU-b"), tmp_path)
    with shared.acquire(GPU) as first, shared.acquire(GPU) as second, shared.acquire(ONE) as third:
        given = {first.env["CUDA_VISIBLE_DEVICES"], second.env["CUDA_VISIBLE_DEVICES"]}
        assert given == {"GPU-a", "GPU-b"}
        assert third.env == {}
    assert Machine(2, ()).gpus == ()
    with Machine(2, (), tmp_path).acquire(GPU) as without:
        assert without == machine.Grant({})


def test_a_gpu_of_another_flow_is_waited_for_until_its_last_process_lets_go(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "POLL_S", 0.05)
    with Machine(1, ("GPU-a",), tmp_path).acquire(GPU) as grant:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=grant.fds)
    order: list[str] = []
    waiting = _later(Machine(1, ("GPU-a",), tmp_path), GPU, order)
    assert order == []
    child.communicate(b"\n")
    waiting.join(5)
    assert order == ["gpu"]


@pytest.mark.parametrize("gpus", [(), ("GPU-a",)])
def test_waiting_ends_when_the_pipeline_is_cancelled(tmp_path, gpus):
    shared = Machine(1, gpus, tmp_path)
    caught: list[type] = []

    def work() -> None:
        try:
            with shared.acquire(GPU):
                pass
        except CancelledError as error:
            caught.append(type(error))

    with Machine(1, gpus, tmp_path).acquire(GPU) if gpus else shared.acquire(ONE):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        shared.interrupted.set()
        thread.join(5)
    assert caught == [CancelledError]


def test_detection_listens_to_the_environment(monkeypatch):
    monkeypatch.setenv("PLM_CORES", "3")
    assert Machine.detect().cores == 3
    monkeypatch.setenv("PLM_CORES", "none")
    with pytest.raises(MachineError, match="PLM_CORES: 'none'; expected"):
        Machine.detect()
    monkeypatch.delenv("PLM_CORES")
    assert Machine.detect().cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ("GPU-a", "GPU-b")),
        ("1", ("GPU-b",)),
        ("1, 0", ("GPU-b", "GPU-a")),
        ("GPU-b", ("GPU-b",)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("GPU-a",)),
        ("7", ()),
    ],
)
def test_visible_gpus_are_named_by_uuid(monkeypatch, visible, gpus):
    monkeypatch.setattr(machine, "_nvml_uuids", lambda: ("GPU-a", "GPU-b"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Machine.detect().gpus == gpus
