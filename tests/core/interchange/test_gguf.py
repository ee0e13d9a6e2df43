"""Llama-like models as GGUF files: read again by us, by transformers, and by llama.cpp where it is installed."""

import json

import numpy as np
import pytest
import torch
import transformers
from published import texts, write
from saved import save

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.interchange import import_hf
from plm_core.interchange.gguf_files import export_gguf
from plm_core.interchange.published_models import open_published

OWN = ("bpe", "bytelevel")
PUBLISHED = ("llama-tied", "qwen2", "mistral")
TEXT = "The state of the Union, 1790: naïve, 漢字.\n"


@pytest.fixture(scope="module", params=[*OWN, *PUBLISHED])
def ours(request, tokenizers, tmp_path_factory):
    """The folder of a Llama, with each kind of tokenizer that GGUF has."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in OWN:
        save(folder / "ours", "llama", tokenizers[request.param], width=64, inner=96, heads=4, context=64)
    else:
        write(request.param, folder / "theirs", padding=3)
        import_hf(folder / "theirs", folder / "ours")
    return folder / "ours"


def again(path, target):
    with open_published(str(path)) as (folder, exact):
        import_hf(folder, target, exact)
    return checkpoint.load(target)


def their_ids(tokenizer, text):
    ids = tokenizer.encode(text)
    return tokenizer.theirs[ids].tolist() if tokenizer.kind == "published" else ids


def logits(loaded, ids):
    """Next-token logits of their ids, in their order."""
    published = loaded.tokenizer.kind == "published"
    ours = torch.from_numpy(loaded.tokenizer.ours.astype("int64")) if published else torch.arange(2**20)
    scores = loaded.model.logits(loaded.model.read(ours[torch.tensor([ids])]))[0]
    return scores[:, ours] if published else scores


@torch.no_grad()
def test_gguf_round_trips_and_loads_in_transformers(ours, tmp_path):
    export_gguf(ours, tmp_path / "model.gguf", "gguf-f32")
    first, second = checkpoint.load(ours), again(tmp_path / "model.gguf", tmp_path / "again")
    for text in texts(500):
        ids = their_ids(first.tokenizer, text)
        assert their_ids(second.tokenizer, text) == ids
        assert second.tokenizer.decode(second.tokenizer.encode(text)) == text
    ids = their_ids(first.tokenizer, TEXT)[:40]
    expected = logits(first, ids)
    torch.testing.assert_close(logits(second, ids), expected, rtol=0, atol=0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    actual = theirs.eval()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    # A document begins for others as it does for us.
    export_gguf(tmp_path / "again", tmp_path / "second.gguf", "gguf-f32")
    assert (tmp_path / "second.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize(("precision", "room"), [("gguf", 2**-11), ("gguf-q8_0", 1 / 254)])
def test_gguf_quantized_weights_are_close(tokenizers, tmp_path, precision, room):
    save(tmp_path / "ours", "llama", tokenizers["bpe"], width=64, inner=96, heads=4)
    export_gguf(tmp_path / "ours", tmp_path / "model.gguf", precision)
    export_gguf(tmp_path / "ours", tmp_path / "full.gguf", "gguf-f32")
    assert (tmp_path / "model.gguf").stat().st_size < 0.7 * (tmp_path / "full.gguf").stat().st_size
    packed, full = (again(tmp_path / f"{n}.gguf", tmp_path / n).model.state_dict() for n in ("model", "full"))
    for name, weight in full.items():
        torch.testing.assert_close(packed[name], weight, rtol=0, atol=room * 1.01 * float(weight.abs().max()))


def test_gguf_includes_the_chat_template(tmp_path):
    write("llama-tied", tmp_path / "theirs")
    content = json.loads((tmp_path / "theirs/tokenizer.json").read_text())
    for i, piece in ((0, "!"), (7, content["added_tokens"][-1]["content"])):
        assert (content["model"]["vocab"].get(piece) == i) == (i == 0)
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 2, "content": '"', "special": False})
    (tmp_path / "theirs/tokenizer.json").write_text(json.dumps(content))
    facts = json.loads((tmp_path / "theirs/tokenizer_config.json").read_text())
    facts["bos_token"] = {"content": facts["bos_token"], "lstrip": False}
    (tmp_path / "theirs/tokenizer_config.json").write_text(json.dumps(facts | {"add_bos_token": True}))
    (tmp_path / "theirs/chat_template.jinja").write_text("{{ messages }}")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    export_gguf(tmp_path / "ours", tmp_path / "model.gguf", "gguf")
    with open_published(str(tmp_path / "model.gguf")) as (folder, _):
        facts = json.loads((folder / "tokenizer_config.json").read_text())
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    assert facts == {
        "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": True,
        "chat_template": "{{ messages }}",
    }  # fmt: skip
    assert [(token["content"], token["special"]) for token in added] == [
        ("!", True), ("<|endoftext|>", True), ('"', False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "kind", "target", "message"),
    [
        ("llama", "unigram", "a.gguf", r"tokenizer\.model: llama\.cpp has no tokenizer .* \(unigram\); expected bpe"),
        ("llama", "wordpiece", "a.gguf", r"\(wordpiece\); expected bpe, bytelevel or a published BPE"),
        ("gpt", "bpe", "a.gguf", r"is a gpt \(causal\); expected a pretrained llama"),
        ("llama", "bpe", "a.bin", r"a\.bin: expected a new file, with a name that ends in \.gguf"),
        ("llama", "bpe", "there.gguf", r"there\.gguf: expected a new file, with a name that ends in \.gguf"),
    ],
)
def test_gguf_export_refuses_unsupported_models(tokenizers, tmp_path, architecture, kind, target, message):
    (tmp_path / "there.gguf").write_bytes(b"")
    save(tmp_path / "ours", architecture, tokenizers[kind])
    with pytest.raises(UserError, match=message):
        export_gguf(tmp_path / "ours", tmp_path / target, "gguf")
    assert [path.name for path in tmp_path.glob("*.*")] == ["there.gguf"]


def test_gguf_refuses_unknown_pre_tokenizers(tmp_path):
    write("llama-tied", tmp_path / "theirs")
    path = tmp_path / "theirs/tokenizer.json"
    content = json.loads(path.read_text())
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Punctuation", "behavior": "Isolated"}, content["pre_tokenizer"]],
    }
    path.write_text(json.dumps(content))
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    with pytest.raises(UserError, match="or a published BPE that cuts words as gpt-2, smollm"):
        export_gguf(tmp_path / "ours", tmp_path / "a.gguf", "gguf")


def test_gguf_matches_llama_cpp(ours, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    export_gguf(ours, tmp_path / "model.gguf", "gguf-f32")
    theirs = llama_cpp.Llama(
        str(tmp_path / "model.gguf"), n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1
    )
    loaded = checkpoint.load(ours)
    for text in texts(500):
        assert theirs.tokenize(text.encode(), add_bos=False) == their_ids(loaded.tokenizer, text), text
    ids = their_ids(loaded.tokenizer, TEXT)[:40]
    theirs.eval(ids)
    with torch.no_grad():
        expected = logits(loaded, ids).numpy()
    np.testing.assert_allclose(theirs.scores[: len(ids)], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
