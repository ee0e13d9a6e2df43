"""The optimizer over parameters that lie on two ranks (FSDP2, gloo)."""

import os
import subprocess
import sys
from pathlib import Path


def test_sharded_parameters_and_state_are_those_of_one_rank_and_muon_is_refused(tmp_path):
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sharded_run.py")), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "equal; optimizer.name: muon with sharded parameters; expected adamw"
