"""The served model, called as MLflow calls it: its columns are those of the signature, whatever the objective."""

from dataclasses import asdict, replace
from pkgutil import resolve_name
from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException
from mlflows import use

from plm_core import checkpoint
from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import KINDS, GlueTask, iob2
from plm_core.config import UserError
from plm_core.finetuning.classifier import Classifier, new_features
from plm_core.finetuning.finetune_config import FeaturesConfig, TextRecipe
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_model import TaskModel, learned_task, on_top
from plm_core.finetuning.text_writer import TextModel
from plm_core.generation import SamplingConfig
from plm_core.objectives import OBJECTIVES
from tasks.commands.serve import CheckpointModel
from tasks.publishing.mlflow_model import log_model, requirements, save_model, signature

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


def test_served_model_answers_with_named_likelihood(served, tmp_path):
    model, objective, prefix = served
    texts = ["so kasi lobitumo " * 9, "Ünïcödé 漢字"]
    answer = model.predict(None, pd.DataFrame({"text": texts}), {"max_new_tokens": 7, "temperature": 0.0, "seed": 5})
    assert list(answer.columns) == signature(tmp_path / "model").outputs.input_names()
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


@pytest.mark.parametrize("served", [("gpt", "causal", "bpe")], indirect=True)
def test_served_model_defaults_match_sampling_config(served, tmp_path):
    for spec in signature(tmp_path / "model").params.params:
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
    save_model(tmp_path / "model", tmp_path / "served")
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    text = pd.DataFrame({"text": ["so"]})
    with pytest.raises(MlflowException, match=r"params: \['temprature'\] unknown; expected max_new_tokens, temp"):
        model.predict(text, {"temprature": 0.1})
    assert len(model.predict(text, {"temperature": 0.1, "max_new_tokens": 2})) == 1


@pytest.mark.parametrize("served", [("gpt", "causal", "bpe")], indirect=True)
def test_a_model_is_logged_with_an_example_that_it_has_not_yet_answered(served, tmp_path, folder, monkeypatch):
    loads = []
    load = checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda *place: loads.append(place) or load(*place))
    use(f"sqlite:///{folder}/artifacts/mlflow/mlflow.db", monkeypatch)
    with mlflow.start_run(experiment_id=mlflow.create_experiment("served", tmp_path.as_uri())):
        logged = log_model(tmp_path / "model")
    assert loads == []
    model = mlflow.pyfunc.load_model(logged.model_uri)
    example = mlflow.models.Model.load(logged.model_uri).load_input_example_params(logged.model_uri)
    assert len(model.predict(model.input_example, example)) == len(loads) == 1


@pytest.mark.parametrize("served", [("gpt", "causal", "bpe")], indirect=True)
def test_requests_and_answers_are_kept_as_traces_only_if_someone_wants_that(served, folder, monkeypatch):
    use(f"sqlite:///{folder}/artifacts/mlflow/mlflow.db", monkeypatch)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "served")
    traces = mlflow.create_experiment("served", folder.as_uri())
    for wanted, text in (("off", "so"), ("on", "ka so")):
        monkeypatch.setenv("PLM_TRACES", wanted)
        served[0].predict(None, pd.DataFrame({"text": [text]}), {"max_new_tokens": 3})
    mlflow.flush_trace_async_logging()
    (trace,) = mlflow.MlflowClient().search_traces([traces])
    (span,) = trace.data.spans
    assert span.inputs == {"rows": [{"text": "ka so"}], "params": {"max_new_tokens": 3}}
    assert span.outputs[0]["continuation"]


TASKS = {
    "classification": GlueTask("said", "classification", "", ("so", "ka si"), ("accuracy",), "accuracy"),
    "regression": GlueTask("far", "regression", "", (), ("pearson",), "pearson"),
    "multiple_choice": GlueTask("ends", "multiple_choice", "", ("0", "1"), ("accuracy",), "accuracy"),
    "token_classification": GlueTask("ner", "token_classification", "", iob2(["PER"]), ("entity_f1",), "entity_f1"),
    "question_answering": GlueTask("qa", "question_answering", "", (), ("answer_f1",), "answer_f1", unanswerable=True),
    "translation": GlueTask("verses", "translation", "", (), ("bleu",), "bleu"),
    "search": GlueTask("found", "search", "", (), ("ndcg_at_10",), "ndcg_at_10"),
}
FINE_TUNED = [(kind, "gpt", "causal", None) for kind in TASKS]
FINE_TUNED += [("translation", "t5", "span_corruption", None)]
FINE_TUNED += [(kind, "bert", "masked", 7) for kind in ("classification", "token_classification", "search")]
ANSWERS = {"regression": float, "token_classification": list, "search": list}


def fine_tuned(tmp_path, kind, architecture, objective, width, tokenizer):
    """A model with a random head, in memory, with its checkpoint in the folder ``model``."""
    torch.manual_seed(17)
    task = TASKS[kind]
    shape = {**SHAPE, "vocab_size": tokenizer.vocab_size, "context": 99}
    config = checkpoint.CheckpointConfig(1, architecture, objective, shape, tokenizer.sha256, 1, 5.0)
    backbone = checkpoint.build(architecture, shape, "").eval()
    loaded = checkpoint.Loaded(backbone, tokenizer, config, "", {})
    input_format = input_format_of(objective)
    if KINDS[kind].writes_texts:
        writer = resolve_name(input_format.writer)
        model = TextModel(backbone, writer, kind, TextRecipe(beams=2), 5, tokenizer.vocab_size)
    else:
        features = new_features(loaded, FeaturesConfig(["bert"], width)) if width else None
        model = Classifier(backbone, input_format, kind, len(task.labels), 0.0, features=features)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    learned = learned_task(model, task, kind != "translation", -0.3 if task.unanswerable else 0.0)
    config = replace(config, head=asdict(learned))
    checkpoint.save(tmp_path / "model", backbone.state_dict(), tokenizer, config, on_top(model))
    return TaskModel(model.eval(), learned, loaded, 3, torch.device("cpu"))


def examples(kind):
    """Examples with their right answers, which a served model is not given."""
    texts = ["so kasi lobitumo", "Ünïcödé 漢字", "kasi so so " * 9]
    tags = [(1,) * len(text.split()) for text in texts]
    answers = (Answer("so", 0),) if kind in ("question_answering", "translation") else ()
    for text, tagged in zip(texts, tags, strict=True):
        b = None if kind in ("token_classification", "translation") else f"so ka {text}"
        choices = ("ka", f"so {text}") if kind == "multiple_choice" else ()
        a = " ".join(text.split())
        yield Example(text, a, b, 1, tags=tagged, answers=answers, choices=choices)


@pytest.mark.parametrize(("kind", "architecture", "objective", "width"), FINE_TUNED)
def test_a_fine_tuned_model_is_served_with_the_answers_it_gave_when_it_was_trained(
    tmp_path, tokenizers, kind, architecture, objective, width
):
    ours = fine_tuned(tmp_path, kind, architecture, objective, width, tokenizers["bpe"])
    asked_about = [*examples(kind)]
    save_model(tmp_path / "model", tmp_path / "served")
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    columns = {column: field for column, field in KINDS[kind].request.items() if ours.learned.pair or field != "b"}
    request = pd.DataFrame([{column: getattr(e, field) for column, field in columns.items()} for e in asked_about])
    if "choices" in columns:
        request["choices"] = request["choices"].map(list)
    answered = model.predict(request)
    assert answered.columns.tolist() == model.metadata.get_output_schema().input_names()
    expected = ours.predict(asked_about)
    assert answered["answer"].map(type).eq(ANSWERS.get(kind, str)).all()
    for answer, right, confidence, row in zip(
        answered["answer"], expected.answers, expected.confidences, answered.to_dict("records"), strict=True
    ):
        if kind in ("regression", "search"):
            assert answer == pytest.approx(right, rel=1e-5, abs=1e-7)
        else:
            assert answer == KINDS[kind].served(ours.learned.task, right)
            assert row["probability"] == pytest.approx(confidence, rel=1e-4)
    assert len({str(row) for row in answered.to_dict("records")}) == len(asked_about)
    assert len(model.predict(model.input_example)) == 1


def test_a_request_that_a_fine_tuned_model_cannot_answer_is_refused_with_its_column(tmp_path, tokenizers):
    fine_tuned(tmp_path, "multiple_choice", "gpt", "causal", None, tokenizers["bpe"])
    save_model(tmp_path / "model", tmp_path / "served")
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    request = {"text": "so", "text_pair": "ka", "choices": ["so", "ka"]}
    for changes, message in [
        ({"choices": ["so"]}, "choices: found 1; expected 2"),
        ({"choices": ["so", "k" * 20_001]}, r"choices: 1 texts of up to 20,001 characters"),
        ({"text_pair": None}, "text_pair"),
    ]:
        with pytest.raises(MlflowException, match=message):
            model.predict(pd.DataFrame([request | changes]))
    with pytest.raises(MlflowException, match="a fine-tuned model expects none"):
        model.predict(pd.DataFrame([request]), {"temperature": 0.1})


def test_a_checkpoint_whose_head_does_not_fit_is_refused(tmp_path, tokenizers):
    fine_tuned(tmp_path, "classification", "gpt", "causal", None, tokenizers["bpe"])
    loaded = checkpoint.load(tmp_path / "model")
    for changes, message in [
        ({"task": "said"}, "config.json: head.task"),
        ({"features": asdict(FeaturesConfig(["gpt"]))}, "does not fit .*config.json: head .*features"),
    ]:
        config = replace(loaded.config, head=loaded.config.head | changes)
        checkpoint.save(tmp_path / "other", loaded.model.state_dict(), loaded.tokenizer, config, loaded.extra)
        with pytest.raises(UserError, match=message):
            TaskModel.of(checkpoint.load(tmp_path / "other"), tmp_path / "other", torch.device("cpu"))
