"""A task that has no memory left, or whose GPU has failed, says so in one line, with what to change."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plm_core.shared.memory import is_out_of_memory

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
    done = run(
        "import torch; raise torch.AcceleratorError('CUDA error: unspecified launch failure\\nFor debugging ...')"
    )
    assert done.returncode == 1
    assert re.fullmatch(r"error: the GPU failed: CUDA error: unspecified launch failure; expected .*\n", done.stderr)


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
