"""The checkpoint: a trained model that loads without the pipeline. Written by pretrain and finetune.

A folder with ``model.safetensors``, ``config.json``, the tokenizer's file and ``SHA256SUMS``; no pickle. To use one:

    from plm_core import checkpoint
    loaded = checkpoint.load(Path("artifacts/models/gpt"))
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from plm_core.config import UserError
from plm_core.configs.architectures import MODELS, shape
from plm_core.configs.checkpoint_description import CONFIG_FILE as CONFIG_FILE
from plm_core.configs.checkpoint_description import FORMAT as FORMAT
from plm_core.configs.checkpoint_description import CheckpointConfig as CheckpointConfig
from plm_core.configs.checkpoint_description import Lineage as Lineage
from plm_core.configs.checkpoint_description import read_description
from plm_core.shared.files import CHECKSUMS, atomic_folder, sha256_file, verify_checksums
from plm_core.shared.paths import READ
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import Tokenizer

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    model: Any
    """The model, in evaluation mode on the requested device."""
    tokenizer: Tokenizer
    """The tokenizer it was trained with."""
    config: CheckpointConfig
    """What the checkpoint says about itself."""
    digest: str
    """The sha256 of its ``SHA256SUMS``: the identity of all its bytes."""
    extra: dict[str, torch.Tensor]
    """Additional weights by name, such as a fine-tuned head."""


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
    read: np.ndarray | None = None,
) -> str:
    """Write a model's ``state_dict`` as a checkpoint folder, atomically, and return its digest.

    ``read`` are the ``document_keys`` of what it has read, if it will be carried on from.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_folder(folder) as temporary:
        save_file(tensors | (extra or {}), temporary / WEIGHTS_FILE)
        (temporary / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=2, sort_keys=True) + "\n")
        (temporary / tokenizer.file).write_bytes(tokenizer.data)
        if read is not None:
            np.save(temporary / READ, np.sort(read))
    return sha256_file(folder / CHECKSUMS)


def describe(folder: Path) -> CheckpointConfig:
    """Verify a checkpoint and read what it says about itself, without its weights.

    Raises:
        UserError: a file is missing or damaged, or the checkpoint has another format.
    """
    verify_checksums(folder)
    return read_description(folder)


def load(folder: Path, device: torch.device | str = "cpu") -> Loaded:
    """Read, verify and build a checkpoint.

    Raises:
        UserError: a file is missing or damaged, or has another format; or the weights do not fit the configuration or
            are not finite.
    """
    config = describe(folder)
    tokenizer = open_tokenizer(folder)
    if tokenizer.sha256 != config.tokenizer_sha256:
        raise UserError(f"{tokenizer.path}: is not the tokenizer that {CONFIG_FILE} names")
    try:
        tensors = load_file(folder / WEIGHTS_FILE)
        sizes = shape(config.architecture, config.model, str(folder / CONFIG_FILE))
        if sizes.layers > len(tensors):
            raise RuntimeError(f"{sizes.layers} layers, and {len(tensors)} tensors")
        with torch.device("meta"):
            model = MODELS[config.architecture].model(sizes)
        # The model's own tensors take memory only once all shapes are known to fit.
        for name, tensor in model.state_dict().items():
            if (given := tensors[name].shape) != tensor.shape:
                raise RuntimeError(f"{name} has the shape {list(given)}; expected {list(tensor.shape)}")
        # Copied, because the library maps the file into memory, without the alignment of torch's own tensors.
        own = {name: tensors.pop(name).to(like.dtype, copy=True) for name, like in model.state_dict().items()}
        model.load_state_dict(own, assign=True)
    # For sizes beyond 64 bits torch raises one of the last four, with a message of many lines.
    except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder / WEIGHTS_FILE}: does not fit {CONFIG_FILE} ({reason})") from error
    for name, tensor in (own | tensors).items():
        if not tensor.isfinite().all():
            raise UserError(f"{folder / WEIGHTS_FILE}: {name} holds numbers that are not finite; train the model again")
    return Loaded(model.to(device).eval(), tokenizer, config, sha256_file(folder / CHECKSUMS), tensors)
