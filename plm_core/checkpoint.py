"""The checkpoint: a trained model as a product, loadable without the pipeline. Written by pretrain and finetune.

A folder with ``model.safetensors``, ``config.json``, the tokenizer's file and ``SHA256SUMS``; no pickle. To use one:

    from plm_core import checkpoint
    loaded = checkpoint.load(Path("artifacts/models/gpt"))
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from plm_core.config import UserError, from_json, section
from plm_core.files import CHECKSUMS, atomic_folder, sha256_file, verify_checksums
from plm_core.sections.models import MODELS, shape
from plm_core.text.tokenizer import Tokenizer
from plm_core.text.tokenizers import open_tokenizer

FORMAT = 1
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


@section
class Lineage:
    """What a pretraining read, by digest: enough to say whether what lies there now is the same."""

    tokens_sha256: str
    """The identity of the training split's token store (``TokenStore.digest``)."""
    parameters_sha256: str
    """``plm_core.config.digest`` of the section of ``params.yaml``."""
    passed: list[list[int]] = field(default_factory=list)
    """From which step (from 0) on how many batches a rollback had passed over, in all."""

    def batch(self, step: int) -> int:
        """The step (from 0) of the data that a step (from 0) read."""
        return step + max((more for begin, more in self.passed if step >= begin), default=0)


@section
class CheckpointConfig:
    """``config.json``."""

    format: int
    """The version of this layout."""
    architecture: str
    """The name in ``MODELS``."""
    objective: str
    """The name in ``OBJECTIVES`` that it was trained by."""
    model: dict[str, Any]
    """The architecture's configuration."""
    tokenizer_sha256: str
    """The digest of the tokenizer's file."""
    step: int
    """The step whose weights these are: the best by validation."""
    valid_nats: float
    """Validation loss at that step, in nats a prediction (with next-sentence prediction, the sum of both means)."""
    head: dict[str, Any] | None = None
    """What a fine-tuned model has on top: its task and labels; null for a pretrained model."""
    lineage: Lineage | None = None
    """What its pretraining read; null where that is not known."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    model: Any
    """The model, in evaluation mode on the asked device."""
    tokenizer: Tokenizer
    """The tokenizer it was trained with."""
    config: CheckpointConfig
    """What the checkpoint says of itself."""
    digest: str
    """The sha256 of its ``SHA256SUMS``: the identity of all its bytes."""
    extra: dict[str, torch.Tensor]
    """Weights beyond the architecture's own (a fine-tuned head), by name."""


def build(architecture: str, model: dict[str, Any], where: str) -> nn.Module:
    """A freshly initialised model; for the arguments see ``shape``."""
    config = shape(architecture, model, where)
    return MODELS[architecture].model(config)


def save(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    config: CheckpointConfig,
    extra: dict[str, torch.Tensor] | None = None,
) -> str:
    """Write a checkpoint folder of a model's ``state_dict`` whole or not at all, and return its digest."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_folder(folder) as temporary:
        save_file(tensors | (extra or {}), temporary / WEIGHTS_FILE)
        (temporary / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=2, sort_keys=True) + "\n")
        (temporary / tokenizer.file).write_bytes(tokenizer.data)
    return sha256_file(folder / CHECKSUMS)


def describe(folder: Path) -> CheckpointConfig:
    """Verify a checkpoint and read what it says of itself, without its weights.

    Raises:
        UserError: a file is missing or damaged, or the checkpoint is of another format.
    """
    verify_checksums(folder)
    config = from_json(CheckpointConfig, folder / CONFIG_FILE)
    if config.format != FORMAT:
        found = f"{folder / CONFIG_FILE}.format: found {config.format}; expected {FORMAT}"
        raise UserError(f"{found}: use the version that wrote it, or train the model again")
    return config


def _require_sizes(config: CheckpointConfig, folder: Path) -> None:
    """Raise RuntimeError unless the model has the shapes of the weights, before either takes memory."""
    with safe_open(folder / WEIGHTS_FILE, "pt") as file:
        found = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 no mapping
    where = str(folder / CONFIG_FILE)
    if (layers := shape(config.architecture, config.model, where).layers) > len(found):
        raise RuntimeError(f"{layers} layers, and {len(found)} tensors")
    with torch.device("meta"):
        expected = build(config.architecture, config.model, where).state_dict()
    for name, tensor in expected.items():
        if found.get(name) != list(tensor.shape):
            raise RuntimeError(f"{name} has the shape {found.get(name)}; expected {list(tensor.shape)}")


def load(folder: Path, device: torch.device | str = "cpu") -> Loaded:
    """Read, verify and build a checkpoint.

    Raises:
        UserError: a file is missing or damaged, of another format, or its weights do not fit its configuration or are
            not finite.
    """
    config = describe(folder)
    tokenizer = open_tokenizer(folder)
    if tokenizer.sha256 != config.tokenizer_sha256:
        raise UserError(f"{tokenizer.path}: is not the tokenizer that {CONFIG_FILE} names")
    try:
        _require_sizes(config, folder)
        model = build(config.architecture, config.model, str(folder / CONFIG_FILE))
        tensors = load_file(folder / WEIGHTS_FILE)
        own = {name: tensors.pop(name) for name in model.state_dict()}
        model.load_state_dict(own)
    # Of sizes beyond 64 bits torch tells by one of the last four, on many lines.
    except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder / WEIGHTS_FILE}: does not fit {CONFIG_FILE} ({reason})") from error
    for name, tensor in (own | tensors).items():
        if not tensor.isfinite().all():
            raise UserError(f"{folder / WEIGHTS_FILE}: {name} holds numbers that are not finite; train the model again")
    return Loaded(model.to(device).eval(), tokenizer, config, sha256_file(folder / CHECKSUMS), tensors)
