"""Runs of the loop, to be taken to their end, closed or resumed."""

import pytest
from folds import CAUSAL, CONFIG, Stops, batch_at, plain, validate

from plm_core.training.loop import train
from plm_core.training.snapshot import Snapshots


@pytest.fixture
def start(make_gpt, device, tmp_path):
    """Starts a run: a fresh model and the generator of its reports."""

    def start(config=CONFIG, folder="snapshots", validate=validate, batch_at=batch_at, stop=None, loss=None, **model):
        model = make_gpt(**({"dropout": 0.3} | model))
        snapshots = Snapshots(tmp_path / folder, config.keep_snapshots)
        interrupted = Stops(stop) if stop else lambda: False
        reports = train(
            model, loss or CAUSAL.loss, batch_at, validate, config, device, snapshots, interrupted=interrupted
        )
        return model, reports

    return start


@pytest.fixture
def undisturbed(start):
    model, reports = start(folder="undisturbed")
    return model, plain(reports)
