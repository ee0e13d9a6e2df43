"""What a stage records of its training run: each point once, whatever interrupts it, and again after a rollback."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import pytest

from plm_core.training.callbacks.loss_metrics import StepMetrics
from plm_core.training.callbacks.speed_monitor import Throughput
from tasks.runtime.training_monitor import follow
from tasks.tracking.run_journal import messages
from tasks.tracking.tracker import Tracker

METERS = Throughput(1.0, 1, {}, 1.0, None, None, 1, None)


class Costs(nullcontext):
    """Tells how many positions were read until each report."""

    taken = SimpleNamespace(seconds=0)

    def __init__(self):
        super().__init__()
        self.read = []

    def add(self, steps, read, *_):
        self.read.append(read)

    def overspent(self):
        return ""

    points: ClassVar[dict] = {}
    note = ""


def report(step, passed=0, live=True):
    meters = METERS if live else None
    return StepMetrics(step, 10, 1, 7, float(passed), 1.0, 1.0, passed=passed, throughput=meters)


@pytest.fixture
def process(tmp_path, monkeypatch):
    """One that trains from some reports on; gives how often each point is recorded by now, and the positions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("tracking: {uri: x, experiment: y}\n")
    monkeypatch.setenv("PLM_PARENT_RUN_ID", "journal:none")
    monkeypatch.delenv("PLM_TRACKING", raising=False)

    def run(*reports):
        tracker, costs = Tracker("pretrain-x", "same"), Costs()
        tracker.open({}, {}, {})
        stage = SimpleNamespace(name="pretrain-x", tracker=tracker, guard=SimpleNamespace(check=lambda: None))
        follow(lambda interrupted: iter(reports), 200, stage, "s", str, costs)
        tracker.end("KILLED")
        (journal,) = (tmp_path / "artifacts/journals").glob("*.jsonl")
        batches = [message["points"] for message, _ in messages(journal) if message["kind"] == "metrics"]
        return Counter((step, value) for points in batches for name, value, _, step in points if name == "loss"), costs

    return run


def test_resumed_run_repeats_only_points_after_a_rollback(process):
    live = [report(step) for step in (10, 20, 30, 40)]
    recorded, costs = process(*live, report(30, 5))
    expected = Counter({(10, 0): 1, (20, 0): 1, (30, 0): 1, (40, 0): 1, (30, 5): 1})
    assert recorded == expected
    assert costs.read == [7, 14, 21, 28, 21]
    restored = [report(10, live=False), report(20, live=False), report(30, 5, live=False)]
    for step in (40, 50, 60):
        recorded, _ = process(*restored, report(step, 5))
        restored.append(report(step, 5, live=False))
        expected[step, 5] += 1  # at step 40 beside what is void
        assert recorded == expected
