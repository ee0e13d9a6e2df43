"""What the machinery costs around the learning. `make bench-overhead`; as long as the demo takes, and some minutes.

A clone of this checkout, with nothing made yet, runs the whole graph once by `plm run`. Then, in that clone, small
stages and runs with nothing to do are timed in turns against their peers. Writes ``artifacts/bench/overhead.json``, a
list of {work, unit, ours, peer, peer_name, ratio}. Processor seconds are those of all processes that a command started
and waited for.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

OUT = Path("artifacts/bench/overhead.json")
FIGURES = Path("artifacts/meters/run/figures.json")
TURNS = 5
ROOT = Path(__file__).parents[2]


def seconds(command: Sequence[str], folder: Path, **env: str) -> tuple[float, float]:
    """The clock's seconds and the processor's that ``python -m command`` takes in a checkout."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(folder)} | env
    subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turns(ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float]:
    """The medians of both, whose turns alternate; the first of each is not counted."""
    rows = [(ours(), peer()) for _ in range(TURNS + 1)][1:]
    return median(row[0] for row in rows), median(row[1] for row in rows)


def row(work: str, unit: str, ours: float, peer: float, peer_name: str) -> dict[str, object]:
    return {
        "work": work,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "peer_name": peer_name,
        "ratio": round(ours / peer, 3),
    }


def measured(folder: Path) -> list[dict[str, object]]:
    """All figures, in a clone that has nothing made yet."""
    seconds(("flows.cli", "run"), folder)
    ran = json.loads((folder / FIGURES).read_text())
    own = sum(stage["cpu"] for stage in ran["stages"]) / ran["cores"]
    versions = sum(stage["name"].startswith("pretrain@") for stage in ran["stages"])
    stage = ("tasks.stages.slices", "next")
    tracked, bare = in_turns(lambda: seconds(stage, folder)[1], lambda: seconds(stage, folder, PLM_TRACKING="off")[1])
    idle, repro = in_turns(
        lambda: seconds(("flows.cli", "run"), folder)[0], lambda: seconds(("dvc", "repro"), folder)[0]
    )
    status = median(seconds(("flows.cli", "status"), folder)[0] for _ in range(TURNS))
    return [
        row("tracked-stage", "processor seconds", tracked, bare, "the same stage with PLM_TRACKING=off"),
        row("pipeline", "seconds", ran["seconds"], own, "processor seconds of its stages over its cores"),
        row("idle-run", "seconds", idle, repro, "dvc repro"),
        row("idle-status", "seconds", status, repro, "dvc repro"),
        row("registration", "seconds a checkpoint", ran["registered"] / versions, 5.0, "the bar"),
    ]


def main() -> None:
    """Measure in a clone and write the figures."""
    with TemporaryDirectory() as work:
        folder = Path(work) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        rows = measured(folder)
    for row in rows:
        print("{work:15} {ours:8.2f} {peer:8.2f} {unit}, ratio {ratio:.2f} to {peer_name}".format(**row))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
