"""A published model by its address: a GGUF file, a package, a repository of the hub."""

import http.server
import json
import os
import subprocess
import sys
import threading

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from published import FOLDERS, texts

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.interchange import import_hf
from plm_core.interchange.published_models import open_published

H, G, D, L = 4, 2, 32, 2
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder of transformers, and its model."""
    folder = tmp_path_factory.mktemp("llama")
    rows = FOLDERS["llama"][2](folder)
    config = transformers.LlamaConfig(
        vocab_size=rows, hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=G,
        intermediate_size=32, max_position_embeddings=40, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(6)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return folder, model


def paired(weight, heads):
    """The order of llama.cpp: neighbours form a pair of RoPE."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def written(path, folder, model, architecture="llama", pre="smollm", kind=None, change=lambda writer: None):
    """The model as a GGUF file; matrices are quantised as ``kind``."""
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(D)
    writer.add_block_count(L)
    writer.add_feed_forward_length(32)
    writer.add_head_count(H)
    writer.add_head_count_kv(G)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    content = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([library.id_to_token(i) for i in range(library.get_vocab_size())])
    writer.add_token_types([3 if i == 1 else 1 for i in range(library.get_vocab_size())])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]])
    writer.add_eos_token_id(1)
    change(writer)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}

    def add(name, weight):
        if kind is None or weight.ndim < 2:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    for i in range(L):
        for theirs, name in NAMES.items():
            weight = weights[f"model.layers.{i}.{name}.weight"]
            heads = {"attn_q": H, "attn_k": G}.get(theirs)
            add(f"blk.{i}.{theirs}.weight", np.ascontiguousarray(paired(weight, heads)) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(address, target):
    with open_published(str(address)) as (folder, exact):
        import_hf(folder, target, exact)
    return checkpoint.load(target)


@torch.no_grad()
def test_gguf_import_matches_its_folder(llama, tmp_path):
    folder, model = llama
    ours = read(written(tmp_path / "model.gguf", folder, model, pre="gpt-2"), tmp_path / "ours")
    other = read(folder, tmp_path / "other")
    for text in texts(200):
        assert ours.tokenizer.encode(text) == other.tokenizer.encode(text)
    rows = torch.arange(8, 32)[None]
    logits = ours.model.logits(ours.model.read(rows))
    torch.testing.assert_close(logits, other.model.logits(other.model.read(rows)))
    assert ours.config.published.source == ""


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_quantized_gguf_import_is_close(llama, tmp_path, kind):
    ours = read(written(tmp_path / "model.gguf", *llama, kind=gguf.GGMLQuantizationType[kind]), tmp_path / "ours")
    other = read(llama[0], tmp_path / "other").model.state_dict()
    for name, weight in ours.model.state_dict().items():
        # Half of the step between neighbouring values, of a block's range.
        room = {"Q8_0": 1 / 254, "Q4_1": 1 / 15, "F16": 1e-3}[kind] * float(other[name].abs().max() * 1.01)
        torch.testing.assert_close(weight, other[name], rtol=0, atol=room)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"architecture": "falcon"}, "general.architecture: found 'falcon'; expected llama or qwen2"),
        ({"pre": "deepseek-coder"}, "found 'gpt2' with 'deepseek-coder'; expected 'gpt2' with gpt-2, smollm"),
        (
            {"change": lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))},
            "holds rope_freqs.weight, which a llama without RoPE scaling does not have",
        ),
    ],
)
def test_a_gguf_file_of_another_model_is_refused(llama, tmp_path, how, message):
    path = written(tmp_path / "model.gguf", *llama, **how)
    with pytest.raises(UserError, match=message), open_published(str(path)):
        pass


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(UserError, match=r"a\.gguf: not a GGUF file"), open_published(str(tmp_path / "a.gguf")):
        pass
    with pytest.raises(UserError, match=r"b\.gguf: missing"), open_published(str(tmp_path / "b.gguf")):
        pass


def test_package_address_holds_a_folder_or_a_file(llama, tmp_path, monkeypatch):
    package = tmp_path / "some_model"
    (package / "weights").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('is not imported')")
    information = tmp_path / "some_model-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="package://some-model: holds 0 models; expected one"):
        read("package://some-model", tmp_path / "none")
    written(package / "weights/a.gguf", *llama)
    assert read("package://some-model", tmp_path / "ours").config.published.source == "package://some-model==1.2"
    with pytest.raises(UserError, match="package://other: no such package is installed"):
        read("package://other", tmp_path / "none")


COMMIT = "0123456789" * 4
FETCH = """
import sys
from pathlib import Path
from plm_core.config import UserError
from plm_core.interchange import import_hf
from plm_core.interchange.published_models import open_published
for address in sys.argv[2:]:
    try:
        with open_published(address) as (folder, exact):
            print(exact, import_hf(folder, Path(sys.argv[1]), exact), sorted(path.name for path in folder.iterdir()))
    except UserError as error:
        print(error)
"""


@pytest.fixture
def hub(llama):
    """The routes of the hub for the repository ``me/llama``, whose branch ``main`` is ``COMMIT``."""
    files = {path.name: path.read_bytes() for path in llama[0].iterdir()} | {
        "model.py": b"0",
        "pytorch_model.bin": b"0",
    }

    class Routes(http.server.BaseHTTPRequestHandler):
        def do_GET(self, body=True):
            content, headers, code = self.answer()
            self.send_response(code)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET(body=False)

        def answer(self):
            path = self.path.split("?")[0]
            if path.startswith("/api/models/me/gated"):
                return b"{}", {"X-Error-Code": "GatedRepo"}, 403
            if path in ("/api/models/me/llama", *(f"/api/models/me/llama/revision/{r}" for r in ("main", COMMIT))):
                siblings = [{"rfilename": name} for name in files]
                return json.dumps({"id": "me/llama", "sha": COMMIT, "siblings": siblings}).encode(), {}, 200
            if path == f"/api/models/me/llama/tree/{COMMIT}":
                listed = [{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in files.items()]
                return json.dumps(listed).encode(), {}, 200
            if path.startswith("/api/models/me/llama/"):
                return b"{}", {"X-Error-Code": "RevisionNotFound"}, 404
            name = path.removeprefix(f"/me/llama/resolve/{COMMIT}/")
            if name not in files:
                return b"{}", {"X-Error-Code": "RepoNotFound"}, 404
            return files[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}, 200

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Routes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_hub_address_is_read_at_a_commit(hub, tmp_path):
    """Without its code and pickles; the second time from the cache, without a network."""

    def fetched(target, *addresses, **more):
        variables = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "cache"), **more}
        command = [sys.executable, "-c", FETCH, str(tmp_path / target), *addresses]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    refused = {
        "hf://me/llama@other": "has no revision 'other'",
        "hf://me/gated": "is gated; accept its terms",
        "hf://me/nothing": "no such repository, or it is private",
        "hf://no//name": "no such repository, or it is private; expected hf://OWNER/NAME",
    }
    first, *others = fetched("ours", "hf://me/llama@main", *refused)
    assert first.startswith(f"hf://me/llama@{COMMIT} ")
    assert "model.safetensors" in first
    assert "model.py" not in first
    assert ".bin" not in first
    for line, (address, message) in zip(others, refused.items(), strict=True):
        assert line.startswith(f"{address}: ")
        assert message in line
    again, away = fetched("again", f"hf://me/llama@{COMMIT}", "hf://me/llama", HF_ENDPOINT="http://127.0.0.1:9")
    assert again == first
    assert "cannot be downloaded" in away
