"""Runs of the loop, to be taken to their end, closed or resumed."""

import pytest
from folds import CAUSAL, CONFIG, Stops, batch_at, plain, validate

from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import Prefetch, train
from plm_core.training.snapshot import Snapshots


@pytest.fixture(scope="session")
def start_in(make_gpt, device):
    """Starts a run whose snapshots lie in a folder: a fresh model and the generator of its reports."""

    def start(folder, config=CONFIG, validate=validate, batch_at=batch_at, stop=None, loss=None, **model):
        def seen(evaluate):
            result = validate(evaluate)
            return result if isinstance(result, Validation) else Validation(result)

        model = make_gpt(**({"dropout": 0.3} | model))
        snapshots = Snapshots(folder, config.keep_snapshots)
        interrupted = Stops(stop) if stop else lambda: False
        reports = train(model, loss or CAUSAL.loss, batch_at, seen, config, device, snapshots, interrupted=interrupted)
        return model, reports

    return start


@pytest.fixture
def start(start_in, tmp_path, uncounted):
    """The same, in a folder of the test's own."""
    return lambda config=CONFIG, folder="snapshots", **more: start_in(tmp_path / folder, config, **more)


@pytest.fixture(scope="session")
def undisturbed(start_in, tmp_path_factory):
    model, reports = start_in(tmp_path_factory.mktemp("undisturbed") / "snapshots")
    return model, plain(reports)


@pytest.fixture
def in_turn(monkeypatch):
    """Batches are made when their step begins, for tests in which making one does something."""

    class InTurn(Prefetch):
        def __call__(self, step, last=False):
            return self._made(step)

    monkeypatch.setattr("plm_core.training.loop.Prefetch", InTurn)
