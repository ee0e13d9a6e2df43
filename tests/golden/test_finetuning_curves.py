"""Ten steps of fine-tuning in float64, to all digits but rounding: whatever changes its numbers is seen here.

``finetuning.json`` was written by this file and is written anew, when a change is meant, by

    python tests/golden/test_finetuning_curves.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from test_curves import initial_model

from plm_core.finetuning.classifier import Classifier, collate, example_loss
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import Device
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

FILE = Path(__file__).with_name("finetuning.json")
CASES = {
    "gpt classification": ("gpt", "causal", "classification", 1, 0.0),
    "gpt both orders with the language model's loss": ("gpt", "causal", "classification", 2, 0.5),
    "gpt regression": ("gpt", "causal", "regression", 2, 0.0),
    "bert classification": ("bert", "masked", "classification", 1, 0.0),
    "bert regression": ("bert", "masked", "regression", 1, 0.0),
    "xlnet classification": ("xlnet", "permutation", "classification", 1, 0.0),
    "xlnet regression": ("xlnet", "permutation", "regression", 1, 0.0),
}


def rows(sequences, count, number):
    """Examples whose class (an int), or number (a float), is told by their third token."""
    draw = np.random.Generator(np.random.PCG64(3))
    examples = []
    for _ in range(count):
        ids = draw.integers(7, 37, draw.integers(4, 12)).tolist()
        segments = [0] * 3 + [1] * (len(ids) - 3)
        examples.append(
            InputRow([Written(ids, segments), Written(ids[::-1], segments)][:sequences], number(ids[2] % 3))
        )
    return examples


def curve(paper, objective, kind, sequences, auxiliary):
    """The losses of ten steps, and the gradient norms."""
    torch.set_num_threads(1)
    backbone, _ = initial_model(paper)
    model = Classifier(backbone, input_format_of(objective), kind, 3, 0.0, auxiliary).double()
    draw = np.random.Generator(np.random.PCG64(5))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.copy_(torch.from_numpy(0.1 * draw.standard_normal(parameter.shape)))
    some = rows(sequences, 40, float if kind == "regression" else int)
    config = LoopConfig(
        seed=1, steps=10, batch=8, optimizer=OptimizerConfig(3e-3, 2), report_every=1, valid_every=10, snapshot_every=10
    )
    with tempfile.TemporaryDirectory() as folder:
        reports = train(
            model,
            example_loss,
            lambda step: collate(some[step % 5 * 8 : step % 5 * 8 + 8]),
            lambda _: Validation(1.0),
            config,
            Device(torch.device("cpu"), 1, False),
            Snapshots(Path(folder)),
        )
        return [[report.loss, report.gradient_norm] for report in reports]


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_of_fine_tuning_give_the_recorded_numbers(case):
    golden = json.loads(FILE.read_text())[case]
    measured = curve(*CASES[case])
    assert np.array(measured) == pytest.approx(np.array(golden), rel=1e-10, abs=0)
    assert golden[-1][0] < golden[0][0]


if __name__ == "__main__":
    FILE.write_text(json.dumps({case: curve(*given) for case, given in CASES.items()}, indent=1) + "\n")
