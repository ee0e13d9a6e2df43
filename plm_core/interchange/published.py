"""The tokenizer of a published folder, and its rows of the vocabulary in the order of this project.

The folder's own library encodes texts (``plm_core.text.published``); only its ids are permuted, and so are the rows of
embeddings and output layer. A special token that the vocabulary lacks gets the mean of all rows: its logit is the mean
of all logits, so that with V tokens it takes at most 1/V of the probability, and nearly always far less.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from plm_core.config import UserError
from plm_core.interchange.family import Family
from plm_core.text.hf_tokenizers import parsed
from plm_core.text.published import Published, wrapped
from plm_core.text.special import PIECES
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
    "causal": ("pad", "unk", "eos"),
    "masked": ("pad", "unk", "mask", "cls", "sep"),
    "replaced": ("pad", "unk", "mask", "cls", "sep"),
    "permutation": ROLES,
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
    if name == JSON_FILE:
        library = tokenizers.Tokenizer.from_str(content.decode())
        find, highest = library.token_to_id, max(library.get_vocab(with_added_tokens=True).values())
        frame = json.dumps(json.loads(content).get("post_processor"))
    else:
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_proto=content)
        highest, frame = len(model) - 1, ""

        def find(piece: str) -> int | None:
            token = model.piece_to_id(piece)
            return token if model.id_to_piece(token) == piece else None

    if highest >= rows:
        raise UserError(f"{path}: has the id {highest}, but config.json has {rows} embeddings; expected one folder's")

    # What each role is called, and its id.
    ids: dict[str, int | None] = {}
    for role in ROLES:
        given = facts.get(f"{role}_token")
        pieces = [given["content"] if isinstance(given, dict) else given] if given else USUAL.get(role, ())
        ids[role] = next((token for piece in pieces if (token := find(str(piece))) is not None), None)
    for role in ("bos", "eos", "pad"):
        if ids[role] is None and isinstance(token := theirs.get(f"{role}_token_id"), int) and 0 <= token < rows:
            ids[role] = token
    if family.objective == "causal":
        # A document begins with ours, as with theirs.
        begins = ids["bos"] is not None and (facts.get("add_bos_token") or str(facts.get("bos_token")) in frame)
        between = find(BETWEEN_DOCUMENTS)
        ids["eos"] = ids["bos"] if begins else ids["eos"] if between is None else between

    special: list[int | None] = []
    for role in ROLES:
        token = ids[role] if role in READ[family.objective] else None
        special.append(None if token in special else token)
    needed = {"causal": ("eos",), "permutation": ("cls", "sep")}.get(family.objective, ("mask", "cls", "sep"))
    for role in needed:
        if special[ROLES.index(role)] is None:
            raise UserError(f"{path}: has no {role}_token; expected one, as in every {family.model_class}")
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
    try:
        if (path := source / "vocab.txt").is_file():
            library = tokenizers.Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
            library.normalizer = normalizers.BertNormalizer(
                handle_chinese_chars=config.get("tokenize_chinese_chars", True),
                strip_accents=config.get("strip_accents"),
                lowercase=config.get("do_lower_case", True),
            )
            library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            library.decoder = decoders.WordPiece()
            return JSON_FILE, library.to_str().encode()
        if (path := source / "vocab.json").is_file():
            merges = str(source / "merges.txt")
            library = tokenizers.Tokenizer(models.BPE.from_file(str(path), merges))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
            library.decoder = decoders.ByteLevel()
            return JSON_FILE, library.to_str().encode()
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: not a vocabulary that the library tokenizers reads ({error})") from error
    expected = ", ".join((JSON_FILE, *SENTENCEPIECE, "vocab.txt", "vocab.json with merges.txt"))
    raise UserError(f"{source}: has no tokenizer; expected {expected}")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    return content if isinstance(content, dict) else {}


assert len(ROLES) == len(PIECES)
