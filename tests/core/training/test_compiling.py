"""A compiled loss is the same mathematics, the same bytes from run to run, and one graph for a whole training."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from folds import CONFIG, ROWS
from papers import make
from torch._dynamo.utils import counters

from plm_core.configs.architectures import MODELS
from plm_core.finetuning.classifier import Classifier, collate, example_loss
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.objectives.causal import causal_batch
from plm_core.objectives.objective import Loss
from plm_core.training import parallelize
from plm_core.training.parallelize import compiled, recompute, wrap

SIZES = {"vocab_size": 37, "context": 32, "layers": 1, "heads": 3, "width": 24, "dropout": 0.0}
INDUCTOR = ("modernbert", "xlnet")
"""Papers whose graphs become machine code: each has what the other has not."""
GRAPHS = ("gpt", "gpt_documents", "llama", "llama_documents", "gpt_bert", "bert")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, cache, device):
    """No graph of a test before, and no file outside the tests' folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs():
    """How many were compiled, but for the one by which it is tried whether this machine can."""
    return counters["stats"]["unique_graphs"] - 1


def gradients(model, loss):
    loss.nll.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return grads


@pytest.fixture
def backend(request, monkeypatch):
    """`eager` makes graphs as ever, `aot_eager` also that of their gradients; `inductor` turns both into machine code,
    which takes twenty times as long."""
    monkeypatch.setattr(parallelize, "_compile", partial(parallelize._compile, backend=request.param))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [*(("aot_eager", name) for name in GRAPHS), *(("inductor", name) for name in INDUCTOR)],
    indirect=["backend"],
)
@pytest.mark.usefixtures("backend")
def test_compiled_loss_and_gradients_match_eager(store, device, name):
    model, objective = make(name, seed=3, layers=2 if name == "modernbert" else 1)
    names = list(model.state_dict())
    batches, loss_of = objective.batches(store, model.config, 5), compiled(objective.loss, device.device)
    plain_carry = carry = None
    for step in range(4):
        batch = batches.at(7, step)
        expected, actual = objective.loss(model, batch, plain_carry), loss_of(model, batch, carry)
        torch.testing.assert_close(actual.nll, expected.nll, rtol=1e-9, atol=0)
        assert actual.num_targets == expected.num_targets
        torch.testing.assert_close(gradients(model, actual), gradients(model, expected), rtol=1e-7, atol=1e-9)
        plain_carry, carry = expected.carry, actual.carry
    assert list(model.state_dict()) == names
    # A first batch has no memory behind it, and so a graph of its own.
    assert graphs() == (2 if name == "xlnet" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("aot_eager", "gpt"), ("aot_eager", "xlnet")], indirect=["backend"])
@pytest.mark.usefixtures("backend")
def test_blocks_that_are_recomputed_are_compiled_too(store, device, name):
    model, objective = make(name, seed=3, layers=2 if name == "modernbert" else 1)
    batch = objective.batches(store, model.config, 5).at(7, 0)
    expected = gradients(model, objective.loss(model, batch))
    wrap(model, recompute)
    actual = gradients(model, compiled(objective.loss, device.device)(model, batch, None))
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)
    assert graphs() == 1


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
@pytest.mark.usefixtures("backend")
def test_a_run_compiles_one_graph_whatever_it_validates_on(start):
    def uneven(evaluate):
        return sum(float(evaluate(causal_batch(ROWS[90 : 90 + n]), None).nll) for n in (4, 3, 2, 1))

    list(start(replace(CONFIG, compile=True, accumulation=2), validate=uneven)[1])
    assert graphs() == 1


def run(*arguments, **env):
    settings = {"PLM_THREADS": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "default::UserWarning", Path(__file__).with_name("compiled_run.py"), *arguments]
    return subprocess.run(
        list(map(str, command)), env=os.environ | settings | env, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(
    ("precision", "cold"),
    [
        pytest.param("bfloat16", False, marks=pytest.mark.slow),
        pytest.param("float32", True, marks=pytest.mark.proof),
    ],
)
def test_compiled_training_resumes_to_the_same_bytes(tmp_path, precision, cold):
    """With the code that the first has compiled, or compiled anew."""
    first = run(tmp_path / "a", precision)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")} if cold else {}
    run(tmp_path / "b", precision, 5, **cache)
    resumed = run(tmp_path / "b", precision, **cache)
    assert first.stdout.startswith("2 tokens.weight positions.weight blocks.0.norm_1.weight ")
    assert first.stdout == resumed.stdout


@pytest.mark.slow
def test_training_without_a_compiler_warns_and_runs(tmp_path):
    nowhere = {"CXX": str(tmp_path / "g++"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = run(tmp_path / "a", "float32", **nowhere)
    (line,) = [line for line in done.stderr.splitlines() if "training.compile" in line and "Warning" in line]
    assert "UserWarning: training.compile: not compiled, because this machine cannot: " in line
    assert "C++ compiler" in line
    assert done.stdout.startswith("2 tokens.weight ")


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
@pytest.mark.usefixtures("backend")
def test_compiled_rows_have_one_graph_per_length(device):
    torch.manual_seed(3)
    backbone = MODELS["gpt"].model(MODELS["gpt"].config(**(SIZES | {"context": 130})))
    classifier = Classifier(backbone, input_format_of("causal"), "classification", 3, 0.0)
    loss_of = compiled(example_loss, device.device)
    widths = set()
    for length in range(6, 131):
        batch = collate([InputRow([Written([7] * length, [0] * length)], 1)], 130)
        if batch.inputs.shape[-1] not in widths:
            loss_of(classifier, batch, None)
            widths.add(batch.inputs.shape[-1])
    assert graphs() == len(widths) > 8  # which torch allows by default


@pytest.mark.parametrize(
    ("backend", "architecture", "objective"),
    [("eager", "gpt", "causal"), ("eager", "bert", "masked"), ("eager", "xlnet", "permutation")],
    indirect=["backend"],
)
@pytest.mark.usefixtures("backend")
def test_finetuning_compiles_few_graphs_by_length(device, architecture, objective):
    torch.manual_seed(3)
    entry, draw = MODELS[architecture], np.random.default_rng(5)
    backbone = entry.model(entry.config(**(SIZES | {"context": 42}))).double()
    classifier = Classifier(backbone, input_format_of(objective), "classification", 3, 0.0).double()
    loss_of = compiled(example_loss, device.device)
    lengths = [25, 31, 32, 33, 41, 42, 40]
    widths = set()
    for length in lengths:
        rows = [
            InputRow([Written(draw.integers(7, 37, n).tolist(), [0] * n)], int(draw.integers(3)))
            for n in (5, length, 6)
        ]
        few, exact = collate(rows, 42), collate(rows)
        widths.add(few.inputs.shape[-1])
        actual, expected = loss_of(classifier, few, None), example_loss(classifier, exact)
        torch.testing.assert_close(actual.nll, expected.nll, rtol=1e-9, atol=0)
        torch.testing.assert_close(gradients(classifier, actual), gradients(classifier, expected), rtol=1e-7, atol=1e-9)
    assert widths == {32, 42}
    assert graphs() == 2


@pytest.mark.parametrize(("kind", "expected"), [("cuda", ["replayed", "plain"]), ("cpu", ["plain", "plain"])])
def test_cuda_graphs_replay_whole_batches_only(monkeypatch, kind, expected):
    ran, carried = [], torch.zeros(4, 3)

    def compile(loss_of, mode=None):
        name = {None: "plain", "reduce-overhead": "replayed"}[mode]
        return lambda *_: ran.append(name) or Loss(torch.zeros(()), torch.ones(()), (carried.mT,))

    monkeypatch.setattr(parallelize, "_compile", compile)
    monkeypatch.setattr(parallelize, "_can_compile", lambda _: True)
    loss_of = compiled(example_loss, torch.device(kind), replayed=4)
    losses = [loss_of(None, causal_batch(ROWS[:rows]), None) for rows in (4, 2)]
    assert ran == expected
    # What is carried on stays as it is when the next replay writes where this one wrote.
    carried += 1
    for loss in losses:
        assert loss.carry[0].is_contiguous()
        assert not loss.carry[0].any()
