"""Exports checkpoints as folders that transformers loads, and imports such folders; a round trip changes no bit."""

import contextlib
import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from plm_core import checkpoint
from plm_core.config import UserError, from_dict, join_names, section
from plm_core.configs.architectures import differing_sizes, shape
from plm_core.configs.checkpoint_description import PublishedModel
from plm_core.evaluation.likelihood import named
from plm_core.finetuning.input_formats import input_format_of
from plm_core.interchange import tokenizer_files
from plm_core.interchange.architecture_tables import FAMILIES, PUBLISHED, family_of
from plm_core.interchange.tokenizer_files import published_tokenizer, to_our_rows, to_their_rows
from plm_core.interchange.weight_mapping import Family
from plm_core.objectives import OBJECTIVES
from plm_core.shared.files import atomic_folder
from plm_core.templates import render
from plm_core.text.published_tokenizer import Published
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import CLS, JSON_FILE, MODEL_FILE, Tokenizer

LARGEST = 1 << 20
"""The most bytes of a text file beside the weights that is kept; larger ones are forms of the vocabulary."""
OWN = "plm_checkpoint"
"""The key of their configuration under which an ``Origin`` is kept."""


@section
class Origin:
    """What a checkpoint records about its training that transformers has no key for; 0 if it is not known."""

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

    An encoder that was fine-tuned for search can also be loaded by sentence-transformers.

    Raises:
        UserError: the checkpoint is damaged, fine-tuned on something else or has no counterpart in transformers, or
            ``target`` is not empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is not empty; expected an empty or a new folder")
    loaded = checkpoint.load(checkpoint_folder)
    config = loaded.config

    # Only what one of their classes computes.
    if config.head is not None and config.head.get("pooling") is None:
        raise UserError(f"{checkpoint_folder}: is a fine-tuned model; expected a pretrained one, or one for search")
    if config.head is not None and input_format_of(config.objective).single[0][0] != CLS:
        raise UserError(f"{checkpoint_folder}: is a {config.objective} model for search; expected a masked one")
    if config.published is not None and "model_type" in config.published.config:
        _export_published(loaded, config.published, target)
        return
    sizes = asdict(loaded.model.config)
    family = family_of(config.architecture, sizes)
    if family is None:
        raise UserError(
            f"{checkpoint_folder}: the architecture {config.architecture} cannot be exported to transformers; "
            f"expected one of {', '.join(FAMILIES)}"
        )
    if not their_class_fits(config.objective, family):
        raise UserError(
            f"{checkpoint_folder}: is {config.architecture} trained with the {config.objective} objective, which has "
            f"no counterpart in transformers; expected the {family.objective} objective, as {family.model_class}"
        )
    back = shape(config.architecture, family.our_config(family.their_config(sizes), "config.json"), "model")
    if names := differing_sizes(loaded.model.config, back):
        raise UserError(f"{checkpoint_folder}: has {join_names(names)}, which a {family.model_class} cannot have")

    if isinstance(text := loaded.tokenizer, Published):  # trained from scratch with a published tokenizer
        pieces = [None if token is None else text.library.piece(token) for token in text.special]
        settings = json.dumps(tokenizer_files.tokenizer_config(family, sizes["context"], pieces), indent=2)
        theirs = family.their_config(sizes | {"vocab_size": len(text.ours)}) | {"dtype": "float32"}
        _export_published(loaded, PublishedModel("", theirs, {"tokenizer_config.json": settings}, {}), target)
        return

    # The folder. What their configuration has no key for is kept beside it, for the way back.
    weights = family.to_theirs(loaded.model.state_dict(), sizes)
    likelihood = OBJECTIVES[config.objective].likelihood
    beyond = {name: value for name, value in sizes.items() if name not in {size.ours for size in family.sizes}}
    origin = asdict(Origin(config.step, config.valid_nats, config.lineage, config.objective, beyond))
    ids = getattr(loaded.model.config, "rows", sizes["vocab_size"])
    theirs = family.their_config(sizes | {"vocab_size": ids}) | {"dtype": "float32", OWN: origin}
    sentinels = ids - loaded.tokenizer.vocab_size
    with atomic_folder(target, checksums=False) as folder:
        save_file(weights, folder / checkpoint.WEIGHTS_FILE, metadata={"format": "pt"})
        _write(folder / checkpoint.CONFIG_FILE, theirs)
        _write(folder / JSON_FILE, tokenizer_files.tokenizer_json(loaded.tokenizer, family, sentinels))
        _write(folder / "tokenizer_config.json", tokenizer_files.tokenizer_config(family, sizes["context"]))
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
            tokenizer=tokenizer_files.DESCRIBED[loaded.tokenizer.kind],
            deviations=tokenizer_files.deviations(loaded.tokenizer),
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
        _write_pooling(folder, loaded)


def import_hf(source: Path, target: Path, address: str = "") -> str:
    """Write a folder of transformers as a checkpoint that names its ``address``, and return the checkpoint's digest.

    If the folder does not say how it was trained, the checkpoint names the objective that the folder's class is for,
    with a step and a loss of 0.

    Raises:
        UserError: the folder lacks a file, its files do not fit each other, or its model is not supported.
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
    family = PUBLISHED.get(str(theirs.get("model_type")))
    if family is None:
        raise UserError(
            f"{place}.model_type: found {theirs.get('model_type')!r}; expected one of {', '.join(PUBLISHED)}"
        )
    if "auto_map" in theirs:
        raise UserError(f"{place}.auto_map: needs code from the folder; expected a model that is supported here")
    sizes = family.our_config(theirs, str(place))
    text = _own_tokenizer(source, family, theirs) or published_tokenizer(source, family, theirs, sizes["vocab_size"])
    origin = from_dict(Origin, theirs.get(OWN, {}), f"{place}.{OWN}")
    if isinstance(text, Published):
        if family.sentinel:
            sizes |= _sentinels(text, family.sentinel)
    else:
        beyond = sizes["vocab_size"] - text.vocab_size
        sentinels = origin.model.get("sentinels", beyond if family.sentinel and beyond > 0 else 0)
        if beyond != sentinels:
            ids = text.vocab_size + sentinels
            raise UserError(f"{place}.vocab_size: found {sizes['vocab_size']}; expected {ids}, as {text.path.name}")
        sizes |= {"sentinels": sentinels} if family.sentinel else {}
    sizes["vocab_size"] = text.vocab_size
    objective = origin.objective or family.objective
    with torch.device("meta"):
        model: Any = checkpoint.build(family.architecture, origin.model | sizes, str(place))

    # Their weights, from as many files as there are, in float32; theirs and ours are in memory at once.
    parameters = sum(tensor.numel() for tensor in model.parameters())
    if (needed := 8 * parameters) > (room := psutil.virtual_memory().total):
        raise UserError(
            f"{source}: {parameters / 1e9:.1f} billion weights take {needed / 2**30:.0f} GiB; this machine has "
            f"{room / 2**30:.0f} GiB"
        )
    given: dict[str, Tensor] = {}
    places: dict[str, list[str]] = {}
    for file in sorted(source.glob("model*.safetensors")):
        try:
            part = load_file(file)
        except SafetensorError as error:
            raise UserError(f"{file}: not a safetensors file ({error})") from error
        places |= {name: [file.name, str(tensor.dtype).removeprefix("torch.")] for name, tensor in part.items()}
        given |= {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in part.items()}
    if not given:
        pickles = join_names(sorted(path.name for path in source.glob("*.bin")))
        instead = f" ({pickles} could run code when read, so it is not read)" if pickles else ""
        raise UserError(f"{source / checkpoint.WEIGHTS_FILE}: missing; expected weights as safetensors{instead}")
    weights = family.to_ours(given, vars(model.config), str(source))
    lacking = family.lacking(weights)
    if isinstance(text, Published):
        weights = to_our_rows(weights, text)
    if lacking:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            weights = checkpoint.build(family.architecture, vars(model.config), str(place)).state_dict() | weights
    for name, own_weight in model.state_dict().items():
        shape, expected = (tuple(weight.shape) for weight in (weights[name], own_weight))
        if shape != expected:
            raise UserError(f"{source}: the weights of {name} have shape {shape}; expected {expected} by config.json")
        if not weights[name].is_floating_point() or not weights[name].isfinite().all():
            raise UserError(f"{source}: the weights of {name} are not all finite numbers")
    if not their_class_fits(objective, family):
        raise UserError(
            f"{place}.{OWN}.objective: found {objective!r}; expected {family.objective}, or one that builds on it"
        )
    published = None
    if isinstance(text, Published):
        published = PublishedModel(address, theirs, _texts(source, text.name), places, lacking)
    elif lacking:
        raise UserError(f"{source}: lacks {', '.join(lacking)}; expected the weights of a {family.model_class}")
    facts = vars(origin) | {"objective": objective, "model": asdict(model.config), "published": published}
    config = checkpoint.CheckpointConfig(checkpoint.FORMAT, family.architecture, tokenizer_sha256=text.sha256, **facts)
    return checkpoint.save(target, {name: weights[name] for name in model.state_dict()}, text, config)


def _sentinels(text: Published, first: str) -> dict[str, int]:
    """The sizes of a model whose published tokenizer has sentinels, of which ``first`` is the first."""
    ids = [token for n in range(1000) if (token := text.library.find(first.replace("0", str(n)))) is not None]
    if not ids:
        raise UserError(f"{text.path}: has no {first}; expected a tokenizer with sentinels")
    ours = [int(text.ours[token]) for token in ids]
    if ours != [*range(ours[0], ours[0] - len(ours), -1)]:
        raise UserError(f"{text.path}: the ids of the sentinels {first} and further ones do not decrease one by one")
    return {"sentinels": len(ours), "first_sentinel": ours[0]}


def _own_tokenizer(source: Path, family: Family, theirs: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer of a folder that was exported from here; None if it is another one."""
    own = source / MODEL_FILE
    try:
        return open_tokenizer(own) if own.is_file() else tokenizer_files.without_frame(source / JSON_FILE, family)
    except UserError:
        if OWN in theirs:
            raise
    return None


def _texts(source: Path, tokenizer_file: str) -> dict[str, str]:
    """The text files beside weights and configuration, without other forms of the tokenizer."""
    left_out = {tokenizer_file, checkpoint.CONFIG_FILE, "vocab.json", "merges.txt"}
    texts = {}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.suffix in (".json", ".txt", ".md", ".jinja") and name not in left_out and path.stat().st_size < LARGEST:
            with contextlib.suppress(UnicodeDecodeError):
                texts[name] = path.read_bytes().decode()
    return texts


def _export_published(loaded: checkpoint.Loaded, published: PublishedModel, target: Path) -> None:
    """Write a model that began as a published one as a folder of its kind: the same files, if it is as published.

    A part that was missing is written if the model was trained. Weights have the published precision if that loses
    nothing, and otherwise float32.
    """
    text = loaded.tokenizer
    assert isinstance(text, Published)
    family = PUBLISHED[published.config["model_type"]]
    weights = to_their_rows(loaded.model.state_dict(), text)
    tensors = family.to_theirs(weights, asdict(loaded.model.config))
    names = family.in_full(published.tensors)
    tied = {name: tensors[other] for name, other in family.tied.items() if name in names}
    trained = loaded.config.step > 0 and loaded.config.head is None  # a search reads none of these parts
    tensors = {name: tensor for name, tensor in (tied | tensors).items() if trained or name in names}
    kinds = {name: getattr(torch, published.tensors[names[name]][1]) for name in tensors if name in names}
    exact = all(tensors[name].to(kind).float().equal(tensors[name]) for name, kind in kinds.items())
    files: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        file = published.tensors[names[name]][0] if name in names else checkpoint.WEIGHTS_FILE
        files.setdefault(file, {})[names.get(name, name)] = tensor.to(kinds.get(name)) if exact else tensor
    # What their class computes itself, and older folders hold: positions, and causal masks.
    config = published.config
    for name, (file, kind) in published.tensors.items():
        if name.endswith("embeddings.position_ids"):
            buffer = torch.arange(config["max_position_embeddings"])[None]
        elif name.endswith(".attn.bias"):
            buffer = torch.ones(2 * [config["n_positions"]]).tril()[None, None]
        else:
            continue
        files.setdefault(file, {})[name] = buffer.to(getattr(torch, kind))
    # Their configuration, with the sizes that training may change, such as a longer context.
    before = family.their_config(family.our_config(config, checkpoint.CONFIG_FILE))
    after = family.their_config(asdict(loaded.model.config) | {"vocab_size": len(text.ours)})
    config = config | {key: value for key, value in after.items() if before[key] != value}
    if published.lacking and trained:
        config = config | {"architectures": [family.model_class]}
    if not exact:
        config = config | {"dtype": "float32", "torch_dtype": "float32"}
    with atomic_folder(target, checksums=False) as folder:
        for file, part in files.items():
            save_file(
                {name: tensor.contiguous().clone() for name, tensor in part.items()}, folder / file, {"format": "pt"}
            )
        for name, content in published.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode())
        (folder / text.name).write_bytes(text.content)
        _write(folder / checkpoint.CONFIG_FILE, config)
        _write_pooling(folder, loaded)


def _write_pooling(folder: Path, loaded: checkpoint.Loaded) -> None:
    """For a model that was fine-tuned to search: how sentence-transformers makes a vector from the states."""
    if loaded.config.head is None:
        return
    modules = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    _write(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(modules.items())
        ],
    )
    sizes = loaded.model.config
    (folder / modules["Pooling"]).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": sizes.width, "pooling_mode_mean_tokens": True}
    _write(folder / modules["Pooling"] / "config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": sizes.context, "do_lower_case": False})


def their_class_fits(objective: str, family: Family) -> bool:
    """Whether their class computes a model of this objective: the class is for this objective, or the objective builds
    on that one, as hybrid does on causal."""
    return objective in OBJECTIVES and issubclass(OBJECTIVES[objective], OBJECTIVES[family.objective])


def _write(path: Path, content: dict[str, Any] | list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
