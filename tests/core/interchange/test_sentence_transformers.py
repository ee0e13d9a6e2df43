"""An exported search model gives sentence-transformers, and whoever follows its files by hand, our vectors."""

import json

import numpy as np
import pytest
import torch
from saved import save
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from plm_core import checkpoint
from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError
from plm_core.finetuning.classifier import Classifier, predict
from plm_core.finetuning.featurize import encoded
from plm_core.finetuning.input_formats import input_format_of
from plm_core.interchange import export_hf

HEAD = {"task": "passages", "labels": [], "pooling": "mean"}
TEXTS = ["Ba so.", "Bafo limu pesa, and more than fits into a context of so few positions, or nearly so", "x"]


@pytest.fixture(params=["bert", "modernbert"])
def exported(request, tokenizers, tmp_path):
    """The folder of an export, and the vectors of ``TEXTS``."""
    save(tmp_path / "ours", request.param, tokenizers["wordpiece"], head=HEAD)
    export_hf(tmp_path / "ours", tmp_path / "hf")
    loaded = checkpoint.load(tmp_path / "ours")
    input_format = input_format_of(loaded.config.objective, loaded.config.model)
    some = [Example(str(i), text, None, 0) for i, text in enumerate(TEXTS)]
    rows = encoded(some, TASKS["passages"].task, input_format, loaded.tokenizer, loaded.model.config.context)
    assert 0 < rows.cut < len(TEXTS)
    model = Classifier(loaded.model, input_format, "search", 0, 0.0)
    return tmp_path / "hf", np.stack(predict(model, rows.encoded, 2, torch.device("cpu")).answers)[:, 0]


@torch.no_grad()
def test_search_export_matches_mean_pooling_of_transformers(exported):
    folder, vectors = exported
    assert json.loads((folder / "1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"] is True
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)).last_hidden_state
        np.testing.assert_allclose(F.normalize(states[0].mean(0), dim=0).numpy(), vector, atol=1e-5)


def test_search_export_matches_sentence_transformers(exported):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder, vectors = exported
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), vectors, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt", "xlnet"])
def test_search_export_refuses_models_that_are_not_masked(family, tokenizer, tmp_path):
    save(tmp_path / "ours", family, tokenizer, head=HEAD)
    with pytest.raises(UserError, match="expected a masked one"):
        export_hf(tmp_path / "ours", tmp_path / "hf")
