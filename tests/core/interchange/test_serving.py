"""An exported decoder answers clients of OpenAI's API through ``transformers serve``."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import transformers
from saved import save

from plm_core import checkpoint
from plm_core.interchange import export_hf

TEXT = "The state of the"


@pytest.fixture(params=["gpt", "llama"])
def folder(request, tokenizer, tmp_path):
    save(tmp_path / "ours", request.param, tokenizer, context=64)
    export_hf(tmp_path / "ours", tmp_path / "hf")
    return tmp_path


def test_chat_template_joins_the_texts_of_messages(folder):
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    messages = [{"role": "user", "content": "The state"}, {"role": "assistant", "content": "of the"}]
    ids = theirs.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert ids == checkpoint.load(folder / "ours").tokenizer.encode("The state\nof the")


@pytest.mark.slow
def test_exported_model_is_served_by_transformers(folder):
    pytest.importorskip("openai", reason="transformers serve needs the package openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = str(folder / "hf")
    command = [str(Path(sys.executable).parent / "transformers"), "serve", name, "--host", "127.0.0.1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen([*command, "--port", str(port), "--device", "cpu"], env=environment)

    def answer(route, **body):
        content = json.dumps({"model": name, "max_tokens": 5, "temperature": 0} | body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/{route}", content, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    try:
        for _ in range(120):
            try:
                completed = answer("completions", prompt=TEXT)
                break
            except urllib.error.URLError:
                assert server.poll() is None
                time.sleep(1)
        # With the mark that begins a document.
        count = len(checkpoint.load(folder / "ours").tokenizer.encode(TEXT))
        assert completed["usage"]["prompt_tokens"] == count + 1
        chat = answer("chat/completions", messages=[{"role": "user", "content": TEXT}])
        assert chat["usage"]["prompt_tokens"] == count
        assert chat["choices"][0]["message"]["role"] == "assistant"
    finally:
        server.terminate()
        server.wait(60)
