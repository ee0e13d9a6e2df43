"""The losses of a student are the papers' formulas; it begins with layers of its teacher, and is judged without it."""

from functools import partial

import numpy as np
import pytest
import torch
from papers import make

from plm_core.objectives.objective import IGNORED
from plm_core.training import parallelize
from plm_core.training.distillation import begin_with_layers, distilled
from plm_core.training.flops import step_flops
from plm_core.training.parallelize import compiled, recompute, wrap
from plm_core.training.training_config import DistillationConfig

PAPERS = ["gpt", "llama_documents", "bert", "roberta", "roberta_documents", "modernbert", "modernbert_documents"]
HEADS = 6
WEIGHTS = {"temperature": 3.0, "soft": 0.7, "task": 0.2, "cosine": 0.3, "relation_heads": HEADS}


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def divergence(p, q):
    """KL(p || q), sum p log p/q."""
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def seen_by(objective, model, batch):
    """Logits and states at the predictions, queries, keys and values ``[B, T, 3, D]``, as arrays."""
    made = []
    qkv = getattr(model.blocks[-1].attention, "qkv", None)
    hook = qkv.register_forward_hook(lambda _, __, output: made.append(output)) if qkv else None
    with torch.no_grad():
        states = objective.hidden(model, batch).states
        logits = model.logits(states)
    if hook:
        hook.remove()
    return logits.numpy(), states.numpy(), made[0].unflatten(-1, (3, -1)).numpy() if made else None


def by_hand(objective, student, teacher, batch, config):
    """The sum of the losses, from Hinton et al. 2015, Sanh et al. 2019 and Wang et al. 2021, one number at a time."""
    (logits, states, ours), (their_logits, their_states, theirs) = (
        seen_by(objective, model, batch) for model in (student, teacher)
    )
    total = config.task * float(objective.loss(student, batch).nll.detach())
    for row, targets in enumerate(batch.targets.tolist()):
        places = [n for n, target in enumerate(targets) if target != IGNORED]
        for n in places:
            soft = [softmax(some[row, n] / config.temperature) for some in (their_logits, logits)]
            total += config.soft * config.temperature**2 * divergence(*soft)
            if config.cosine:
                u, v = states[row, n], their_states[row, n]
                total += config.cosine * (1 - u @ v / np.sqrt((u @ u) * (v @ v)))
        if config.relations:
            documents = getattr(batch, "documents", torch.zeros_like(batch.inputs))[row]
            real = [t for t in range(batch.inputs.shape[1]) if batch.attention_mask[row, t]]
            alike = 0.0
            for kind in range(3):
                for head in range(HEADS):
                    for t in real:
                        others = [s for s in real if documents[s] == documents[t]]
                        related = []
                        for vectors in (theirs, ours):
                            part = np.split(vectors[row, :, kind], HEADS, axis=-1)[head]
                            related.append(softmax(part[others] @ part[t] / np.sqrt(part.shape[-1])))
                        alike += divergence(*related) / (HEADS * len(real))
            total += config.relations * alike * len(places)
    return total


@pytest.mark.parametrize(("name", "width"), [*((name, 24) for name in PAPERS), ("bert", 48)])
def test_the_loss_is_that_of_the_papers(store, name, width):
    teacher, objective = make(name, seed=1, layers=4, width=width)
    student, _ = make(name, seed=2)
    batch = objective.batches(store, student.config, 5).at(3, 1)
    weights = WEIGHTS | ({"cosine": 0.0} if width != 24 else {})
    config = DistillationConfig(**weights, relations=0.0 if name in ("gpt", "llama_documents") else 0.4)
    expected = by_hand(objective, student, teacher, batch, config)
    loss_of = distilled(objective, student, teacher.eval(), config)
    loss = loss_of(student, batch)
    assert float(loss.nll.detach()) == pytest.approx(expected, rel=1e-12)
    assert int(loss.num_targets) == int(batch.num_targets)
    # Micro-batches add up to it, and validation is that of a model without a teacher.
    parts = [float(loss_of(student, part).nll.detach()) for part in batch.split(5)]
    assert sum(parts) == pytest.approx(expected, rel=1e-12)
    own = objective.loss(student.eval(), batch)
    assert torch.equal(loss_of(student, batch).nll, own.nll)


def test_a_student_that_is_its_teacher_has_nothing_to_learn(store):
    teacher, objective = make("roberta", seed=1)
    student, _ = make("roberta", seed=2)
    assert begin_with_layers(student, teacher) == [0, 1]
    batch = objective.batches(store, student.config, 5).at(3, 1)
    config = DistillationConfig(task=0.0, relations=1.0, relation_heads=HEADS)
    loss = distilled(objective, student, teacher.eval(), config)(student, batch)
    assert float(loss.nll.detach()) == pytest.approx(0, abs=1e-9)
    loss.nll.backward()
    assert all(p.grad is None for p in teacher.parameters())


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize(("layers", "chosen"), [(4, [0, 2]), (5, [0, 2]), (6, [0, 3])])
def test_a_student_begins_with_every_second_layer(name, layers, chosen):
    teacher, _ = make(name, seed=1, layers=layers)
    student, _ = make(name, seed=2)
    assert begin_with_layers(student, teacher) == chosen
    weights = teacher.state_dict()
    for key, tensor in student.state_dict().items():
        block = key.startswith("blocks.")
        theirs = f"blocks.{chosen[int(key.split('.')[1])]}.{key.split('.', 2)[2]}" if block else key
        assert torch.equal(tensor, weights[theirs])
    wider, _ = make(name, seed=3, layers=layers, width=48)
    before = {key: tensor.clone() for key, tensor in student.state_dict().items()}
    assert begin_with_layers(student, wider) == []
    assert all(torch.equal(tensor, before[key]) for key, tensor in student.state_dict().items())


@pytest.mark.parametrize("how", [pytest.param("compiled", marks=pytest.mark.slow), "recomputed"])
def test_a_student_trains_alike_compiled_and_recomputed(store, device, how, monkeypatch):
    teacher, objective = make("bert", seed=1, layers=4, dtype=torch.float32)
    student, _ = make("bert", seed=2, dtype=torch.float32)
    batch = objective.batches(store, student.config, 5).at(3, 1)
    config = DistillationConfig(relations=1.0, relation_heads=HEADS)
    loss_of = distilled(objective, student, teacher.eval(), config)
    assert step_flops(student, loss_of, batch) > step_flops(student, objective.loss, batch)

    def gradients(loss_of):
        student.zero_grad()
        loss_of(student, batch, None).nll.backward()
        return {key: p.grad for key, p in student.named_parameters() if p.grad is not None}

    expected = gradients(loss_of)
    if how == "recomputed":
        wrap(student, recompute)
    else:
        monkeypatch.setattr(parallelize, "_compile", partial(parallelize._compile, backend="aot_eager"))
        loss_of = compiled(loss_of, device.device)
    for _ in range(2):
        torch.testing.assert_close(gradients(loss_of), expected, rtol=1e-4, atol=1e-4)
