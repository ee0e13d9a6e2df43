"""The core trains on a machine that has only torch, numpy, safetensors, sentencepiece and pydantic."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

FIVE = "torch numpy numpy.libs safetensors sentencepiece pydantic pydantic_core annotated_types typing_inspection"
TORCH_NEEDS = "sympy mpmath networkx jinja2 markupsafe filelock fsspec typing_extensions.py torchgen functorch"


@pytest.mark.slow
def test_training_needs_only_five_packages(tmp_path):
    installed = Path(torch.__file__).parents[1]
    for name in f"{FIVE} {TORCH_NEEDS}".split():
        if (installed / name).exists():
            (tmp_path / name).symlink_to(installed / name)
    (tmp_path / "plm_core").symlink_to(Path(__file__).parents[3] / "plm_core")
    script = Path(__file__).with_name("bare_run.py")
    # -S: the packages of this environment are not to be found.
    python = [sys.executable, "-S", script]
    done = subprocess.run(python, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in done.stdout.splitlines()}
    assert list(losses) == ["gpt", "llama", "bert", "modernbert", "xlnet"]
    assert all(curve[-1] < curve[0] for curve in losses.values())
