"""The source `hub` reads the pinned commit of a dataset, row by row, from a hub: here one of our own, over HTTP."""

import hashlib
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_core.corpus.sources.hub_source import HubManifest, hub_rows, read_pin

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = {"body": ["one two", "", None, "x" * 999], "lang": ["en", "de", "fr", "it"], "stars": [1, 2, 3, 4]}
MANIFEST = {"dataset": "team/texts", "revision": COMMIT, "split": "train", "license": "CC0", "homepage": "here"}
PROGRAM = """
import json, sys
from plm_core.config import UserError
from plm_core.corpus.sources import SOURCES, open_source
config = SOURCES["hub"](sys.argv[1], text_field="body", max_record_bytes=99)
try:
    print(json.dumps([vars(record) for record in open_source("web", config)]))
except UserError as error:
    print(json.dumps(str(error)))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as streaming one Parquet file of one commit needs; all else is not found."""

    paths: list

    def do_GET(self):
        self.paths.append(self.path)
        path = self.path.split("?")[0]
        if path == f"/api/datasets/team/texts/revision/{COMMIT}":
            self.answer(json.dumps({"id": "team/texts", "sha": COMMIT, "siblings": [{"rfilename": "train.parquet"}]}))
        elif path == f"/api/datasets/team/texts/tree/{COMMIT}":
            self.answer(
                json.dumps([{"type": "file", "path": "train.parquet", "size": len(self.data), "oid": "0" * 40}])
            )
        elif path == f"/datasets/team/texts/resolve/{COMMIT}/train.parquet":
            first, last = (int(n) for n in self.headers.get("Range", f"=0-{len(self.data)}").split("=")[1].split("-"))
            self.answer(self.data[first : last + 1], 206, **{"Content-Range": f"bytes {first}-{last}/{len(self.data)}"})
        else:
            self.answer("", 404, **{"X-Error-Code": "EntryNotFound" if "/team/texts/" in path else "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def answer(self, body, status=200, **headers):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        more = {"X-Repo-Commit": COMMIT, "ETag": hashlib.sha1(body).hexdigest()}
        for name, value in (headers | more | {"Content-Length": len(body)}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    out = io.BytesIO()
    pq.write_table(pa.table(ROWS), out)
    handler = type("Handler", (Hub,), {"data": out.getvalue(), "paths": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def read(hub, tmp_path, project, **changes):
    (tmp_path / "web.json").write_text(json.dumps(MANIFEST | changes))
    address = f"http://127.0.0.1:{hub.server_port}"
    env = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "web.json")]
    run = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_every_row_of_the_pinned_commit_is_a_document_or_quarantined(hub, tmp_path, project):
    records = read(hub, tmp_path, project)
    assert [(r["id"], r["text"], r["source"], r["metadata"]) for r in records if "id" in r] == [
        ("web/1", "one two", f"team/texts@{COMMIT}:1", {"lang": "en", "stars": 1}),
        ("web/2", "", f"team/texts@{COMMIT}:2", {"lang": "de", "stars": 2}),
    ]
    assert [(r["place"], r["reason"]) for r in records if "id" not in r] == [
        (f"team/texts@{COMMIT}:3", "missing_text"),
        (f"team/texts@{COMMIT}:4", "too_long"),
    ]
    files = [path for path in hub.RequestHandlerClass.paths if path.endswith(".parquet")]
    assert files
    assert all(f"/resolve/{COMMIT}/" in path for path in files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"revision": "main"}, ["revision: found 'main'", "40 hexadecimal digits"]),
        ({"dataset": "team/nothing"}, ["web.json: team/nothing at 0123", "nothing"]),
        ({"split": "test"}, ["web.json: team/texts at 0123", "test"]),
        ({"config": "large"}, ["web.json: team/texts at 0123", "large"]),
    ],
)
def test_hub_errors_are_one_line(hub, tmp_path, project, changes, words):
    error = read(hub, tmp_path, project, **changes)
    assert isinstance(error, str), error
    assert "\n" not in error
    for word in words:
        assert word in error


def test_unreachable_hub_is_reported_with_remedy(tmp_path, monkeypatch):
    manifest = tmp_path / "web.json"
    manifest.write_text(json.dumps(MANIFEST))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(
            OSError, match=r"web\.json: team/texts cannot be downloaded: http://.* does not answer .*; connect, or"
        ) as error:
            next(hub_rows(read_pin(HubManifest, manifest), None, "train", manifest))
    assert "\n" not in str(error.value)
