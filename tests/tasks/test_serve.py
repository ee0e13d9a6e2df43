"""The served model, called as MLflow calls it: its columns are those of the signature, whatever the objective."""

from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException

from plm_core import checkpoint
from plm_core.generation import SamplingConfig
from plm_core.objectives import OBJECTIVES
from tasks.commands import serve
from tasks.commands.package import requirements, signature
from tasks.commands.serve import CheckpointModel

SHAPE = {"vocab_size": 307, "context": 29, "layers": 1, "heads": 2, "width": 16, "dropout": 0.0}


MODELS = [("gpt", "causal", "bpe"), ("bert", "masked", "bpe"), ("xlnet", "permutation", "bpe")]
MODELS += [
    ("xlnet", "causal", "bpe"),
    ("gpt", "causal", "bytelevel"),
    ("llama", "causal", "bpe"),
    ("modernbert", "masked", "bpe"),
    ("bert", "masked", "wordpiece"),
]


@pytest.fixture(params=MODELS, ids="-".join)
def served(request, tmp_path, tokenizers, device):
    """A served model, its objective, and the prefix of the name of its quantity."""
    architecture, objective, kind = request.param
    tokenizer = tokenizers[kind]
    torch.manual_seed(13)
    shape = SHAPE | ({"memory": 11} if architecture == "xlnet" else {})
    config = checkpoint.CheckpointConfig(1, architecture, objective, shape, tokenizer.sha256, 1, 5.0)
    checkpoint.save(tmp_path / "model", checkpoint.build(architecture, shape, "").state_dict(), tokenizer, config)
    model = CheckpointModel()
    model.load_context(SimpleNamespace(artifacts={"checkpoint": str(tmp_path / "model")}))
    return model, objective, "lossy_" if kind == "wordpiece" else ""


def test_served_model_answers_with_named_likelihood(served):
    model, objective, prefix = served
    texts = ["so kasi lobitumo " * 9, "Ünïcödé 漢字"]
    answer = model.predict(None, pd.DataFrame({"text": texts}), {"max_new_tokens": 7, "temperature": 0.0, "seed": 5})
    assert list(answer.columns) == signature().outputs.input_names()
    assert answer["text"].tolist() == texts
    assert set(answer["quantity"]) == {prefix + OBJECTIVES[objective].likelihood.name}
    assert all(0 < bits < 99 for bits in answer["likelihood"])
    assert [bool(text) for text in answer["continuation"]] == [objective != "masked"] * 2


def test_served_model_refuses_texts_without_tokens(served):
    model, *_ = served
    for text in (None, float("nan")):
        with pytest.raises(MlflowException, match=r"text: found (None|nan); expected text"):
            model.predict(None, pd.DataFrame({"text": ["so", text]}))
    for text in ("", "\0"):
        with pytest.raises(MlflowException, match="text: found no tokens") as refused:
            model.predict(None, pd.DataFrame({"text": ["so", text]}))
        assert refused.value.get_http_status_code() == 400


def test_served_model_requires_only_its_tokenizer_library(served, tmp_path):
    named = {line.split("==")[0] for line in requirements(tmp_path / "model")} & {"sentencepiece", "tokenizers"}
    file = next((tmp_path / "model").glob("tokenizer.*")).name
    assert named == {"sentencepiece" if file == "tokenizer.model" else "tokenizers"}


def test_served_model_defaults_match_sampling_config():
    for spec in signature().params.params:
        assert spec.default == getattr(SamplingConfig(), spec.name), spec.name


@pytest.mark.parametrize("served", [("gpt", "causal", "bpe")], indirect=True)
def test_served_model_refuses_too_long_requests(served):
    model, *_ = served
    for texts, params, message in [
        (["so"], {"max_new_tokens": 1025}, r"max_new_tokens: 1025; expected at most 1024"),
        (["so"] * 65, {}, r"text: 65 texts of up to 2 characters; expected at most 64 of at most 20,000"),
        (["so", "s" * 20_001], {}, r"text: 2 texts of up to 20,001 characters"),
    ]:
        with pytest.raises(MlflowException, match=message):
            model.predict(None, pd.DataFrame({"text": texts}), params)


@pytest.mark.parametrize("served", [("gpt", "causal", "bpe")], indirect=True)
def test_a_misspelt_parameter_is_named_by_the_model_that_mlflow_serves(served, tmp_path):
    mlflow.pyfunc.save_model(
        tmp_path / "served",
        python_model=serve.__file__,
        artifacts={"checkpoint": str(tmp_path / "model")},
        pip_requirements=[],
        signature=signature(),
    )
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    text = pd.DataFrame({"text": ["so"]})
    with pytest.raises(MlflowException, match=r"params: \['temprature'\] unknown; expected max_new_tokens, temp"):
        model.predict(text, {"temprature": 0.1})
    assert len(model.predict(text, {"temperature": 0.1, "max_new_tokens": 2})) == 1
