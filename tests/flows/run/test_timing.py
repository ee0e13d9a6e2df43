"""Where the time of a run goes: what is expected, recorded and printed."""

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from flows.run import live_table, timing
from flows.run.graph import Stage
from flows.run.run_result import Result, Spent, StageOutcome
from plm_core.shared.paths import METERS

RESULT = Result(
    (
        StageOutcome("late", "failed", Spent(5.0, 10.0, 9.0), "<why>"),
        StageOutcome("a<b", "ran", Spent(1.0, 3.0, 3.0)),
        StageOutcome("idle", "up to date"),
    ),
    registered=2.0,
)


def test_critical_path_of_a_stage_is_the_longest(tmp_path):
    stages = [
        Stage("first"),
        Stage("short", ("first",)),
        Stage("train", ("first",), gpu="all"),
        Stage("last", ("short", "train")),
    ]
    (tmp_path / timing.REMEMBERED).parent.mkdir(parents=True)
    timing.save_durations(
        tmp_path, [StageOutcome("train", "ran", Spent(0.5, 40.0)), StageOutcome("last", "failed", Spent(0.5, 9.0))]
    )
    unknown = timing.UNKNOWN_S[False]
    assert timing.longest_paths(tmp_path, stages) == {
        "first": 40.0 + 2 * unknown,
        "short": 2 * unknown,
        "train": 40.0 + unknown,
        "last": unknown,
    }


def test_the_summary_says_how_long_the_run_took_and_what_took_longest():
    assert timing.summary(RESULT, 80.0, 2) == [
        ("total", "1 min 20 s on 2 cores, 43% busy while stages ran"),
        ("longest", "late 10.0 s, a<b 3.0 s"),
    ]
    assert timing.summary(Result(RESULT.stages[2:]), 1.0, 2) == []


def test_the_figures_of_a_run_are_kept_in_the_order_in_which_its_stages_began(tmp_path):
    timing.write_run_figures(tmp_path, RESULT, 80.0, 2)
    figures = json.loads((tmp_path / timing.FIGURES).read_text())
    assert [stage["name"] for stage in figures["stages"]] == ["a<b", "late"]
    assert (figures["seconds"], figures["registered"], figures["cores"]) == (80.0, 2.0, 2)
    assert (tmp_path / METERS / "index.html").exists()


STAGES = [
    Stage("first"),
    Stage("train@a", ("first",), gpu="all"),
    Stage("train@b", ("first",), gpu="all"),
    Stage("last", ("train@a",)),
]
SAME = {stage.name: 80.0 for stage in STAGES}


def log(name, text, event=""):
    logging.getLogger("prefect.task_runs").info(text, extra={"task_run_name": name, "stage_event": event})


@pytest.mark.parametrize(
    ("cores", "took", "lines", "expected"),
    [
        (2, SAME, [("first", "runs: forced", "began")], ["about 4 min left, most of it for first"]),
        (1, SAME, [("first", "runs: forced", "began")], ["about 5 min left, most of it for first"]),
        (
            2,
            {"last": 60.0},
            [
                ("first", "runs: forced", "began"),
                ("first", "done in 1.0 s", "done"),
                ("train@a", "runs: forced", "began"),
                ("train@b", "runs: forced", "began"),
                ("train@a", "train: 1/100 (1%), 600 s left   loss 1"),
                ("train@a", "train: 2/100 (2%), 601 s left   loss 1"),
                ("train@b", "train: 1/100 (1%), 1800 s left"),
            ],
            [
                "3 of these 4 stages are new to this machine: the time left is estimated once a few have ended",
                "about 11 min left, most of it for train@a",
                "about 30 min left, most of it for train@b",
            ],
        ),
    ],
)
def test_remaining_time_is_the_longest_path(capsys, cores, took, lines, expected):
    with live_table.show_stages(STAGES, took, cores):
        for line in lines:
            log(*line)
    assert [line for line in capsys.readouterr().out.splitlines() if " | " not in line] == expected


@pytest.mark.slow
def test_at_a_terminal_a_table_counts_each_stage_once():
    code = (
        "import test_timing as t\nfrom flows.run import live_table\n"
        "with live_table.show_stages(t.STAGES, {}, 2):\n"
        "    for name in ('first', 'train@a', 'up', 'first'):\n"
        "        t.log(name, 'runs: forced', 'began')\n        t.log(name, 'done in 1.0 s', 'done')\n"
        "    t.log('train@b', 'why', 'failed')\n    t.log('last', '', 'up to date')\n"
    )
    leader, follower = pty.openpty()
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=follower, check=True)
    os.close(follower)
    assert "Stages: 3 of 4 done, 1 failed" in os.read(leader, 65536).decode()
    os.close(leader)
