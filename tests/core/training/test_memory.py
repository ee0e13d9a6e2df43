"""The memory of a step, told before it is done, beside what the allocator really gave."""

import warnings
from dataclasses import replace

import pytest
import torch
from folds import CAUSAL, CONFIG, batch_at, plain
from papers import PAPERS, make
from torch.profiler import ProfilerActivity, profile

from plm_core.training.blocks import blocks_of
from plm_core.training.config import OptimizerConfig
from plm_core.training.flops import on_meta
from plm_core.training.loop import train
from plm_core.training.memory import _Alive, parts_that_fit, step_memory, step_on_meta
from plm_core.training.optimizer import Optimizer
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import Validation

MUON = OptimizerConfig(1e-3, 0, name="muon")
SHAPES = [
    ("gpt", {"width": 48, "layers": 3}, 7),
    ("gpt", {"width": 24, "layers": 1, "context": 29}, 1),
    ("llama", {"width": 48, "layers": 2}, 5),
    ("bert", {"width": 72, "layers": 2}, 6),
    ("modernbert", {"width": 48, "layers": 4}, 6),
    ("xlnet", {"width": 48, "layers": 2}, 6),
    ("electra", {"width": 48, "layers": 2}, 4),
    ("gpt_bert", {"width": 48, "layers": 2}, 4),
    ("roberta_documents", {"width": 48, "layers": 2}, 4),
    # Masks of long rows are a good part of it.
    ("gpt_documents", {"width": 48, "layers": 4, "context": 512}, 2),
    ("roberta_documents", {"width": 48, "layers": 4, "context": 512}, 2),
    ("modernbert_documents", {"width": 48, "layers": 4, "context": 512}, 2),
]


def fails(*_):
    raise RuntimeError("no such step")


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def given_by_the_allocator(model, objective, batch, config):
    """The most bytes of a step: those that were there, and the sum of what torch's CPU allocator gave and got back."""
    optimizer = Optimizer(model, config)
    there = bytes_of(model.parameters()) + bytes_of(optimizer.tensors().values()) + bytes_of(vars(batch).values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = objective.loss(model, batch)
        loss.nll.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(0.0)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return there + most


@pytest.mark.parametrize(("name", "sizes", "rows"), SHAPES)
def test_the_estimate_is_what_a_step_takes(store, name, sizes, rows):
    model, objective = make(name, dtype=torch.float32, **sizes)
    batch = objective.batches(store, model.config, rows).at(3, 0)
    told = step_memory(model, objective.loss, batch, "float32", MUON)
    assert told == pytest.approx(given_by_the_allocator(model, objective, batch, MUON), rel=0.15)


def test_the_estimate_of_a_loss_in_chunks_is_what_it_takes(store, monkeypatch):
    model, objective = make("gpt", dtype=torch.float32, width=48)
    batch = objective.batches(store, model.config, 64).at(3, 0)
    whole = step_memory(model, objective.loss, batch, "float32", MUON)
    monkeypatch.setattr("plm_core.objectives.loss.AT_ONCE", 2**16)
    told = step_memory(model, objective.loss, batch, "float32", MUON)
    assert told < 0.8 * whole
    assert told == pytest.approx(given_by_the_allocator(model, objective, batch, MUON), rel=0.15)


def test_what_an_update_takes_comes_on_top_of_the_passes_of_a_replayed_step(store):
    model, objective = make("gpt", dtype=torch.float32, width=48)
    batch = objective.batches(store, model.config, 64).at(3, 0)
    plain, replayed = (step_memory(model, objective.loss, batch, "float32", MUON, kept) for kept in (False, True))
    assert replayed - plain > model.blocks[0].up.weight.nbytes


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_is_not_continued_takes_no_memory_for_keys_and_values(name):
    model = on_meta(make(name, dtype=torch.float32, width=48, layers=3)[0])
    ids = torch.zeros(64, 11, dtype=torch.long, device="meta")
    most = []
    for keep in (True, False):
        with torch.no_grad(), _Alive() as alive:
            model.read(ids, keep=keep)
        most.append(alive.most)
    assert most[0] - most[1] > ids.numel() * model.config.width  # and not only the mask of what was read


@pytest.mark.parametrize("name", PAPERS)
def test_bfloat16_needs_less_for_every_paper_and_leaves_no_trace(store, name):
    model, objective = make(name, dtype=torch.float32, width=48)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    batch = objective.batches(store, model.config, 64).at(3, 0)
    full, mixed = (step_memory(model, objective.loss, batch, p, MUON) for p in ("float32", "bfloat16"))
    assert 0.4 * full < mixed < full
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", PAPERS)
def test_on_a_gpu_in_bfloat16_the_residual_stream_is_bfloat16(store, name):
    model, objective = make(name, dtype=torch.float32, width=48)
    batch = objective.batches(store, model.config, 4).at(3, 0)
    seen = set()

    def look(module, read):
        seen.add(read[0].dtype)

    for block in blocks_of(model):
        for module in (block, *(child for child_name, child in block.named_modules() if "norm" in child_name)):
            module.register_forward_pre_hook(look)
    for precision in ("bfloat16", "float32"):
        seen.clear()
        step_on_meta(model, objective.loss, batch, precision, MUON)
        assert seen == {getattr(torch, precision)}


@pytest.mark.parametrize("name", ["xlnet", "transformer_xl"])
def test_on_a_gpu_in_bfloat16_memory_is_bfloat16(store, name):
    """Its first part is empty: in float32 all of it would be for good."""
    model, objective = make(name, dtype=torch.float32, width=48)
    batch = objective.batches(store, model.config, 4).at(3, 0)
    carried = []

    def loss(model, rows, carry):
        found = objective.loss(model, rows, carry)
        carried.extend(found.carry)
        return found

    step_on_meta(model, loss, batch, "bfloat16", MUON)
    assert {tensor.dtype for tensor in carried if tensor.is_floating_point()} == {torch.bfloat16}


def test_an_estimate_that_fails_leaves_the_flags_of_mixed_precision_as_they_were():
    with pytest.raises(RuntimeError, match="no such step"), torch.autocast("cpu", dtype=torch.bfloat16):
        step_on_meta(torch.nn.Linear(2, 2), fails, batch_at(0), "bfloat16", MUON)
    assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == (False, torch.float16)


@pytest.mark.parametrize(
    ("rows", "room", "parts"),
    [
        (8, 10_000, 1),
        (8, 100 + 8 * 10, 1),
        (8, 100 + 8 * 10 - 1, 2),
        (8, 100 + 4 * 10 + 7, 2),
        (8, 100 + 4 * 10 + 6, 4),  # the gradients are there when the second part begins
        (8, 100 + 10 + 7, 8),
        (6, 100 + 2 * 10 + 7, 4),
        (6, 100 + 10 + 7, 6),
        (8, 5, 8),
        (1, 5, 1),
    ],
)
def test_the_parts_are_as_few_as_there_is_room_for(rows, room, parts):
    assert parts_that_fit(lambda n: 100 + 10 * n, 7, rows, room) == parts


def test_rows_that_add_less_than_the_first_ones_are_not_cut():
    """Logits beyond those that are made at once add nothing."""
    assert parts_that_fit(lambda rows: 100 + 50 * min(rows, 2) + rows, 10, 64, 270) == 1


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("bfloat16", [True, False])
def test_the_plan_counts_what_the_device_has_and_does(make_gpt, device, tmp_path, monkeypatch, bfloat16, compile):
    asked = []
    monkeypatch.setattr("plm_core.training.loop.room_on", lambda device: 1 << 60)
    monkeypatch.setattr("plm_core.training.loop.compiled", lambda loss_of, *_: loss_of)
    monkeypatch.setattr("plm_core.training.loop.step_memory", lambda *given: asked.append((given[3], given[5])) or 1)
    config, device = replace(CONFIG, precision="bfloat16", compile=compile), replace(device, bfloat16=bfloat16)
    validate = Validation(1.0)
    next(train(make_gpt(), CAUSAL.loss, batch_at, lambda _: validate, config, device, Snapshots(tmp_path, 1)))
    assert asked == [("bfloat16" if bfloat16 else "float32", compile)]


def test_a_batch_without_room_is_cut_before_the_first_step_and_learns_the_same(start, monkeypatch):
    model, whole = start(folder="whole", dropout=0.0)
    expected = plain(whole)
    needed = [step_memory(model, CAUSAL.loss, batch_at(0).first(rows), "float32", CONFIG.optimizer) for rows in (1, 2)]
    room = needed[1] + sum(weight.nbytes for weight in model.parameters())
    monkeypatch.setattr("plm_core.training.loop.room_on", lambda device: room)
    _, parts = start(folder="parts", dropout=0.0)
    with pytest.warns(
        UserWarning, match=r"^accumulation: 8 rows at once need more than the .*: 2 rows at a time, in 4"
    ):
        found = plain(parts)
    assert [r["loss"] for r in found] == pytest.approx([r["loss"] for r in expected], rel=1e-9)
    # Who goes on keeps the parts, whatever room there is by then.
    monkeypatch.setattr("plm_core.training.loop.room_on", lambda device: 1 << 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain(start(folder="parts", dropout=0.0)[1]) == found
