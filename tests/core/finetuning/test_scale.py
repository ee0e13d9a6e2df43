"""A regression is learned in standard deviations, and its head gives numbers in their own unit."""

import numpy as np
import pytest
import torch
from torch import nn

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.finetuning.classifier import Row
from plm_core.finetuning.featurize import Rows
from plm_core.finetuning.scale import Scale

NUMBERS = GlueTask("t", "regression", "?", (), ("pearson",), "pearson")
CLASSES = GlueTask("t", "classification", "?", ("a", "b"), ("accuracy",), "accuracy")
YEARS = [1991.0, 2003.0, 2019.0]


def rows(labels, owners):
    return Rows([Example(str(y), "", None, y) for y in labels], [Row([], labels[i]) for i in owners], owners)


def test_labels_have_the_mean_0_and_the_deviation_1_over_examples_however_many_rows_they_have():
    train = rows(YEARS, [0, 0, 0, 1, 2])
    scale = Scale.of(NUMBERS, train)
    found = scale.standardized(train)
    each = [found.encoded[i].label for i in (0, 3, 4)]
    assert (np.mean(each), np.std(each)) == pytest.approx((0, 1), abs=1e-12)
    assert (found.examples, found.owners) == (train.examples, train.owners)
    # Others are in the same unit.
    assert scale.standardized(rows([scale.mean + scale.deviation], [0])).encoded[0].label == pytest.approx(1)


def test_equal_labels_are_a_unit_apart():
    assert Scale.of(NUMBERS, rows([7.0, 7.0], [0, 1])) == (7.0, 1.0)


def test_a_folded_head_gives_the_numbers_themselves():
    head = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    read = torch.randn(13, 5, dtype=torch.float64)
    scale = Scale.of(NUMBERS, rows(YEARS, [0, 1, 2]))
    before = head(read)
    scale.fold(head)
    torch.testing.assert_close(head(read), scale.mean + scale.deviation * before, rtol=1e-12, atol=0)


def test_nothing_changes_where_labels_are_not_numbers():
    train, head = rows([0, 1], [0, 1]), nn.Sequential(nn.Linear(5, 2))
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    scale = Scale.of(CLASSES, train)
    assert scale.standardized(train) == train
    scale.fold(head)
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())
