"""The benchmark of GPUs runs to its end where there is none, with tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_bench_gpu_dry_run_passes_all_checks(tmp_path):
    for name in ("plm_core", "tasks", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = [sys.executable, str(ROOT / "tests/bench/bench_gpu.py"), "--dry"]
    # More threads would wait for each other beside other tests.
    settings = {"PYTHONPATH": str(ROOT), "PATH": "", "PLM_THREADS": "1"}
    done = subprocess.run(script, cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("correctness", "speed", "learning"):
        assert f"\n{part}\n" in done.stdout
    rows = {row["work"]: row for row in json.loads((tmp_path / "artifacts/bench/gpu-dry.json").read_text())}
    assert rows["correctness"]["ratio"] == 1
    assert rows["correctness"]["ours"] > 50
    assert {"gpt-cpu", "gpt-learning", "gpt-lost"} <= rows.keys()
    listed = (tmp_path / "artifacts/bench/kernels-gpt.txt").read_text()
    assert "ms a step in all" in listed
    assert "aten::" in listed
    assert "| gpt-learning" in (tmp_path / "artifacts/bench/gpu-dry.md").read_text()
