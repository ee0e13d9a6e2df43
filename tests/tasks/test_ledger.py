"""What a training run cost is kept from process to process, shown to people, and never invented."""

import json
import re
from dataclasses import replace

import pytest
import torch

from plm_core.shared import paths
from plm_core.training.callbacks.speed_monitor import Throughput
from plm_core.training.device import Device
from tasks.reporting.cost_page import meters
from tasks.reporting.training_costs import CostReport

DEVICE = Device(torch.device("cpu"), 3, False)
METERS = Throughput(
    seconds=8.0,
    positions=4000,
    split={"data": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 0.5, "other": 0.5},
    tokens_per_second=500.0,
    mfu_measured=0.25,
    mfu_datasheet=None,
    peak_memory=3 << 29,
    joules=60.0,
)
FIRST = replace(METERS, seconds=99.0, positions=1000, tokens_per_second=10.1, mfu_measured=0.01, joules=700.0)


@pytest.fixture
def now(monkeypatch, tmp_path):
    """An empty project, no price, and a clock that moves only on request."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLM_PRICE_PER_HOUR", raising=False)
    moment = [1000.0]
    monkeypatch.setattr("tasks.reporting.training_costs.monotonic", lambda: moment[0])
    return moment


def kept(stage="pretrain-gpt"):
    return json.loads((paths.METERS / f"{stage}.json").read_text())


def rows():
    """The rows of the page's two tables by training run, each a dict by the headings of both."""
    meters()
    by_run = {}
    for line in re.findall(r"<tr>.*?</tr>", (paths.METERS / "index.html").read_text(), re.DOTALL):
        row = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<(?:th|td).*?>(.*?)</t[hd]>", line, re.DOTALL)]
        if row[0] == "training run":
            heads = row
        else:
            by_run.setdefault(row[0].partition(" ")[0], {}).update(zip(heads, row, strict=True))
    return by_run


def interrupted(now):
    """A training run that is interrupted after its first ten steps and 100 seconds."""
    with CostReport("pretrain-gpt", "abc", DEVICE) as costs:
        costs.add(10, 1000, FIRST, first=True)
        now[0] += 100.0
        raise KeyboardInterrupt


def test_cost_points_are_named_by_units(now, monkeypatch):
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", "36")
    with CostReport("pretrain-gpt", "abc", DEVICE, bytes_per_position=2.5) as costs:
        now[0] += 110.0
        costs.add(10, 1000, FIRST, first=True)
        assert costs.points == {
            "peak_memory_gib": 1.5,
            "joules": 700.0,
            "cost": pytest.approx(1.1),
            "seconds": 110.0,
            "bytes_seen": 2500.0,
        }
        assert costs.note == "1.5 GiB"
        now[0] += 90.0  # with a validation
        costs.add(4, 5000, METERS, first=False)
        assert costs.points == {
            "peak_memory_gib": 1.5,
            "joules": 760.0,
            "cost": pytest.approx(2.0),
            "seconds": 200.0,
            "bytes_seen": 12500.0,
            "tokens_per_second": 500.0,
            "mfu_measured": 0.25,
            "seconds_data": 0.25,
            "seconds_forward": 0.5,
            "seconds_backward": 1.0,
            "seconds_optimizer": 0.125,
            "seconds_other": 0.125,
        }
        assert costs.note == "500 tokens/s, 25 % MFU, 1.5 GiB"


def test_cost_ledger_omits_unknown_values(now):
    bare = replace(METERS, mfu_measured=None, joules=None, tokens_per_second=5421.3)
    with CostReport("finetune-gpt-sotu-era", "abc", DEVICE) as costs:
        costs.add(4, 4000, bare, first=False)
        assert not {"joules", "cost", "bytes_seen", "mfu_measured", "mfu_datasheet"} & costs.points.keys()
        assert costs.note == "5,421 tokens/s, 1.5 GiB"
    record = kept("finetune-gpt-sotu-era")
    assert (record["joules"], record["cost"], record["mfu_measured"]) == (None, None, None)
    row = rows()["finetune-gpt-sotu-era"]
    assert [row[head] for head in ("energy, kJ", "cost", "MFU (measured peak)", "MFU (datasheet peak)")] == ["–"] * 4


def test_cost_ledger_row_of_a_training(now, monkeypatch):
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", "36")
    paths.RUN_LINKS.mkdir(parents=True)
    (paths.RUN_LINKS / "pretrain-gpt.txt").write_text("http://127.0.0.1:5000/#/experiments/1/runs/2\n")
    with CostReport("pretrain-gpt", "abc", DEVICE) as costs:
        costs.add(10, 1000, FIRST, first=True)
        costs.add(4, 5000, METERS, first=False)
        costs.add(4, 9000, replace(METERS, seconds=24.0, mfu_measured=0.05, mfu_datasheet=None), first=False)
        now[0] += 200.0
    row = rows()["pretrain-gpt"]
    assert row.pop("device")
    assert row == {
        "training run": "pretrain-gpt",
        "MLflow": "run",
        "tokens/s": "250",  # 8,000 in 32 s
        "MFU (measured peak)": "10.0%",  # by the time: (8 x 0.25 + 24 x 0.05) / 32
        "MFU (datasheet peak)": "–",
        "data": "6.2%",
        "forward": "12.5%",
        "backward": "25.0%",
        "optimizer": "3.1%",
        "other": "3.1%",
        "steps": "18",
        "tokens": "9,000",
        "minutes": "3.3",
        "peak memory, GiB": "1.50",
        "energy, kJ": "0.8",
        "cost": "2.0000",
        "threads": "3",
    }
    assert '<a href="http://127.0.0.1:5000/#/experiments/1/runs/2">' in (paths.METERS / "index.html").read_text()


def test_cost_ledger_continues_an_interrupted_training(now):
    with pytest.raises(KeyboardInterrupt):
        interrupted(now)
    assert rows()["pretrain-gpt"]["training run"] == "pretrain-gpt (not finished)"
    with CostReport("pretrain-gpt", "abc", DEVICE, bytes_per_position=1.0) as costs:
        costs.add(10, 1000, None, first=False)  # restored from a snapshot
        assert (costs.points, costs.note) == ({}, "")
        costs.add(4, 5000, METERS, first=True)
        assert costs.points["joules"] == 760.0
        assert costs.points["bytes_seen"] == 5000.0
        now[0] += 11.0
    record = kept()
    assert (record["steps"], record["positions"], record["seconds"], record["finished"]) == (14, 5000, 111.0, True)
    assert rows()["pretrain-gpt"]["training run"] == "pretrain-gpt"
    with pytest.raises(KeyboardInterrupt):
        interrupted(now)  # it has begun anew
    assert kept()["steps"] == 10
    with CostReport("pretrain-gpt", "other", DEVICE) as costs:
        costs.add(4, 4000, METERS, first=False)
    assert kept()["steps"] == 4


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stage": "pretrain-gpt"}'])
def test_cost_ledger_ignores_unreadable_files(now, content):
    paths.METERS.mkdir(parents=True)
    for stage in ("pretrain-gpt", "pretrain-bert"):
        (paths.METERS / f"{stage}.json").write_text(content)
    with CostReport("pretrain-gpt", "abc", DEVICE) as costs:
        costs.add(4, 4000, METERS, first=False)
    assert list(rows()) == ["pretrain-gpt"]


def test_cost_ledger_on_full_disk_is_a_warning(now, capsys):
    paths.METERS.parent.mkdir()
    paths.METERS.write_text("a file where the folder would be")
    with CostReport("pretrain-gpt", "abc", DEVICE) as costs:
        costs.add(4, 4000, METERS, first=False)
    meters()
    stderr = capsys.readouterr().err
    assert stderr.startswith("warning: artifacts/meters: ")
    assert stderr.endswith("; the page of the meters is not written\n")


@pytest.mark.parametrize(
    ("then", "now_costs", "budget", "over"),
    [("", "36", "1", "pretrain-gpt has cost 1 of 1 (PLM_BUDGET)"), ("36", "72", "1.5", "")],
)
def test_cost_uses_the_price_at_the_time(now, monkeypatch, then, now_costs, budget, over):
    if then:
        monkeypatch.setenv("PLM_PRICE_PER_HOUR", then)
    with pytest.raises(KeyboardInterrupt):
        interrupted(now)
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", now_costs)
    monkeypatch.setenv("PLM_BUDGET", budget)
    assert CostReport("pretrain-gpt", "abc", DEVICE).overspent() == over


def test_budget_spending_survives_a_kill(now, monkeypatch):
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", "36")
    monkeypatch.setenv("PLM_BUDGET", "3")
    killed = CostReport("pretrain-gpt", "abc", DEVICE)
    now[0] += 150.0
    killed.add(10, 1000, FIRST, first=True)
    assert killed.overspent() == ""
    again = CostReport("pretrain-gpt", "abc", DEVICE)
    assert again.overspent() == ""
    now[0] += 150.0
    assert again.overspent() == "pretrain-gpt has cost 3 of 3 (PLM_BUDGET)"
