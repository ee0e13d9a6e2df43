"""Where the time of a run goes: what stages are expected to take and what they took.

Used by ``flow.py`` to start the longest path first, and by the `plm` command at the end of a run.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from flows.run.graph import Stage
from flows.run.run_result import Result, StageOutcome
from plm_core.shared.files import atomic_text
from plm_core.shared.paths import METERS

REMEMBERED = ".dvc/tmp/plm-spent.json"
"""What each stage took when it last ran on this machine: seconds, and bytes of memory."""

UNKNOWN_S = {"all": 100.0, True: 20.0, False: 3.0}
"""The seconds that a stage is expected to take if it has never run here, by the GPUs that it wants."""

FIGURES = METERS / "run/figures.json"
"""What the last run took, in seconds."""


def longest_paths(root: Path, stages: Sequence[Stage]) -> dict[str, float]:
    """For each stage, the seconds that the longest path from it to the end is expected to take."""
    measured = last_durations(root)
    own = {stage.name: measured.get(stage.name, (UNKNOWN_S[stage.gpu], 0))[0] for stage in stages}
    path = dict(own)
    for stage in reversed(stages):  # each after all that it depends on
        for name in stage.upstream:
            path[name] = max(path[name], own[name] + path[stage.name])
    return path


def last_durations(root: Path) -> dict[str, tuple[float, int]]:
    """The seconds and the bytes of memory that each stage took when it last ran on this machine, if known."""
    try:
        measured = json.loads((root / REMEMBERED).read_text())
        return {str(name): (float(seconds), int(memory)) for name, (seconds, memory) in measured.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def save_durations(root: Path, outcomes: Iterable[StageOutcome]) -> None:
    """Keep what the stages took for the next run; on a full disk, only the order of that run suffers."""
    ran = [outcome for outcome in outcomes if outcome.outcome == "ran"]
    new = {outcome.name: (round(outcome.spent.seconds, 1), outcome.spent.memory) for outcome in ran}
    with contextlib.suppress(OSError):
        atomic_text(root / REMEMBERED, json.dumps(last_durations(root) | new))


def summary(result: Result, whole: float, cores: int) -> list[tuple[str, str]]:
    """Where ``whole`` seconds went, in rows of what and how long; empty if no stage ran."""
    ran = _ran(result)
    if not ran:
        return []
    end = max(outcome.spent.begun + outcome.spent.seconds for outcome in ran)  # seconds after the start of the run
    cpu = sum(outcome.spent.cpu for outcome in ran)
    busy = cpu / (cores * max(1e-9, end - ran[0].spent.begun))
    longest = sorted(ran, key=lambda outcome: -outcome.spent.seconds)[:3]
    total = f"{format_duration(whole)} on {cores} core{'s' * (cores > 1)}, {busy:.0%} busy while stages ran"
    slowest = ", ".join(f"{outcome.name} {format_duration(outcome.spent.seconds)}" for outcome in longest)
    return [("total", total), ("longest", slowest)]


def write_run_figures(root: Path, result: Result, whole: float, cores: int) -> None:
    """Write the figures of a run, and the page of the meters; skipped if the disk is full."""
    ran = _ran(result)
    if not ran:
        return
    stages = [{"name": outcome.name, **asdict(outcome.spent)} for outcome in ran]
    figures = {"seconds": whole, "registered": result.registered, "cores": cores, "stages": stages}
    with contextlib.suppress(OSError):
        (root / FIGURES).parent.mkdir(parents=True, exist_ok=True)
        (root / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")
    subprocess.run([sys.executable, "-m", "tasks.reporting.cost_page"], cwd=root, check=False)


def format_duration(seconds: float) -> str:
    """A duration for people: ``7.4 s``, ``3 min 05 s``."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def _ran(result: Result) -> list[StageOutcome]:
    """The stages that took time, in the order of their start."""
    return sorted((outcome for outcome in result.stages if outcome.spent.seconds), key=lambda o: o.spent.begun)
