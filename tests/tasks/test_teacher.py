"""A student: a pretraining run that learns from another model's checkpoint."""

import json
import shutil
import signal

import pytest
import torch
from projects import finish

from plm_core import checkpoint
from plm_core.shared.files import sha256_file

OUTS = ("artifacts/models/gpt", "artifacts/curves/gpt.csv", "artifacts/metrics/pretrain-gpt.json")


def taught(project, name="gpt", **more):
    """Let the model of the project be the teacher of another one, with fewer layers, in its stead."""
    shutil.move(project.root / f"artifacts/models/{name}", project.root / "teacher")
    digest = sha256_file(project.root / "teacher/SHA256SUMS")
    project.change(
        **{
            f"pretrain__{name}__teacher": {"checkpoint": "teacher", "sha256": digest} | more,
            f"pretrain__{name}__model__layers": 1,
        }
    )
    return digest


@pytest.fixture
def student(small):
    taught(small)
    return small


def results(project):
    return {name: data for name, data in project.files().items() if name.startswith(OUTS)}


def test_a_student_without_a_step_of_its_own_is_every_second_layer(student):
    student.change(pretrain__gpt__training__optimizer__learning_rate=1e-30)
    student.run("tasks.stages.pretrain", "gpt")
    ours, theirs = (checkpoint.load(student.root / name) for name in ("artifacts/models/gpt", "teacher"))
    assert ours.config.lineage.parameters_sha256 != theirs.config.lineage.parameters_sha256
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(tensor, theirs.model.state_dict()[name])


def test_a_student_resumes_after_a_kill_to_the_same_bytes(student, tmp_path):
    student.change(pretrain__gpt__training__steps=80, pretrain__gpt__training__valid_every=20)
    whole = student.copied(tmp_path / "whole")
    whole.run("tasks.stages.pretrain", "gpt")
    process = student.start("tasks.stages.pretrain", "gpt")
    student.snapshot(process)
    process.send_signal(signal.SIGKILL)
    finish(process, code=-signal.SIGKILL)
    out, _ = student.run("tasks.stages.pretrain", "gpt")
    assert "resumed" in out
    assert len(results(whole)) == 6
    assert results(student) == results(whole)


ERRORS = [
    ({"teacher__sha256": "0" * 64}, "teacher.sha256: teacher is "),
    ({"teacher__checkpoint": "gone"}, "teacher.checkpoint: gone is missing; expected a checkpoint (`plm import`)"),
    ({"model__layers": 3}, "model.layers: found 3; expected at most 2, as in its teacher teacher"),
    ({"model__width": 24}, "model.width: found 24; expected at most 16, as in its teacher teacher"),
    ({"model__context": 31}, "model.context: found 31; expected at most 29, as in its teacher teacher"),
    (
        {"model__width": 8},
        "teacher.cosine: found 0.125 for width 8 and a teacher's 16; expected 0, and relations above",
    ),
    ({"teacher__relations": 1}, "teacher.relations: objective causal cannot learn by it; expected soft and cosine"),
    ({"objective": {"name": "hybrid"}}, "teacher.soft: objective hybrid cannot learn by it; expected no teacher"),
    (
        {"architecture": "bert", "objective": {"name": "masked"}},
        "teacher.checkpoint: teacher has learned causal; expected masked, as the student does",
    ),
    ({"teacher__soft": 0, "teacher__cosine": 0}, "teacher.soft, cosine, relations: all are 0; expected one"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_a_teacher_that_cannot_teach_is_refused_before_the_run(student, changes, message):
    student.change(**{f"pretrain__gpt__{name}": value for name, value in changes.items()})
    student.change(fewshot__models=[])
    assert student.refused("tasks.commands.check").startswith(f"error: pretrain.gpt.{message}")
    assert student.refused("tasks.stages.pretrain", "gpt").startswith(f"error: pretrain.gpt.{message}")


def test_a_teacher_that_was_altered_or_has_another_tokenizer_is_refused(student):
    weights = student.root / "teacher/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "teacher/model.safetensors" in student.refused("tasks.stages.pretrain", "gpt")
    weights.write_bytes(whole)
    student.change(tokenizers__own__vocab_size=311)
    for stage in ("tokenizer", "pack"):
        student.run(f"tasks.stages.{stage}", "own")
    message = "error: pretrain.gpt.teacher.checkpoint: teacher was made with another tokenizer; expected in its section"
    assert student.refused("tasks.stages.pretrain", "gpt").startswith(message)
    given = {"file": "artifacts/tokenizers/own/tokenizer.model"}
    given["sha256"] = sha256_file(student.root / given["file"])
    student.change(tokenizers__own={"given": given})
    assert student.refused("tasks.commands.check").startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights"), [("gpt", {}), ("bert", {"relations": 0.5, "relation_heads": 2})])
def test_a_student_learns_more_in_as_many_steps_than_without_its_teacher(small, tmp_path, name, weights):
    """Real runs with three seeds, on text that neither has seen."""
    steps = {f"pretrain__{name}__training__steps": 240, f"pretrain__{name}__training__valid_every": 60}
    small.change(**steps)
    small.run("tasks.stages.pretrain", name)
    taught(small, name, **weights)
    small.change(**{f"pretrain__{name}__training__steps": 80, f"pretrain__{name}__training__valid_every": 20})
    for seed in (3, 4, 5):
        small.change(**{f"pretrain__{name}__training__seed": seed})
        alone = small.copied(tmp_path / f"alone-{seed}")
        alone.change(**{f"pretrain__{name}__teacher": ...})
        losses = []
        for project in (small, alone):
            project.run("tasks.stages.pretrain", name)
            losses.append(project.metrics(f"pretrain-{name}")["valid_loss"])
        assert losses[0] < losses[1]


@pytest.mark.slow
def test_the_gate_promotes_a_student_as_cheaper(small):
    """On what the stages measured: the champion is its teacher."""
    longer = {"pretrain__gpt__training__steps": 240, "pretrain__gpt__training__valid_every": 60}
    rules = {"promotion__primary": "bits_per_byte", "promotion__metrics": {"bits_per_byte": {"direction": "lower"}}}
    rules["promotion__metrics"]["bits_per_byte"]["tolerance"] = 0.5
    small.change(**longer, **rules, promotion__margin=0.5)
    for stage in ("pretrain", "evaluate"):
        small.run(f"tasks.stages.{stage}", "gpt")
    shutil.copytree(small.root / "artifacts/evidence/gpt", small.root / "champion")
    taught(small)
    # A few cautious steps, so that it is a little worse.
    small.change(pretrain__gpt__training__steps=20, pretrain__gpt__training__valid_every=20)
    small.change(pretrain__gpt__training__optimizer__learning_rate=0.0003)
    for stage in ("pretrain", "evaluate"):
        small.run(f"tasks.stages.{stage}", "gpt")
    evidence = ("--challenger", "artifacts/evidence/gpt", "--champion", "champion", "--out", "decision.json")
    small.run("tasks.commands.gate", *evidence)
    decision = json.loads((small.root / "decision.json").read_text())
    assert decision["passed"]
    assert "and the model is cheaper: " in decision["reasons"][0]
