"""The description of a checkpoint, read without torch."""

from dataclasses import field
from pathlib import Path
from typing import Any

from plm_core.config import UserError, from_json, section

FORMAT = 1
CONFIG_FILE = "config.json"
HEAD = "the head for "
"""The prefix of the names of parts that predict."""


@section
class Lineage:
    """What a pretraining run read, by digest: enough to tell whether the present files are the same."""

    tokens_sha256: str
    """The identity of the training split's token store (``TokenStore.digest``)."""
    parameters_sha256: str
    """``plm_core.config.digest`` of the section of ``params.yaml``."""
    passed: list[list[int]] = field(default_factory=list)
    """Pairs of a step (from 0) and the total number of batches that rollbacks had skipped from that step on."""
    ancestor: str | None = None
    """The digest of the checkpoint that it carried on from; null if it began anew."""
    nights: int = 0
    """How many runs have carried on since one began anew."""

    def batch(self, step: int) -> int:
        """The data index (from 0) of the batch that a step (from 0) read."""
        return step + max((more for begin, more in self.passed if step >= begin), default=0)


@section
class PublishedModel:
    """The published model that a checkpoint is or started from: what its folder holds besides weights."""

    source: str
    """Its address with a revision or version, such as ``hf://owner/name@commit``; empty for a folder."""
    config: dict[str, Any]
    """Its ``config.json``."""
    files: dict[str, str]
    """Its other text files by name, for exporting the model again."""
    tensors: dict[str, list[str]]
    """The file and type of each of its weights, by name."""
    lacking: list[str] = field(default_factory=list)
    """The parts of our model that it lacks and that were therefore drawn at random."""


@section
class CheckpointConfig:
    """``config.json``."""

    format: int
    """The version of this layout."""
    architecture: str
    """The name in ``MODELS``."""
    objective: str
    """The name in ``OBJECTIVES`` of the objective it was trained with."""
    model: dict[str, Any]
    """The architecture's configuration."""
    tokenizer_sha256: str
    """The digest of the tokenizer's file."""
    step: int
    """The step that these weights come from: the best on the validation split."""
    valid_nats: float
    """Validation loss at that step, in nats per prediction (with next-sentence prediction, the sum of both means)."""
    head: dict[str, Any] | None = None
    """What a fine-tuned model has learned: a ``plm_core.finetuning.task_model.LearnedTask``; null for a pretrained
    model."""
    lineage: Lineage | None = None
    """What its pretraining run read; null if that is not known."""
    published: PublishedModel | None = None
    """The published model it started from; null for one that started from random weights."""

    @property
    def predicts(self) -> bool:
        """Whether its predictions were learned: False for a published model as it is, whose head was drawn at
        random."""
        drawn = self.published.lacking if self.published and self.step == 0 else []
        return not any(part.startswith(HEAD) for part in drawn)


def read_description(folder: Path) -> CheckpointConfig:
    """Read the ``config.json`` of a checkpoint, without verifying its checksum.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    config = from_json(CheckpointConfig, folder / CONFIG_FILE)
    if config.format != FORMAT:
        problem = f"{folder / CONFIG_FILE}.format: found {config.format}; expected {FORMAT}"
        raise UserError(f"{problem}: use the version that wrote it, or train the model again")
    return config
