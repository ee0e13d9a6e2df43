"""Cores in one process, GPUs across processes."""

import os
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toys import wait_for

from flows.processes import resources
from flows.processes.resources import CancelledError, Machine
from flows.run.graph import Stage
from plm_core.shared.gpu_claims import CLAIMED

ALL = Stage("all", cores="all")
ONE = Stage("one")
GPU = Stage("gpu", gpu=True, cores="all")
GPUS = Stage("gpus", gpu="all", cores="all")
A, B, C = (f"GPU-{letter}-{uuid.uuid4()}" for letter in "abc")  # claims hold on the whole machine


def test_resources_are_first_come_first_served():
    shared = Machine(2)
    order: list[str] = []
    with shared.acquire(ONE):
        large = _later(shared, ALL, order)
        small = _later(shared, ONE, order)  # there would be a core for it now
        assert order == []
    large.join()
    small.join()
    assert order == ["all", "one"]


def test_the_longest_path_goes_first():
    shared = Machine(1)
    order: list[str] = []
    with shared.acquire(ONE):
        paths = {"short": 3.0, "longest": 60.0, "long": 30.0}
        threads = [_later(shared, Stage(name), order, path) for name, path in paths.items()]
    for thread in threads:
        thread.join()
    assert order == ["longest", "long", "short"]


def test_stages_that_want_all_cores_share_them_when_there_are_several():
    shared = Machine(5, sharing=2)
    with shared.acquire(ALL), shared.acquire(ALL), shared.acquire(ONE):
        waiting = _later(shared, ONE, order := [])
        assert order == []
    waiting.join()
    with Machine(2, sharing=3).acquire(ALL), Machine(2).acquire(Stage("more than there are", cores=64)) as grant:
        assert grant == resources.Grant({})


def _later(shared: Machine, stage: Stage, order: list[str], path: float = 0.0) -> threading.Thread:
    def work() -> None:
        with shared.acquire(stage, path):
            order.append(stage.name)
            time.sleep(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    return thread


def test_each_gpu_goes_to_one_stage_with_one_core_for_it():
    shared = Machine(4, (A, B))
    with shared.acquire(GPU) as first, shared.acquire(GPU) as second, shared.acquire(ONE) as third:
        given = {first.env["CUDA_VISIBLE_DEVICES"], second.env["CUDA_VISIBLE_DEVICES"]}
        assert given == {A, B}
        assert third.env == {}
    assert Machine(2, ()).gpus == ()
    with Machine(2, ()).acquire(GPU) as without:
        assert without == resources.Grant({})


def test_waiting_for_a_gpu_holds_no_cores():
    shared = Machine(3, (A,))
    order: list[str] = []
    with shared.acquire(GPU):
        waiting = [_later(shared, GPU, order, 600.0) for _ in range(3)]
        both = _later(shared, Stage("both", cores=2), order)
        both.join()
        assert order == ["both"]
    for thread in waiting:
        thread.join()
    assert order == ["both", "gpu", "gpu", "gpu"]


def test_gpu_of_another_flow_is_waited_for():
    with Machine(1, (A,)).acquire(GPU) as grant:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=grant.fds)
    order: list[str] = []
    waiting = _later(Machine(1, (A,)), GPU, order)
    assert order == []
    child.communicate(b"\n")
    waiting.join()
    assert order == ["gpu"]


def test_stage_for_all_gpus_gets_visible_ones_with_cores():
    shared = Machine(4, (C, A, B))
    order: list[str] = []
    with shared.acquire(GPUS) as grant, shared.acquire(ONE):
        assert grant.env == {CLAIMED: "1", "CUDA_VISIBLE_DEVICES": f"{C},{A},{B}"}
        assert len(grant.fds) == 3
        waiting = _later(shared, GPU, order)
        assert order == []
    waiting.join()
    assert order == ["gpu"]
    with Machine(2, (A, B, C)).acquire(GPUS) as grant:
        assert grant.env == {CLAIMED: "1", "CUDA_VISIBLE_DEVICES": f"{A},{B},{C}"}
    with Machine(2, ()).acquire(GPUS) as grant:
        assert grant == resources.Grant({})


def test_a_limit_lets_stages_that_want_all_gpus_run_side_by_side():
    shared = Machine(4, (A, B, C), 1)
    with shared.acquire(GPUS) as first, shared.acquire(GPUS) as second, shared.acquire(GPUS) as third:
        given = {grant.env["CUDA_VISIBLE_DEVICES"] for grant in (first, second, third)}
    assert given == {A, B, C}
    with Machine(4, (A, B, C), 2).acquire(GPUS) as grant:
        assert grant.env == {CLAIMED: "1", "CUDA_VISIBLE_DEVICES": f"{A},{B}"}
    with Machine(4, (A,), 2).acquire(GPUS) as grant:
        assert grant.env == {CLAIMED: "1", "CUDA_VISIBLE_DEVICES": A}


@pytest.mark.parametrize("same_process", [True, False])
def test_stages_with_one_gpu_do_not_starve_one_that_wants_all(same_process):
    shared = Machine(8, (A, B))
    other = shared if same_process else Machine(8, (B, A))
    order: list[str] = []
    with shared.acquire(GPU):
        large = _later(shared, GPUS, order)
        wait_for(lambda: f"@plm turn of {B}" in Path("/proc/net/unix").read_text())
        small = _later(other, GPU, order)  # there would be a GPU for it now
        assert order == []
    large.join()
    small.join()
    assert order == ["gpus", "gpu"]


def test_all_gpus_in_different_order_do_not_deadlock():
    names = (A, B, C)
    order: list[str] = []

    def work(shared: Machine) -> None:
        for _ in range(20):
            with shared.acquire(GPUS):
                order.append("taken")
                order.append("given back")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, [Machine(3, names), Machine(3, names[::-1])]))
    assert order == ["taken", "given back"] * 40


def test_waiting_for_gpus_does_not_block_users_of_others():
    order: list[str] = []
    with Machine(2, (A,)).acquire(GPUS):
        waiting = _later(Machine(2, (A, B)), GPUS, order)
        with Machine(2, (C,)).acquire(GPUS) as grant:
            assert grant.env == {CLAIMED: "1", "CUDA_VISIBLE_DEVICES": C}
        assert order == []
    waiting.join()
    assert order == ["gpus"]


def test_pipeline_names_another_one_with_the_same_cores():
    code = "from flows.processes import resources\nwith resources.announce_pipeline(print):\n"
    code += "    print(1, flush=True)\n    input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while other.stdout.readline() != "1\n":  # pipelines of other tests
        pass
    with resources.announce_pipeline(print):
        lines: list[str] = []
        with resources.announce_pipeline(lines.append):
            (line,) = [line for line in lines if f"process {other.pid} of" in line]
            assert line.startswith("another pipeline is running on this machine on the same cores: process ")
            assert not any(f"process {os.getpid()} of" in line for line in lines)
    other.communicate("\n")
    with resources.announce_pipeline(lines.append):
        assert len([line for line in lines if f"process {other.pid} of" in line]) == 1


@pytest.mark.parametrize("gpus", [(), (A,)])
def test_waiting_ends_when_the_pipeline_is_cancelled(gpus):
    shared = Machine(1, gpus)
    with ThreadPoolExecutor(1) as threads, Machine(1, gpus).acquire(GPU) if gpus else shared.acquire(ONE):
        waiting = threads.submit(shared.acquire(GPU).__enter__)
        time.sleep(0.2)
        shared.interrupted.set()
        with pytest.raises(CancelledError):
            waiting.result()


def test_resource_detection_reads_the_environment(monkeypatch):
    monkeypatch.setenv("PLM_CORES", "3")
    monkeypatch.setenv("PLM_GPUS", "2")
    assert (Machine.detect().cores, Machine.detect().gpus_at_most) == (3, 2)
