"""A task that has no memory left, or whose GPU has failed, says so in one line, with what to change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plm_core.shared.memory import is_out_of_memory
from tasks.runtime.stage import _of_the_machine

PROGRAM = """
import resource, sys
from tasks.runtime.stage import main
sys.argv = ["/x/tasks/pretrain.py", "gpt"]
def task(name: str) -> None:
    {}
main(task)
"""


def run(body):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", PROGRAM.format(body)], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("body", ["bytearray(2 << 30)", "import numpy; numpy.ones(1 << 29)"])
def test_it_is_one_line_with_the_parameters_that_help(body):
    done = run(f"resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); {body}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: out of memory: ")
    assert done.stderr.count("\n") == 1
    assert "expected a larger pretrain.gpt.training.accumulation, a smaller pretrain.gpt.model.context, " in done.stderr


def test_a_gpu_that_fails_is_one_line_with_what_to_do():
    done = run("import torch; raise torch.AcceleratorError('CUDA error: unspecified launch failure\\nFor debugging')")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: the GPU failed: CUDA error: unspecified launch failure; expected one that works"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "No CUDA GPUs are available",
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error",
        "Triton Error [CUDA]: invalid device context",
    ],
)
def test_it_is_known_by_its_words(said):
    assert _of_the_machine(RuntimeError(f"{said}\nFor debugging ..."), "pretrain@gpt") == (
        f"the GPU failed: {said}; expected one that works (nvidia-smi lists them, CUDA_VISIBLE_DEVICES chooses among "
        "them); training resumes from its last snapshot"
    )


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate 2 GiB.", "CUDA error: out of memory"])
def test_a_gpu_without_room_is_one_line_without_advice_for_cores(said):
    assert _of_the_machine(RuntimeError(f"{said}\nSearch for ..."), "evaluate@gpt") == (
        f"out of memory: {said}; expected a smaller evaluate.excerpt, or a GPU with more memory"
    )
    assert _of_the_machine(RuntimeError(said), "fewshot@gpt") == (
        f"out of memory: {said}; expected a GPU with more memory"
    )


def test_a_loss_that_cannot_be_compiled_is_one_line(monkeypatch):
    """A kernel in torch's cache hides from the trial that there is no compiler."""
    import torch

    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "no-such-compiler"))
    with pytest.raises(RuntimeError) as caught:
        torch.compile(lambda x: x + 7.25)(torch.zeros(3))
    assert _of_the_machine(caught.value, "pretrain@gpt") == (
        "training.compile: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: "
        "(None, 'no-such-compiler'); expected a working C++ compiler (such as g++), or compile: false"
    )


@pytest.mark.parametrize("said", ["wrong", "CUDA error: device-side assert triggered", "you have CUDA >= 10.2"])
def test_other_errors_are_not_the_machines(said):
    assert _of_the_machine(RuntimeError(said), "pretrain@gpt") is None


def test_other_errors_keep_their_traceback():
    assert "Traceback" in run("raise RuntimeError('wrong')").stderr


def test_torchs_errors_are_known():
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    for said in (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
    ):
        assert is_out_of_memory(RuntimeError(said))
    assert not is_out_of_memory(RuntimeError("wrong"))
    assert not is_out_of_memory(ValueError("out of memory"))
