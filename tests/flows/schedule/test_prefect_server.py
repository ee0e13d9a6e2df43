"""The Prefect server of a single run: it starts alongside others, and ends however its run or supervisor ends."""

import http.server
import os
import socketserver
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from toys import wait_for

from flows.schedule.prefect_server import answers, require_answer
from plm_core.shared.errors import UserError

SERVED = """
import sys
from pathlib import Path
from flows.run import pipeline
pipeline.prepare_environment(Path.cwd())
from flows.schedule.prefect_server import LocalServer, answers
with LocalServer(Path(sys.argv[1])) as local, local.environment():
    print(local.url, flush=True)
    input()
    assert answers(local.url)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a run's server; all of them share a home that is empty at first."""
    started = []

    def start() -> "subprocess.Popen[str]":
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PREFECT_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", SERVED, str(tmp_path / f"{len(started)}.log")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=env, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_prefect_database_is_created_by_concurrent_runs(start):
    first, second = start(), start()
    urls = {process.stdout.readline() for process in (first, second)}
    assert len(urls) == 2
    assert all(urls), [process.communicate() for process in (first, second)]
    second.communicate("\n")
    assert second.returncode == 0
    (supervisor,) = psutil.Process(first.pid).children()
    (server,) = supervisor.children()
    supervisor.kill()
    wait_for(lambda: not server.is_running())


@pytest.fixture
def authority(tmp_path):
    """A certificate of `localhost` that no public authority has signed, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    names = ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, *names], check=True, capture_output=True)
    return certificate, key


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()


def test_prefect_server_trust_follows_prefect_settings(authority, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as served:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority)
        served.socket = context.wrap_socket(served.socket, server_side=True)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        url = f"https://localhost:{served.server_port}/api"
        assert not answers(url)
        with pytest.raises(UserError, match=r"_CERT_FILE: not set, and https://localhost:.* is not trusted: .*verify"):
            require_answer(url)
        monkeypatch.setenv("PREFECT_API_SSL_CERT_FILE", str(authority[0].with_name("none")))
        with pytest.raises(UserError, match=r"_CERT_FILE: no file .*/none; expected the certificate"):
            require_answer(url)
        monkeypatch.setenv("PREFECT_API_SSL_CERT_FILE", str(authority[0]))
        assert answers(url)
        served.shutdown()


class Other(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:{}/api", "http://127.0.0.1:{}/api ", "http://127.0.0.1:{}o/api", "x"]
)
def test_invalid_prefect_address_is_refused(address):
    with socketserver.TCPServer(("127.0.0.1", 0), Other) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=r"^PREFECT_API_URL: no Prefect server answers at .*; start one with"):
            require_answer(address.format(served.server_address[1]))
        served.shutdown()


HOMELESS = """
import sys
from pathlib import Path
from flows.run import pipeline
from flows.schedule import prefect_server
pipeline.prepare_environment(Path(sys.argv[1]))
pipeline.prepare_environment(Path(sys.argv[1]))
(prefect_server.home() / "prefect.db").touch()
"""


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_without_a_home_prefect_uses_a_folder_of_the_checkout_and_says_so(tmp_path, home):
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | {"HOME": home}
    command = [sys.executable, "-c", HOMELESS, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    instead = tmp_path / ".dvc/tmp/home"
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"warning: {home}/.prefect cannot be written: Prefect uses {instead}\n"
    assert (instead / "prefect/prefect.db").exists()
