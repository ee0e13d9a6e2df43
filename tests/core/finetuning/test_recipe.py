"""Epochs and shares become steps of a loop, for tasks of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.finetuning.config import Recipe
from plm_core.training.optimizer import OptimizerConfig


@given(
    epoch=st.integers(1, 9999),
    epochs=st.floats(0.01, 9),
    validations=st.integers(1, 9),
    warmup=st.floats(0, 0.99),
    report_every=st.integers(1, 99),
)
def test_every_task_gets_a_loop(epoch, epochs, validations, warmup, report_every):
    recipe = Recipe(epochs, 8, OptimizerConfig(0.1), warmup, validations, report_every=report_every)
    loop = recipe.loop(epoch, 5)
    assert epochs * epoch <= loop.steps < epochs * epoch + 1
    assert loop.optimizer.warmup_steps <= warmup * loop.steps < loop.optimizer.warmup_steps + 1
    assert loop.valid_every == loop.snapshot_every
    often = epoch / validations
    assert abs(loop.valid_every - often) <= (report_every / 2 if often >= report_every else 1)
    assert (loop.seed, loop.batch, loop.optimizer.learning_rate) == (5, 8, 0.1)


def test_an_epoch_is_validated_at_its_end():
    loop = Recipe(3, 32, OptimizerConfig(1e-3), 0.1, report_every=1).loop(70, 1)
    assert (loop.steps, loop.valid_every, loop.optimizer.warmup_steps) == (210, 70, 21)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"epochs": 0}, "epochs: found 0; expected above 0"),
        ({"warmup": 1}, "warmup: found 1; expected below 1"),
        ({"validations": 0}, "validations: found 0; expected above 0"),
        ({"batch": 0}, "batch: found 0; expected above 0"),
        ({"accumulation": 3}, "accumulation: 3 does not divide batch 8"),
        ({"optimizer": {"learning_rate": 0.1, "warmup_steps": 5}}, "optimizer.warmup_steps: follows from warmup"),
        ({"steps": 5}, "steps: unknown parameter"),
    ],
)
def test_a_wrong_section_is_refused(section, says):
    given = {"epochs": 1, "batch": 8, "optimizer": {"learning_rate": 0.1}} | section
    with pytest.raises(UserError) as error:
        from_dict(Recipe, given, "finetune.training")
    assert str(error.value).startswith(f"finetune.training.{says}")
