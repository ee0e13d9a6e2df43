"""The machine's facts come from the machine or its environment."""

import threading

import pytest
import torch

from plm_core.config import UserError
from plm_core.training.device import Device, on_host, prepare
from plm_core.training.loop import Prefetch
from plm_core.training.snapshot import Snapshots


@pytest.fixture(autouse=True)
def threads():
    """Leaves torch as it was found."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_plm_threads_overrides_the_tasks_threads(monkeypatch):
    monkeypatch.delenv("PLM_THREADS", raising=False)
    assert prepare(threads=1).threads == torch.get_num_threads() == 1
    monkeypatch.setenv("PLM_THREADS", "2")
    assert prepare(threads=1).threads == torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("value", ["many", "0", "-1", "", "1.5"])
def test_invalid_plm_threads_is_refused(monkeypatch, value):
    monkeypatch.setenv("PLM_THREADS", value)
    with pytest.raises(UserError, match=rf"^PLM_THREADS: found '{value}'; expected a number of threads, 1 or more"):
        prepare()


def test_a_claimed_gpu_that_torch_cannot_use_is_an_error_and_no_training_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a1")
    assert prepare().device.type == "cpu"  # the variable alone says nothing: many set it for all they start
    monkeypatch.setenv("PLM_GPUS_CLAIMED", "1")
    with pytest.raises(UserError, match=r"^CUDA_VISIBLE_DEVICES: torch 2.* cannot use the GPU GPU-a1 of this machine"):
        prepare()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert prepare().device.type == "cpu"


@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_bfloat16_is_used_where_it_is_asked_for_and_there(hardware, precision):
    device = Device(torch.device("cpu"), 1, bfloat16=hardware)
    with device.autocast(precision):
        product = torch.ones(5, 7) @ torch.ones(7, 3)
    assert product.dtype == (torch.bfloat16 if hardware and precision == "bfloat16" else torch.float32)


@pytest.mark.parametrize("pinned", [True, False])
def test_host_copies_work_without_pinned_memory(monkeypatch, pinned):
    plain = torch.empty_like
    requests = []

    def empty_like(tensor, **how):
        requests.append(how.pop("pin_memory", None))
        if requests[-1] is not None and not pinned:
            raise RuntimeError("CUDA error: out of memory")
        return plain(tensor, **how)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    given = {"a": torch.randn(5, 7), "b": torch.arange(3)}
    copies = on_host(given)
    assert all(torch.equal(copies[name], tensor) for name, tensor in given.items())
    assert not {copy.data_ptr() for copy in copies.values()} & {tensor.data_ptr() for tensor in given.values()}
    assert requests == ([False, False] if pinned else [False, None, False, None])


def test_the_threads_of_a_training_use_its_gpu(monkeypatch, tmp_path):
    """CUDA's current device is each thread's own: one that waits for GPU 0 waits for nothing of GPU 3."""
    used = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: used.append((threading.current_thread(), gpu)))
    for thread in (Prefetch(lambda step: step, torch.device("cpu"))._thread, Snapshots(tmp_path)._thread):
        its = thread.submit(threading.current_thread).result()
        assert used.pop() == (its, 3)
        assert its is not threading.current_thread()
