"""Claims of GPUs: one holder on the whole machine, whoever it is and whatever happens to files."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pynvml
import pytest

from plm_core.shared import gpu_claims
from plm_core.shared.gpu_claims import CLAIMED, Claim, claimed

ROOT = Path(__file__).parents[3]
HOLDER = """
import os, sys
from plm_core.shared.gpu_claims import Claim
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
with Claim([sys.argv[1]], 1) as claim:
    print(claim.take(), flush=True)
    input()
"""
TASK = """
import os, sys
from plm_core.shared import gpu_claims
from tasks.runtime.stage import main
uuids = tuple(sys.argv.pop(1).split(","))
gpu_claims._nvml_uuids = lambda: uuids
def task() -> None:
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    input()
main(task, gpus=1)
"""


@pytest.fixture
def gpu():
    """A GPU that no other test of this machine knows."""
    return f"GPU-{uuid.uuid4()}"


def start(code, *arguments, **env):
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    return process.communicate("\n")


def test_gpu_claim_is_exclusive_whatever_tmpdir(gpu, tmp_path):
    (tmp_path / "other").mkdir()
    holder = start(HOLDER, gpu, TMPDIR=str(tmp_path))
    assert holder.stdout.readline() == "True\n"
    other = start(HOLDER, gpu, TMPDIR=str(tmp_path / "other"))
    assert other.stdout.readline() == "False\n"
    end(holder)
    end(other)
    assert list(tmp_path.iterdir()) == [tmp_path / "other"], "there is no file that a cleaner could delete"
    with Claim([gpu], 1) as claim:
        assert claim.take()


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_gpu_claim_of_another_user_is_waited_for(gpu):
    holder = start(HOLDER, gpu)
    assert holder.stdout.readline() == "True\n"
    first = start(HOLDER, gpu, "65534")
    assert first.stdout.readline() == "False\n"
    end(first)
    end(holder)
    second = start(HOLDER, gpu, "65534")
    assert second.stdout.readline() == "True\n", second.communicate()
    with Claim([gpu], 1) as claim:
        assert not claim.take()
        assert f"process {second.pid} of nobody" in gpu_claims.waiting_message(claim.busy)
    end(second)


def test_gpu_claim_by_hand_waits_and_names_the_holder(gpu):
    other = f"{gpu}-2"
    with Claim([gpu], 1) as claim:
        assert claim.take()
        first = start(TASK, f"{gpu},{other}")
        assert first.stdout.readline() == f"{other}\n"
        second = start(TASK, f"{gpu},{other}")
        line = second.stderr.readline()
        assert line.startswith("waiting for a GPU: process "), line
        assert f"has use of {other}" in line
    assert second.stdout.readline() == f"{gpu}\n"
    assert end(first) == end(second) == ("", "")


def test_gpu_claim_is_skipped_when_the_flow_has_claimed(gpu):
    with Claim([gpu], 1) as claim:
        assert claim.take()
        task = start(TASK, gpu, CUDA_VISIBLE_DEVICES=gpu, **{CLAIMED: "1"})
        assert end(task) == (f"{gpu}\n", "")


def test_gpu_claim_lasts_for_the_block(gpu, monkeypatch):
    monkeypatch.setattr(gpu_claims, "_nvml_uuids", lambda: (gpu, f"{gpu}-2"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with claimed(64, print), Claim([gpu], 1) as claim:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == f"{gpu},{gpu}-2"
        assert not claim.take()
    assert not {"CUDA_VISIBLE_DEVICES", CLAIMED} & os.environ.keys()
    with Claim([gpu], 1) as claim:
        assert claim.take()


def choose(monkeypatch, chosen):
    """Set ``CUDA_VISIBLE_DEVICES``; None: it is not set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, ("GPU-a1", "GPU-b2", "GPU-b3")),
        ("1", ("GPU-b2",)),
        ("1, 0", ("GPU-b2", "GPU-a1")),
        ("GPU-b2", ("GPU-b2",)),
        ("GPU-a", ("GPU-a1",)),  # an abbreviation is the same GPU
        ("GPU-b", ()),  # of two: CUDA sees none
        ("GPU-c,0", ()),
        ("MIG-7", ("MIG-7",)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("GPU-a1",)),
        ("7", ()),
    ],
)
def test_visible_gpus_are_named_by_full_uuid(monkeypatch, chosen, seen):
    monkeypatch.setattr(gpu_claims, "_nvml_uuids", lambda: ("GPU-a1", "GPU-b2", "GPU-b3"))
    choose(monkeypatch, chosen)
    assert gpu_claims.visible_gpus() == seen


@pytest.fixture
def listed(monkeypatch):
    """NVML lists three GPUs, of which the first raises the error that a test appends."""

    def handle(number):
        if number == 0:
            raise pynvml.NVMLError(error.pop())
        return number

    error = []
    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUUID": "GPU-{}".format,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    return error


@pytest.mark.parametrize(("chosen", "seen"), [(None, ("GPU-1", "GPU-2")), ("0,1", ("GPU-1",)), ("0", ())])
def test_unresponsive_gpu_is_left_out_and_keeps_its_number(listed, monkeypatch, chosen, seen):
    choose(monkeypatch, chosen)
    listed.append(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.warns(UserWarning, match="^GPU 0 is left out: GPU is lost"):
        assert gpu_claims.visible_gpus() == seen


@pytest.mark.parametrize(("chosen", "seen"), [(None, ("GPU-1", "GPU-2")), ("0", ("GPU-1",))])
def test_gpu_withheld_by_cgroup_is_not_counted(listed, monkeypatch, chosen, seen):
    choose(monkeypatch, chosen)
    listed.append(pynvml.NVML_ERROR_NO_PERMISSION)
    assert gpu_claims.visible_gpus() == seen
