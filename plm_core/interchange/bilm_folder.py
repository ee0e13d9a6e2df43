"""Imports the biLM of an ELMo as allenai/bilm-tf writes it: weights in HDF5, options in JSON, a vocabulary of words.

The weights lack the softmax, which is drawn at random. A word that the vocabulary lacks is ``<unk>`` here, while the
released code reads its characters.

Shapes: E the size of a character's embedding, F filters, P the size of one direction's state, C cells.
"""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.configs.architectures import ELMoConfig
from plm_core.configs.checkpoint_description import HEAD, PublishedModel
from plm_core.models.elmo import SENTENCE_BEGINS, spelled
from plm_core.text.published_tokenizer import Published, json_from_words, wrap_published
from plm_core.text.tokenizers import BOS, EOS, JSON_FILE, PIECES, PUBLISHED_FILE, UNK

FILES = ("*weights*.hdf5", "*options*.json", "vocab*.txt")
UNKNOWN, BEGINS, ENDS = "<UNK>", "<S>", "</S>"
CONTEXT = 128
"""Positions have no weights; a start may read more."""
LACKING = f"{HEAD}the words beside"


def is_bilm(source: Path) -> bool:
    """Whether a folder holds the weights of a biLM."""
    return source.is_dir() and any(source.glob(FILES[0]))


def import_bilm(source: Path, target: Path, address: str = "") -> str:
    """Write a folder of bilm-tf as a checkpoint that names its ``address``, and return the checkpoint's digest.

    Raises:
        UserError: a file is missing or cannot be read, the weights do not fit the options, or h5py is not installed.
    """
    weights_file, options_file, vocabulary_file = (_only(source, pattern) for pattern in FILES)
    options = _options(options_file)
    words = [word.strip() for word in vocabulary_file.read_text(encoding="utf-8").splitlines()]
    words = [word for word in words if word != "!!!MAXTERMID"]
    words += [] if UNKNOWN in words else [UNKNOWN]
    if len(set(words)) < len(words):
        twice = next(word for word, count in Counter(words).items() if count > 1)
        raise UserError(f"{vocabulary_file}: has {twice!r} twice; expected different words, one a line")
    text = _tokenizer(words, source / PUBLISHED_FILE)

    # The model, with a softmax that is drawn, and its weights under their names.
    try:
        cnn, lstm = options["char_cnn"], options["lstm"]
        sizes = {
            "vocab_size": text.vocab_size,
            "context": CONTEXT,
            "layers": lstm.get("n_layers", 1),
            "width": 2 * lstm["projection_dim"],
            "cells": lstm["dim"],
            "characters": cnn["embedding"]["dim"],
            "longest": cnn["max_characters_per_token"],
            "filters": cnn["filters"],
            "activation": cnn["activation"],
            "highways": cnn.get("n_highway") or 0,
            "cell_clip": lstm.get("cell_clip"),
            "projection_clip": lstm.get("proj_clip"),
            "residual": bool(lstm.get("use_skip_connections")),
        }
    except (KeyError, TypeError, AttributeError) as error:
        expected = "expected the options of a biLM that reads characters"
        raise UserError(f"{options_file}: lacks {error}; {expected}") from error
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = checkpoint.build("elmo", sizes, str(options_file))
    given = _tensors(weights_file)
    places = {name: [weights_file.name, str(tensor.dtype).removeprefix("torch.")] for name, tensor in given.items()}
    own = model.state_dict()
    try:
        converted = _ours(given, model.config)
        for name, tensor in converted.items():
            if tensor.shape != own[name].shape or not tensor.isfinite().all():
                shapes = f"{list(tensor.shape)}; expected finite numbers of shape {list(own[name].shape)}"
                raise UserError(f"{weights_file}: {name} is of shape {shapes} by {options_file.name}")
    except (KeyError, IndexError, RuntimeError) as error:
        raise UserError(f"{weights_file}: does not fit {options_file.name} (lacks {error})") from error
    if given:
        raise UserError(f"{weights_file}: contains {min(given)}, which {options_file.name} does not describe")
    model.load_state_dict(own | converted)

    # How tokens are spelled: the words as there, and special tokens that the vocabulary lacks by their names.
    pieces = [*PIECES, *(words[token] for token in text.theirs[len(PIECES) :])]
    pieces[UNK] = UNKNOWN
    model.spell([(piece.encode(), True) for piece in pieces], ends=[EOS])
    model.characters[BOS] = torch.tensor(spelled(SENTENCE_BEGINS, True, model.config.longest))
    published = PublishedModel(address, options, {}, places, [LACKING])
    config = checkpoint.CheckpointConfig(
        checkpoint.FORMAT, "elmo", "bidirectional", vars(model.config), text.sha256, 0, 0.0, published=published
    )
    return checkpoint.save(target, model.state_dict(), text, config)


def _only(source: Path, pattern: str) -> Path:
    paths = sorted(source.glob(pattern))
    if len(paths) != 1:
        raise UserError(f"{source / pattern}: {len(paths)} files; expected one, as bilm-tf writes it")
    return paths[0]


def _options(path: Path) -> dict[str, Any]:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(options, dict):
        raise UserError(f"{path}: found a {type(options).__name__}; expected an object")
    return options


def _tensors(path: Path) -> dict[str, Tensor]:
    """All arrays of an HDF5 file by their full names."""
    try:
        import h5py
    except ImportError as error:
        raise UserError(f"{path}: HDF5 is read by h5py; expected it, `uv pip install h5py`") from error
    tensors: dict[str, Tensor] = {}

    def keep(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            tensors[name] = torch.from_numpy(entry[...])

    try:
        with h5py.File(path, "r") as file:
            file.visititems(keep)
    except (OSError, TypeError) as error:
        raise UserError(f"{path}: not an HDF5 file of weights ({error})") from error
    return tensors


def _tokenizer(words: list[str], path: Path) -> Published:
    """Texts as words between spaces, with the ids of the vocabulary."""
    ids = {word: token for token, word in enumerate(words)}
    special = {UNK: UNKNOWN, BOS: BEGINS, EOS: ENDS}
    given = [ids.get(special.get(token, "")) for token in range(len(PIECES))]
    return Published(path, wrap_published(JSON_FILE, json_from_words(ids, UNKNOWN), given, len(words)))


def _ours(theirs: dict[str, Tensor], config: ELMoConfig) -> dict[str, Tensor]:
    """Our weights by name, from theirs, which are taken out; KeyError for one that is missing."""

    def take(name: str) -> Tensor:
        return theirs.pop(name).float()

    # Their character 0 is our 1; a matrix of theirs is [inputs, outputs], a filter [1, width, E, count].
    ours = {"words.letters.weight": F.pad(take("char_embed"), (0, 0, 1, 0))}
    for number in range(len(config.filters)):
        ours[f"words.filters.{number}.weight"] = take(f"CNN/W_cnn_{number}")[0].permute(2, 1, 0)
        ours[f"words.filters.{number}.bias"] = take(f"CNN/b_cnn_{number}")
    projected = sum(count for _, count in config.filters) != config.one_way
    layers = {"words.project": "CNN_proj/{}_proj"} if projected else {}
    for number in range(config.highways):
        layers[f"words.highways.{number}.gate"] = f"CNN_high_{number}/{{}}_carry"
        layers[f"words.highways.{number}.transform"] = f"CNN_high_{number}/{{}}_transform"
    for name, layer in layers.items():
        ours |= {f"{name}.weight": take(layer.format("W")).T, f"{name}.bias": take(layer.format("b"))}

    # Their gates are input, cell, forget, output, and 1 is added to the third: ours are in torch's order.
    def gates(matrix: Tensor) -> Tensor:
        i, g, f, o = matrix.T.chunk(4)
        return torch.cat((i, f, g, o))

    for number, direction in itertools.product(range(config.layers), (0, 1)):
        name = f"blocks.{number}.lstms.{direction}"
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
        matrix = take(f"{cell}/W_0")
        ours[f"{name}.read.weight"] = gates(matrix[: config.one_way])
        ours[f"{name}.recur.weight"] = gates(matrix[config.one_way :])
        i, g, f, o = take(f"{cell}/B").chunk(4)
        ours[f"{name}.read.bias"] = torch.cat((i, f + 1, g, o))
        if config.cells != config.one_way:
            ours[f"{name}.project.weight"] = take(f"{cell}/W_P_0").T
    return ours
