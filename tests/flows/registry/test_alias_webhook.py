"""A champion chosen on a real MLflow server, which reports it: in the ledger without a further command."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.message import Message

import mlflow
import pytest
from cryptography.fernet import Fernet
from mlflow.webhooks import delivery
from registries import PARAMS, register
from toys import free_port

from flows.registry import model_registry
from flows.registry.alias_webhook import OLDEST_S, authentic

LISTEN = """
import sys
from flows import cli
from flows.registry import alias_webhook
alias_webhook.LOOK_S = None  # only webhooks, no looks
cli.main(["listen", sys.argv[1]])
"""


@pytest.fixture
def webhooks(monkeypatch):
    """What a server needs to send webhooks to this machine."""
    monkeypatch.setenv("MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY", Fernet.generate_key().decode())
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "http")
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "true")


@pytest.mark.slow
@pytest.mark.usefixtures("webhooks")
def test_champion_moved_by_hand_is_in_the_ledger_without_a_command(server, tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "params.yaml").write_text(PARAMS)
    (root / "dvc.yaml").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    client = mlflow.MlflowClient(server.address)
    client.create_registered_model("plm")
    for content in (b"a", b"b"):
        register(root, content)
    address = f"http://127.0.0.1:{free_port()}"

    def champions():
        with model_registry.open_registry(root) as opened:
            return opened.ledger.champions()

    command = [sys.executable, "-c", LISTEN, address]
    with subprocess.Popen(command, cwd=root, env=os.environ, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline().startswith("listening: ")
            assert [hook.url for hook in client.list_webhooks()] == [address]
            for number in "12":
                client.set_registered_model_alias("plm", "champion", number)
                assert listener.stdout.readline().startswith(f"version {number} moved in the UI: moved by a person")
            assert champions() == ["1", "2"]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address, b"{}")
        finally:
            listener.send_signal(signal.SIGTERM)
        assert listener.wait() == 0
    assert client.list_webhooks() == []


def test_only_a_recent_delivery_with_mlflow_s_signature_is_taken():
    def delivered(sent, secret="right"):
        headers = Message()
        headers["X-MLflow-Delivery-Id"], headers["X-MLflow-Timestamp"] = "7", str(sent)
        headers["X-MLflow-Signature"] = delivery._generate_hmac_signature(secret, "7", str(sent), "{}")
        return headers

    now = int(time.time())
    assert authentic(delivered(now), b"{}", "right")
    for headers, body in (
        (delivered(now), b"[]"),
        (delivered(now, "wrong"), b"{}"),
        (delivered(now - int(OLDEST_S) - 60), b"{}"),
        (Message(), b"{}"),
    ):
        assert not authentic(headers, body, "right")
