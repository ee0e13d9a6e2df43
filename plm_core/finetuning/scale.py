"""The unit in which a regression is learned: standard deviations of the training examples' numbers, from their mean.

A head begins near 0 and moves in small steps, so it would not reach prices or years. Used by the finetune stage.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from plm_core.benchmarks.task import GlueTask
from plm_core.finetuning.featurize import Rows


class Scale(NamedTuple):
    """The scale of the training examples' labels, in their own unit."""

    mean: float = 0.0
    deviation: float = 1.0
    """Above 0."""

    @classmethod
    def of(cls, task: GlueTask, train: Rows) -> "Scale":
        """The scale of these examples, with a standard deviation of 1 if all labels are equal.

        For labels that are not numbers, a scale that changes nothing.
        """
        if task.kind != "regression":
            return cls()
        labels = [example.label for example in train.examples]
        return cls(float(np.mean(labels)), float(np.std(labels)) or 1.0)

    def standardized(self, rows: Rows) -> Rows:
        """The same rows, with labels in this unit; the examples keep theirs."""
        if self == Scale():
            return rows
        labels = ((rows.examples[owner].label - self.mean) / self.deviation for owner in rows.owners)
        encoded = [row._replace(label=label) for row, label in zip(rows.encoded, labels, strict=True)]
        return rows._replace(encoded=encoded)

    @torch.no_grad()
    def fold(self, head: nn.Sequential) -> None:
        """Make a head that has learned standardized labels output the numbers themselves, in place."""
        linear = head[-1]
        assert isinstance(linear, nn.Linear)
        linear.weight.mul_(self.deviation)
        linear.bias.mul_(self.deviation).add_(self.mean)
