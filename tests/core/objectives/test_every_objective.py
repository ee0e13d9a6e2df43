"""What holds for every paper: batches are functions of (seed, step), and one batch is learned by heart."""

import math
from dataclasses import replace
from inspect import signature

import pytest
import torch
from papers import PAPERS, SIZES, make

from plm_core.config import UserError
from plm_core.configs.architectures import MODELS
from plm_core.models.elmo import ELMo
from plm_core.objectives import OBJECTIVES, build_objective
from plm_core.text.tokenizers import CLS, EOS, PAD, SEP
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import Stopped, train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import AnomalyConfig, LoopConfig

EACH = pytest.mark.parametrize("name", PAPERS)
VOCABULARY = SIZES["vocab_size"]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(vars(left).values(), vars(right).values(), strict=True))


@EACH
def test_a_batch_is_a_function_of_seed_and_step(store, name):
    model, objective = make(name)
    batches, again = (objective.batches(store, model.config, 5) for _ in range(2))
    for step in (0, 1, 99):
        batch = batches.at(3, step)
        assert batch.inputs.shape == (5, 29)
        assert equal(batch, again.at(3, step))
        assert not equal(batch, batches.at(4, step))
        assert not equal(batch, batches.at(3, step + 1))
    held_out = batches.held_out(13)
    assert all(equal(a, b) for a, b in zip(held_out, again.held_out(13), strict=True))


@EACH
def test_targets_are_the_tokens_at_their_positions(store, name):
    model, objective = make(name)
    batch = objective.batches(store, model.config, 5).at(3, 1)
    assert int(batch.num_targets) == int((batch.targets >= 0).sum()) > 0
    if name in ("gpt", "llama", "transformer_xl"):
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    if name == "xlnet":
        assert torch.equal(batch.inputs.gather(1, batch.queries), batch.targets)


@EACH
def test_the_spans_of_a_row_are_where_its_tokens_come_from(store, name):
    model, objective = make(name)
    batches = objective.batches(store, model.config, 5)
    # The last steps of a pass too, where a stream may go on at the beginning of the store.
    last = getattr(batches.view, "steps", 99) - 1
    for step in (0, 1, last - 2, last - 1, last, last + 1):
        batch, spans = batches.at(3, step), batches.spans(3, step)
        inputs = batch.inputs.clone()
        if name.startswith("gpt_bert"):
            for row in batch.bidirectional.nonzero().flatten():
                chosen = batch.targets[row] >= 0
                inputs[row, 1 + batch.target_positions[row][chosen]] = batch.targets[row][chosen]
        elif isinstance(objective, OBJECTIVES["span_corruption"]):
            inputs[inputs >= VOCABULARY] = SEP  # sentinels; a kept span has one after it
        elif not isinstance(objective, OBJECTIVES["causal"]):
            for row in range(5):
                chosen = batch.targets[row] >= 0
                inputs[row, batch.target_positions[row][chosen]] = batch.targets[row][chosen]
        assert len(spans) == 5
        for row in range(5):
            for position, start, stop in spans[row]:
                there = inputs[row, position : position + stop - start]
                assert there.tolist() == store.tokens(start, stop).tolist()
                inputs[row, position : position + stop - start] = -1
        assert set(inputs.unique().tolist()) <= {-1, PAD, CLS, SEP, EOS}
        # All that is left is what frames the text: at most three tokens a part, and the padding.
        framing = (inputs >= 0) & (inputs != PAD)
        assert all(int(framing[row].sum()) <= 3 * len(spans[row]) for row in range(5))


@EACH
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_rank_rows_are_slices_of_one_global_batch(store, name, ranks):
    model, objective = make(name)
    whole = objective.batches(store, model.config, 6).at(3, 7)
    parts = [objective.batches(store, model.config, 6).share(3, 7, rank, ranks) for rank in range(ranks)]
    assert all(type(part) is type(whole) for part in parts)
    for field, rows in vars(whole).items():
        for rank, part in enumerate(parts):
            assert torch.equal(getattr(part, field), rows[rank * 6 // ranks : (rank + 1) * 6 // ranks])


@EACH
def test_loss_of_a_uniform_model_is_log_of_vocab_size(store, name):
    model, objective = make(name)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    batch = objective.batches(store, model.config, 5).at(3, 1)
    loss = objective.loss(model, batch)
    expected = int(batch.num_targets) * math.log(getattr(model.config, "rows", VOCABULARY))
    if name == "electra":
        expected += int(batch.num_targets) * objective.weight * math.log(2)
    if name == "bert":
        expected += batch.targets.shape[1] * 5 * math.log(2)
    assert float(loss.nll) == pytest.approx(expected, rel=1e-12)
    assert int(loss.num_targets) == int(batch.num_targets)


@EACH
def test_the_loss_of_a_batch_is_the_sum_over_its_rows(store, name):
    model, objective = make(name)
    batches = objective.batches(store, model.config, 6)
    carry = objective.loss(model, batches.at(3, 0)).carry
    batch = batches.at(3, 1)
    whole = objective.loss(model, batch, carry)
    carries = [None] * 3 if carry is None else list(zip(*(tensor.chunk(3) for tensor in carry), strict=True))
    parts = [objective.loss(model, part, c) for part, c in zip(batch.split(3), carries, strict=True)]
    assert float(whole.nll) == pytest.approx(float(sum(part.nll for part in parts)), rel=1e-12)
    assert int(whole.num_targets) == sum(int(part.num_targets) for part in parts)


@EACH
@pytest.mark.usefixtures("uncounted")
def test_one_batch_is_overfitted(store, device, tmp_path, name):
    sizes = {"embedding": 48, "generator_heads": 3} if name == "electra" else {}
    model, objective = make(name, dtype=torch.float32, width=48, **sizes)
    batch = objective.batches(store, model.config, 5).at(3, 0)
    steps, rate = (250, 3e-3) if name == "transformer_xl" else (160, 2e-2) if isinstance(model, ELMo) else (120, 1e-2)
    config = LoopConfig(seed=1, steps=steps, batch=5, optimizer=OptimizerConfig(rate, 10, weight_decay=0.0))
    reports = list(
        train(
            model,
            objective.loss,
            lambda step: batch,
            lambda m: Validation(0.0),
            config,
            device,
            Snapshots(tmp_path / "s"),
        )
    )
    # Where sentinels are targets too, they are learned before the first report.
    assert reports[0].loss > (3 if name in ("t5", "transformer") else 4)
    assert reports[-1].loss < 0.1


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("name", ["xlnet", "transformer_xl"])
def test_resume_with_memory_is_bit_identical(store, device, tmp_path, name):
    config = LoopConfig(
        seed=1, steps=12, batch=4, accumulation=2, optimizer=OptimizerConfig(1e-2, 2), report_every=1, valid_every=3,
        snapshot_every=3,
    )  # fmt: skip

    def start(folder, seed, stop=None):
        model, objective = make(name, seed, dropout=0.1)
        batches = objective.batches(store, model.config, 4)
        held_out = batches.held_out(8)

        def validate(evaluate):
            return Validation(float(evaluate(held_out[0], None).nll))

        snapshots = Snapshots(tmp_path / folder)
        steps = iter(range(1, 99))
        return model, train(
            model, objective.loss, lambda s: batches.at(7, s), validate, config, device, snapshots,
            interrupted=lambda: next(steps) == stop,
        )  # fmt: skip

    finished, reports = start("whole", 0)
    losses = [(r.loss, r.valid_loss) for r in reports]
    for stop in (1, 5):
        with pytest.raises(Stopped):
            list(start(f"{stop}", 0, stop)[1])
        model, resumed = start(f"{stop}", 99)
        assert [(r.loss, r.valid_loss) for r in resumed] == losses
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), finished.parameters(), strict=True))


@pytest.mark.parametrize("name", ["xlnet", "transformer_xl"])
def test_memory_is_detached_and_reset_at_row_starts(store, name):
    model, objective = make(name)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batches = objective.batches(store, model.config, 4)
    carry = objective.loss(model, batches.at(3, 0)).carry
    assert [tuple(t.shape) for t in carry] == [(4, 2, model.config.memory, 24), (4, model.config.memory)]
    assert not any(tensor.requires_grad for tensor in carry)
    batch = batches.at(3, 1)
    with_memory, without = float(objective.loss(model, batch, carry).nll), float(objective.loss(model, batch).nll)
    assert with_memory != pytest.approx(without, rel=1e-6)
    batch.begins[:] = True
    assert float(objective.loss(model, batch, carry).nll) == pytest.approx(without, rel=1e-12)


def test_memory_begins_anew_after_a_step_that_was_left_out(store, device, tmp_path):
    model, objective = make("transformer_xl")
    batches, fresh = objective.batches(store, model.config, 4), []

    def loss(model, batch, carry):
        result = objective.loss(model, batch, carry)
        if batch.inputs.is_cpu:  # and not only counted
            fresh.append(carry is None)
        return replace(result, nll=result.nll * math.nan) if len(fresh) == 3 else result

    config = LoopConfig(
        seed=1, steps=5, batch=4, optimizer=OptimizerConfig(1e-3, 1), anomalies=AnomalyConfig("skip"), report_every=5
    )
    with pytest.warns(UserWarning, match="at step 3 .* its update is skipped"):
        list(
            train(
                model, loss, lambda s: batches.at(7, s), lambda _: Validation(1.0), config, device, Snapshots(tmp_path)
            )
        )
    assert fresh == [True, False, False, True, False]


def test_an_objective_is_built_from_its_section():
    assert build_objective({"name": "masked", "rate": 0.2}, "x") == OBJECTIVES["masked"](rate=0.2)
    with pytest.raises(
        UserError, match=r"p\.bert\.objective\.name: found 'mask'; expected one of bidirectional, causal, hybrid, "
    ):
        build_objective({"name": "mask"}, "p.bert.objective")
    with pytest.raises(UserError, match=r"x\.rat: unknown parameter; did you mean 'rate'"):
        build_objective({"name": "masked", "rat": 0.2}, "x")
    with pytest.raises(UserError, match=r"x\.rate: found 1\.5; expected below 1"):
        build_objective({"name": "masked", "rate": 1.5}, "x")
    with pytest.raises(UserError, match=r"x\.predict: found 0; expected above 0"):
        build_objective({"name": "permutation", "predict": 0}, "x")


def test_objectives_by_architecture():
    """What the sections say is what the models can do; one that was added may leave out models that could."""
    needs = {"causal": ["read"], "masked": ["pool", "logits"], "permutation": ["memory_for"], "replaced": ["detect"]}
    needs["span_corruption"] = ["decode"]
    names = [name for name in OBJECTIVES if name in {*needs, "hybrid"}]
    assert len(names) == 6
    for entry in MODELS.values():
        able = {name for name, methods in needs.items() if all(hasattr(entry.model, method) for method in methods)}
        if "causal" in able and "bidirectional" in signature(entry.model.read).parameters:
            able.add("hybrid")
        assert [name for name in entry.objectives if name in names] == [name for name in names if name in able]


def test_objective_refuses_parameters_unfit_for_the_model(store):
    gpt, xlnet = PAPERS["gpt"][1], PAPERS["xlnet"][1]
    with pytest.raises(ValueError, match=r"objective\.streams: True for a model with memory None"):
        OBJECTIVES["causal"](streams=True).batches(store, gpt, 5)
    with pytest.raises(ValueError, match=r"objective\.streams: False for a model with memory 11"):
        OBJECTIVES["causal"]().batches(store, xlnet, 5)
    with pytest.raises(ValueError, match=r"objective\.reuse: 26 leaves 3 of the 29 positions of model\.context for"):
        OBJECTIVES["permutation"](reuse=26).batches(store, xlnet, 5)
    with pytest.raises(ValueError, match=r"objective\.predict: 99; with model\.context 29, no token would be"):
        OBJECTIVES["permutation"](predict=99).batches(store, xlnet, 5)
    with pytest.raises(ValueError, match=r"model\.segments: 1; expected at least 2 for objective\.next_sentence"):
        OBJECTIVES["masked"](next_sentence=True).batches(store, replace(PAPERS["bert"][1], segments=1), 5)
    with pytest.raises(ValueError, match=r"objective\.next_sentence: true for a model without segments"):
        OBJECTIVES["masked"](next_sentence=True).batches(store, PAPERS["modernbert"][1], 5)
    with pytest.raises(ValueError, match=r"model\.context: 1; expected at least 2"):
        OBJECTIVES["permutation"](predict=1, reuse=1).batches(store, replace(xlnet, context=1), 5)
