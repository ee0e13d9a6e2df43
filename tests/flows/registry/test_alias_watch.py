"""A champion chosen on a real MLflow server is in the ledger without a further command."""

import os
import signal
import subprocess
import sys

import mlflow
import pytest
from registries import PARAMS, register

from flows.registry import model_registry


@pytest.mark.slow
def test_champion_moved_by_hand_is_in_the_ledger_without_a_command(server, tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "params.yaml").write_text(PARAMS)
    (root / "dvc.yaml").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    client = mlflow.MlflowClient(server.address, server.address)
    client.create_registered_model("plm")
    for content in (b"a", b"b"):
        register(root, content)
    command = [sys.executable, "-m", "flows.cli", "watch"]
    with subprocess.Popen(command, cwd=root, env=os.environ, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout.readline().startswith("watching")
            for number in "12":
                client.set_registered_model_alias("plm", "champion", number)
                assert watcher.stdout.readline().startswith(f"version {number} moved in the UI: moved by a person")
        finally:
            watcher.send_signal(signal.SIGTERM)
        assert watcher.wait() == 0
    with model_registry.open_registry(root) as opened:
        assert opened.ledger.champions() == ["1", "2"]
