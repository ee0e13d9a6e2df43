"""`dvc plots show` plots a training run like the report: its loss and its validations."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[3]
CURVE = "step,loss,valid_loss\n10,3.5,\n20,3.25,3.125\n"


def test_curves_have_the_loss_as_a_line_and_the_validations_as_points(tmp_path):
    stages = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
    (plot,) = stages["pretrain"]["do"]["plots"]
    ((_, options),) = plot.items()
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tmp_path, check=True)
    shutil.copytree(PROJECT / ".dvc/plots", tmp_path / ".dvc/plots")
    (tmp_path / "curve.csv").write_text(CURVE)
    stage = {"foreach": {"gpt": "own"}, "do": {"cmd": "true", "plots": [{"curve.csv": {"cache": False, **options}}]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"pretrain": stage}}))
    subprocess.run([sys.executable, "-m", "dvc", "plots", "show", "-q"], cwd=tmp_path, check=True)
    page = (tmp_path / "dvc_plots/index.html").read_text()
    shown, _ = json.JSONDecoder().raw_decode(page[page.index('{"$schema"') :])
    assert shown["title"]["text"] == "Pretraining gpt"
    line, points = shown["layer"]
    assert (line["mark"]["type"], line["encoding"]["y"]["field"]) == ("line", "loss")
    assert (points["mark"]["type"], points["encoding"]["y"]["field"]) == ("point", "valid_loss")
    assert line["encoding"]["y"]["title"] == "nats a token"
    assert [(row["step"], row["loss"], row["valid_loss"]) for row in shown["data"]["values"]] == [
        ("10", "3.5", ""),
        ("20", "3.25", "3.125"),
    ]
