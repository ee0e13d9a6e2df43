"""What is known about disk and memory before a stage starts, and about what the kernel has killed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.processes import resources
from flows.run import timing
from flows.run.graph import Graph
from flows.run.run_result import Spent, StageOutcome
from plm_core.shared import environment

ENOUGH = (1 << 20, 1 << 20)


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A control group with a limit, as in a container, below one without; its files are real, its kernel is not."""
    monkeypatch.setattr(environment, "CGROUPS", tmp_path)
    own = tmp_path / re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)[1]
    own.mkdir(exist_ok=True)
    (own / "memory.max").write_text("9000000000\n")
    (own / "memory.current").write_text("8000000000\n")
    (own / "memory.stat").write_text("anon 7000000000\ninactive_file 500000000\n")
    (own / "memory.events").write_text("oom 3\noom_kill 2\noom_group_kill 0\n")
    return own


def looked(*arguments) -> list[str]:
    warnings: list[str] = []
    resources.warn_if_scarce(*arguments, warnings.append)
    return warnings


def test_too_little_disk_for_outputs_is_reported_with_remedy(tmp_path):
    assert looked(tmp_path, *ENOUGH) == []
    half = shutil.disk_usage(tmp_path).free // 2
    (warning,) = looked(tmp_path, half, 0)
    assert warning.startswith(f"{tmp_path}: ")
    assert "`plm gc`" in warning


def test_available_memory_is_limited_by_cgroup(tmp_path, group):
    assert resources.available_memory() == min(1_500_000_000, psutil.virtual_memory().available)
    (warning,) = looked(tmp_path, 0, 1 << 40)
    assert warning.endswith("of memory is free, but this stage last took 1099.5 GB: it may be killed")
    (group / "memory.max").write_text("max\n")
    assert resources.available_memory() > 1_500_000_000 or psutil.virtual_memory().available < 1_600_000_000


def test_oom_kills_are_counted_by_cgroup_or_machine(group, tmp_path, monkeypatch):
    assert resources.oom_kills() == 2
    (group / "memory.events").unlink()
    assert resources.oom_kills() == int(re.search(r"oom_kill (\d+)", Path("/proc/vmstat").read_text())[1])
    monkeypatch.setattr(resources, "VMSTAT", tmp_path / "none")
    assert resources.oom_kills() == 0


def test_room_for_a_stage_is_estimated_from_its_last_run(toy):
    root = toy("stages:\n  s: {cmd: head -c 70000 /dev/zero > out.txt, outs: [out.txt]}\n")
    assert Graph(root).size("s") == 0
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)
    assert Graph(root).size("s") == 70000
    assert timing.last_durations(root) == {}
    timing.save_durations(root, [StageOutcome("s", "ran", Spent(0.0, 1.0, 1.0, 1 << 30))])
    assert timing.last_durations(root) == {"s": (1.0, 1 << 30)}
