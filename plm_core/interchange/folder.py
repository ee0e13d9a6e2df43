"""Checkpoints as folders that transformers loads, and such folders as checkpoints: the same ones, bit for bit."""

import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from plm_core import checkpoint
from plm_core.config import UserError, from_dict, section
from plm_core.evaluation.likelihood import named
from plm_core.files import atomic_folder
from plm_core.interchange import tokenizer
from plm_core.interchange.families import FAMILIES
from plm_core.interchange.family import Family
from plm_core.objectives import OBJECTIVES
from plm_core.templates import render
from plm_core.text.tokenizer import JSON_FILE, MODEL_FILE
from plm_core.text.tokenizers import open_tokenizer

OWN = "plm_checkpoint"
"""The key of their configuration under which an ``Origin`` is kept."""


@section
class Origin:
    """What a checkpoint records about its training and transformers has no key for; 0 if it is not known."""

    step: int = 0
    """The step that these weights are from."""
    valid_nats: float = 0.0
    """Validation loss at that step, in nats per prediction."""
    lineage: checkpoint.Lineage | None = None
    """What its pretraining run read."""
    objective: str | None = None
    """The name in ``OBJECTIVES`` of the objective it was trained with; None for the one that their class is for."""
    model: dict[str, Any] = field(default_factory=dict)
    """The keys of its configuration that are not in the table of sizes."""


def export_hf(checkpoint_folder: Path, target: Path) -> None:
    """Write a checkpoint as a folder that transformers' automatic classes load without a network.

    Raises:
        UserError: the checkpoint is damaged, fine-tuned or has no counterpart in transformers, or ``target`` is not
            empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is not empty; expected an empty or a new folder")
    loaded = checkpoint.load(checkpoint_folder)
    config = loaded.config

    # Only what one of their classes computes.
    if config.head is not None:
        raise UserError(f"{checkpoint_folder}: is a fine-tuned model; expected a pretrained one")
    family = FAMILIES.get(config.architecture)
    if family is None:
        raise UserError(
            f"{checkpoint_folder}: the architecture {config.architecture} cannot be exported to transformers; "
            f"expected one of {', '.join(FAMILIES)}"
        )
    if not _computed(config.objective, family):
        raise UserError(
            f"{checkpoint_folder}: is {config.architecture} trained with the {config.objective} objective, which has "
            f"no counterpart in transformers; expected the {family.objective} objective, as {family.model_class}"
        )

    # The folder. What their configuration has no key for is kept beside it, for the way back.
    sizes = asdict(loaded.model.config)
    weights = family.to_theirs(loaded.model.state_dict(), sizes["layers"], sizes["heads"])
    likelihood = OBJECTIVES[config.objective].likelihood
    beyond = {name: value for name, value in sizes.items() if name not in {size.ours for size in family.sizes}}
    origin = asdict(Origin(config.step, config.valid_nats, config.lineage, config.objective, beyond))
    with atomic_folder(target, checksums=False) as folder:
        save_file(weights, folder / checkpoint.WEIGHTS_FILE, metadata={"format": "pt"})
        _write(folder / checkpoint.CONFIG_FILE, family.their_config(sizes) | {"dtype": "float32", OWN: origin})
        _write(folder / JSON_FILE, tokenizer.tokenizer_json(loaded.tokenizer, family))
        _write(folder / "tokenizer_config.json", tokenizer.tokenizer_config(family, sizes["context"]))
        if loaded.tokenizer.file == MODEL_FILE:
            (folder / MODEL_FILE).write_bytes(loaded.tokenizer.data)
        card = render(
            "plm_core/interchange/card.md.j2",
            family=family,
            loaded=loaded,
            sizes=sizes,
            parameters=sum(p.numel() for p in loaded.model.parameters()),
            quantity=named(likelihood.name, loaded.tokenizer),
            meaning=likelihood.meaning,
            tokenizer=tokenizer.DESCRIBED[loaded.tokenizer.kind],
            deviations=tokenizer.deviations(loaded.tokenizer),
        )
        (folder / "README.md").write_text(card, encoding="utf-8")


def import_hf(source: Path, target: Path) -> str:
    """Write a folder of transformers as a checkpoint, and return the checkpoint's digest.

    If the folder does not say how it was trained, the checkpoint names the objective that the folder's class is for,
    with a step and a loss of 0.

    Raises:
        UserError: the folder lacks a file or a tokenizer of this project, or its model is not supported.
    """
    # Their configuration and tokenizer, as ours.
    place = source / checkpoint.CONFIG_FILE
    try:
        theirs = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{place}: missing; expected a folder of transformers") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error})") from error
    if not isinstance(theirs, dict):
        raise UserError(f"{place}: found a {type(theirs).__name__}; expected an object")
    families = {family.model_type: family for family in FAMILIES.values()}
    family = families.get(str(theirs.get("model_type")))
    if family is None:
        raise UserError(
            f"{place}.model_type: found {theirs.get('model_type')!r}; expected one of {', '.join(families)}"
        )
    own = source / MODEL_FILE
    text = open_tokenizer(own) if own.is_file() else tokenizer.without_frame(source / JSON_FILE, family)
    sizes = family.our_config(theirs, str(place))
    if sizes["vocab_size"] != text.vocab_size:
        raise UserError(
            f"{place}.vocab_size: found {sizes['vocab_size']}; expected {text.vocab_size}, as {text.path.name}"
        )
    origin = from_dict(Origin, theirs.get(OWN, {}), f"{place}.{OWN}")
    objective = origin.objective or family.objective
    model: Any = checkpoint.build(family.architecture, origin.model | sizes, str(place))

    # Their weights, from as many files as there are, in float32.
    given: dict[str, Tensor] = {}
    for file in sorted(source.glob("model*.safetensors")):
        try:
            given |= load_file(file)
        except SafetensorError as error:
            raise UserError(f"{file}: not a safetensors file ({error})") from error
    if not given:
        raise UserError(f"{source / checkpoint.WEIGHTS_FILE}: missing; expected weights as safetensors")
    given = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in given.items()}
    weights = family.to_ours(given, sizes["layers"], str(source))
    for name, own_weight in model.state_dict().items():
        shape, expected = (tuple(weight.shape) for weight in (weights[name], own_weight))
        if shape != expected:
            raise UserError(f"{source}: the weights of {name} have shape {shape}; expected {expected} by config.json")
        if not weights[name].is_floating_point() or not weights[name].isfinite().all():
            raise UserError(f"{source}: the weights of {name} are not all finite numbers")
    model.load_state_dict(weights)
    if not _computed(objective, family):
        raise UserError(
            f"{place}.{OWN}.objective: found {objective!r}; expected {family.objective}, or one that builds on it"
        )
    facts = vars(origin) | {"objective": objective, "model": asdict(model.config)}
    config = checkpoint.CheckpointConfig(checkpoint.FORMAT, family.architecture, tokenizer_sha256=text.sha256, **facts)
    return checkpoint.save(target, model.state_dict(), text, config)


def _computed(objective: str, family: Family) -> bool:
    """Whether their class computes a model of this objective: the class is for this objective, or the objective builds
    on that one, as hybrid does on causal."""
    return objective in OBJECTIVES and issubclass(OBJECTIVES[objective], OBJECTIVES[family.objective])


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
