"""A task that has no memory left, or whose GPU has failed, says so in one line, with what to change."""

import os
import subprocess
import sys

import pytest
import torch
from projects import ROOT

from plm_core.shared.errors import is_out_of_memory

PROGRAM = """
import resource, sys, torch
from tasks.runtime.stage import main
sys.argv = ["/x/tasks/stages/{}.py", "gpt"]
def task(name: str) -> None:
    {}
main(task)
"""
LITTLE = "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))"
CXX = "torch._inductor.config.cpp.cxx = (None, 'no-such-compiler')"


def run(stage, body):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM.format(stage, body)]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("stage", "body", "begins", "names"),
    [
        ("pretrain", f"{LITTLE}; bytearray(8 << 30)", "out of memory: ", "a smaller pretrain.gpt.model.context, "),
        ("pretrain", f"{LITTLE}; torch.zeros(1 << 31)", "out of memory: ", "larger pretrain.gpt.training.accumulation"),
        (
            "evaluate",
            "raise torch.OutOfMemoryError('CUDA out of memory. Tried\\nSearch')",
            "out of memory: CUDA out of memory. Tried; ",
            "expected a smaller evaluate.excerpt, or a GPU with more memory",
        ),
        (
            "pretrain",
            "raise torch.AcceleratorError('CUDA error: unspecified launch failure\\nFor debugging')",
            "the GPU failed: CUDA error: unspecified launch failure; expected one that works (nvidia-smi lists them",
            "training resumes from its last snapshot",
        ),
        # A kernel in torch's cache hides from the loop's trial that there is no compiler.
        (
            "pretrain",
            f"import torch._inductor.config; {CXX}; torch.compile(lambda x: x + 7.25)(torch.zeros(3))",
            "training.compile: InvalidCxxCompiler: ",
            "expected a working C++ compiler (such as g++), or compile: false",
        ),
    ],
    ids=["Python", "torch", "a GPU's memory", "a GPU", "no compiler"],
)
def test_out_of_memory_is_one_line_with_a_remedy(stage, body, begins, names):
    done = run(stage, body)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {begins}")
    assert names in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("message", ["wrong", "CUDA error: device-side assert triggered"])
def test_other_errors_keep_their_traceback(message):
    assert "Traceback" in run("pretrain", f"raise RuntimeError('{message}')").stderr


def test_torchs_errors_are_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    for message in ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "Triton Error [CUDA]: out of memory"):
        assert is_out_of_memory(RuntimeError(message))
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(ValueError("out of memory"))
