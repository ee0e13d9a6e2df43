"""DVC killed by SIGKILL when a stage's command has ended: it hashes, fills its cache, writes its lock file."""

import os
import random
import shutil
import signal
import time

import psutil
import pytest
import yaml
from projects import finish
from rounds import few, many

from flows.graph import Graph

METRICS = "artifacts/metrics/pretrain-gpt.json"
REPRO = ("dvc", "repro", "--single-item", "pretrain@gpt")


def committing(process, project):
    """Wait until the command of a running ``dvc repro`` has ended and DVC is by itself."""
    dvc = psutil.Process(process.pid)
    while process.poll() is None and not (project.root / METRICS).exists():
        time.sleep(0.001)
    while process.poll() is None and dvc.children():
        time.sleep(0.001)


def entries(project):
    """The folders of DVC's run cache."""
    return set((project.root / ".dvc/cache/runs").glob("*/*"))


def recorded(project):
    """What DVC's lock file says of the stage."""
    return yaml.safe_load((project.root / "dvc.lock").read_text())["stages"]["pretrain@gpt"]


@pytest.mark.parametrize("kills", [few(3), many(12)])
@pytest.mark.timeout(900)
def test_dvc_killed_again_and_again_while_it_commits_ends_with_the_same_bytes(built, small, tmp_path, kills):
    whole = built.copied(tmp_path / "whole")
    for project in (whole, small):
        project.change(pretrain__gpt__training__steps=24)
        (project.root / METRICS).unlink()
    process = whole.start(*REPRO)
    committing(process, whole)
    start = time.monotonic()
    finish(process)
    takes = time.monotonic() - start
    lock = (small.root / "dvc.lock").read_bytes()
    runs = entries(small)
    draw, killed = random.Random(24), 0
    for number in range(kills):
        (small.root / METRICS).unlink(missing_ok=True)
        if number % 4 == 0:  # else outputs come from DVC's run cache, once it has them
            for entry in entries(small) - runs:
                shutil.rmtree(entry)
        process = small.start(*REPRO)
        committing(process, small)
        time.sleep(draw.random() * takes)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        killed += process.returncode != 0
        if process.returncode == 0:  # it was faster this time: have it commit again
            (small.root / "dvc.lock").write_bytes(lock)
        Graph(small.root)  # repairs what is half written
    assert killed >= kills // 3
    small.run(*REPRO)
    assert small.files() == whole.files()
    assert recorded(small) == recorded(whole)
    out, _ = small.run("dvc", "status", "pretrain@gpt")
    assert "up to date" in out
    cached = {p.relative_to(small.root) for p in (small.root / ".dvc/cache/files").rglob("*") if p.is_file()}
    for path in cached:
        assert len(path.name.removesuffix(".dir")) == 30, "a file of the cache that is half written"
