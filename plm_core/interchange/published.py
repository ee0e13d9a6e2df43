"""The tokenizer of a published folder, and its rows of the vocabulary in the order of this project.

The folder's own library encodes texts (``plm_core.text.published``); only its ids are permuted, and so are the rows of
embeddings and output layer. A special token that the vocabulary lacks gets the mean of all rows: its logit is the mean
of all logits, so that with V tokens it takes at most 1/V of the probability, and nearly always far less.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plm_core.config import UserError
from plm_core.interchange.family import Family
from plm_core.text.hf_tokenizers import parsed
from plm_core.text.published import Published, of_merges, of_words, opened, wrapped
from plm_core.text.tokenizer import JSON_FILE, PUBLISHED_FILE

ROLES = ("pad", "unk", "bos", "eos", "mask", "cls", "sep")
"""Their names for the special tokens of ``special.PIECES``."""
USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "eos": ("</s>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
}
"""Their usual pieces, for a folder that does not name them."""
READ = {
    "causal": ("eos", "unk", "pad"),
    "masked": ("mask", "cls", "sep", "unk", "pad"),
    "replaced": ("mask", "cls", "sep", "unk", "pad"),
    "permutation": ("eos", "bos", "mask", "cls", "sep", "unk", "pad"),
}
"""The special tokens that models of an objective have read in pretraining; the others are new to them."""
BETWEEN_DOCUMENTS = "<|endoftext|>"
"""The piece between documents of decoders whose own marks are those of a conversation."""
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
VOCABULARY = ("tokens.weight", "bias", "unembed.weight")
"""Our weights that have a row for each token."""


def published_tokenizer(source: Path, family: Family, theirs: Mapping[str, Any], rows: int) -> Published:
    """The tokenizer of a folder of ``family`` with configuration ``theirs`` and ``rows`` embeddings.

    Raises:
        UserError: there is none, it cannot be read, it has more pieces than there are rows, or it lacks a special
            token without which the model reads nothing.
    """
    name, content = _content(source)
    path = source / name
    facts = {**_json(source / "special_tokens_map.json"), **_json(source / "tokenizer_config.json")}
    try:
        library = opened(name, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    frame = json.dumps(json.loads(content).get("post_processor")) if name == JSON_FILE else ""
    if library.highest >= rows:
        raise UserError(
            f"{path}: has the id {library.highest}, but config.json has {rows} embeddings; expected one folder's"
        )

    # What each role is called, and its id.
    ids: dict[str, int | None] = {}
    for role in ROLES:
        given = facts.get(f"{role}_token")
        pieces = [given["content"] if isinstance(given, dict) else given] if given else USUAL.get(role, ())
        ids[role] = next((token for piece in pieces if (token := library.find(str(piece))) is not None), None)
    for role in ("bos", "eos", "pad"):
        if ids[role] is None and isinstance(token := theirs.get(f"{role}_token_id"), int) and 0 <= token < rows:
            ids[role] = token
    if family.objective == "causal":
        # A document begins with ours, as with theirs.
        begins = ids["bos"] is not None and (facts.get("add_bos_token") or str(facts.get("bos_token")) in frame)
        between = library.find(BETWEEN_DOCUMENTS)
        ids["eos"] = ids["bos"] if begins else ids["eos"] if between is None else between

    # Where one piece has two roles, it has the first in this list.
    given_to: dict[str, int] = {}
    for role in READ[family.objective]:
        if ids[role] not in (None, *given_to.values()):
            given_to[role] = int(str(ids[role]))
    for role in set(READ[family.objective]) - {"pad", "unk", "bos"}:
        if role not in given_to:
            raise UserError(f"{path}: has no {role}_token; expected one, as in every {family.model_class}")
    special = [given_to.get(role) for role in ROLES]
    return Published(source / PUBLISHED_FILE, wrapped(name, content, special, rows))


def ours_of(weights: Mapping[str, Tensor], tokenizer: Published) -> dict[str, Tensor]:
    """Our weights with the rows of the vocabulary in our order, and new ones."""
    index = torch.from_numpy(tokenizer.theirs)
    new = index < 0

    def permuted(tensor: Tensor) -> Tensor:
        rows = tensor[index.clamp(min=0)]
        rows[new] = tensor.mean(0)
        return rows

    return {name: permuted(tensor) if name in VOCABULARY else tensor for name, tensor in weights.items()}


def theirs_of(weights: Mapping[str, Tensor], tokenizer: Published) -> dict[str, Tensor]:
    """The way back: rows in their order, and none that are new."""
    index = torch.from_numpy(tokenizer.ours.astype("int64"))
    return {name: tensor[index] if name in VOCABULARY else tensor for name, tensor in weights.items()}


def _content(source: Path) -> tuple[str, bytes]:
    """The name and the content of the tokenizer's file; older folders' vocabularies as the library would write them."""
    if (path := source / JSON_FILE).is_file():
        parsed(path, path.read_bytes())
        return JSON_FILE, path.read_bytes()
    for name in SENTENCEPIECE:
        if (source / name).is_file():
            return name, (source / name).read_bytes()
    config = _json(source / "tokenizer_config.json")
    if (path := source / "vocab.txt").is_file():
        return JSON_FILE, of_words(path, config)
    if (path := source / "vocab.json").is_file():
        return JSON_FILE, of_merges(path, source / "merges.txt", config)
    expected = ", ".join((JSON_FILE, *SENTENCEPIECE, "vocab.txt", "vocab.json with merges.txt"))
    raise UserError(f"{source}: has no tokenizer; expected {expected}")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    return content if isinstance(content, dict) else {}
