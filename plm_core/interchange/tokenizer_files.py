"""The tokenizer as the files of Hugging Face tokenizers, ``tokenizer.json`` and ``tokenizer_config.json``.

As written, they give our token ids for every text, except for ``deviations``. No text can spell a special token there
either, unless the caller sets ``split_special_tokens=False``.

When they are read, the folder's own library encodes texts (``plm_core.text.published_tokenizer``); only its ids are
permuted, and so are the rows of embeddings and output layer. A special token that the vocabulary lacks gets the mean of
all rows: its logit is the mean of all logits, so that with V tokens it takes at most 1/V of the probability, and nearly
always far less.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plm_core.config import UserError
from plm_core.corpus.normalize import WORD_BOUNDARY
from plm_core.interchange.weight_mapping import Family
from plm_core.text.hf_tokenizers import EMPTY, bpe, parse_tokenizer_json, to_bytes
from plm_core.text.published_tokenizer import (
    Published,
    json_from_merges,
    json_from_vocab_txt,
    open_library_tokenizer,
    wrap_published,
)
from plm_core.text.sentencepiece_tokenizers import SentencePiece
from plm_core.text.tokenizer_kinds import read_tokenizer
from plm_core.text.tokenizers import (
    BOS,
    BYTES_AND_SPECIALS,
    CLS,
    EOS,
    JSON_FILE,
    MASK,
    MODEL_FILE,
    PAD,
    PIECES,
    PUBLISHED_FILE,
    SEP,
    UNK,
    Tokenizer,
)

DESCRIBED = {
    "bpe": "sentencepiece BPE with every byte among its pieces",
    "unigram": "sentencepiece unigram with every byte among its pieces",
    "wordpiece": "WordPiece, which drops whitespace, and reads a word with an unknown character as `<unk>`",
    "bytelevel": "byte-level BPE with every byte among its pieces",
}
"""A description of each kind, for people."""
CONTINUED = "{{ messages | map(attribute='content') | join('\\n') }}"
"""A conversation for servers that need a template: a pretrained model continues the texts of its messages, a line
each."""
EXPECTED = (
    f"and {MODEL_FILE} is missing; expected one of them as `plm export` writes it: no other tokenizer can be read"
)
ROLES = ("pad", "unk", "bos", "eos", "mask", "cls", "sep")
"""Their names for the special tokens of ``PIECES``."""
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
    "span_corruption": ("eos", "unk", "pad"),
}
"""The special tokens that models of an objective have read in pretraining; the others are new to them."""
BETWEEN_DOCUMENTS = "<|endoftext|>"
"""The piece between documents of decoders whose own marks are those of a conversation."""
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
VOCABULARY = ("tokens.weight", "bias", "unembed.weight")
"""Our weights that have a row for each token."""


def deviations(tokenizer: Tokenizer) -> list[str]:
    """The cases in which the exported tokenizer can give different ids from ours, for people."""
    cases = [f"A character that Unicode gained after {unicodedata.unidata_version} may be composed differently (NFC)."]
    if tokenizer.kind == "unigram":
        cases.append(
            "sentencepiece adds log probabilities in single precision, tokenizers in double: if two segmentations of a "
            "text are equally likely up to rounding, the other may be chosen, more often in longer texts."
        )
    return cases


def tokenizer_json(tokenizer: Tokenizer, family: Family, sentinels: int = 0) -> dict[str, Any]:
    """The content of ``tokenizer.json``, with so many sentinels after the tokenizer's ids."""
    further = (f"<extra_id_{sentinels - 1 - i}>" for i in range(sentinels))
    own = _of_sentencepiece(tokenizer) if isinstance(tokenizer, SentencePiece) else json.loads(tokenizer.data)
    last = [own["normalizer"]] if own["normalizer"] else []
    return own | {
        "added_tokens": [
            {"id": i, "content": piece, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, piece in (*enumerate(PIECES), *enumerate(further, tokenizer.vocab_size))
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*NORMAL_FORM, *last]},
        "post_processor": _post_processor(family),
    }


def without_frame(path: Path, family: Family) -> Tokenizer:
    """Our tokenizer from a ``tokenizer.json`` that was exported with one of the kinds of the library tokenizers.

    Raises:
        UserError: it is not one that ``tokenizer_json`` could have made.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing, {EXPECTED}")
    theirs = parse_tokenizer_json(path, path.read_bytes())
    steps = theirs.get("normalizer")
    steps = steps.get("normalizers") if isinstance(steps, dict) else None
    last = steps[len(NORMAL_FORM) :] if isinstance(steps, list) else []
    own = theirs | {"normalizer": last[0] if last else None, "added_tokens": [], "post_processor": None}
    try:
        tokenizer = read_tokenizer(path, to_bytes(own))
    except UserError as error:
        raise UserError(f"{path}: not a wordpiece or bytelevel tokenizer of this project, {EXPECTED}") from error
    sentinels = len(theirs["added_tokens"]) - len(PIECES) if family.sentinel else 0
    if tokenizer_json(tokenizer, family, sentinels) != theirs:
        raise UserError(f"{path}: encodes texts differently from a {family.architecture} of this project, {EXPECTED}")
    return tokenizer


def tokenizer_config(family: Family, context: int, pieces: Sequence[str | None] = PIECES) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``; ``pieces`` are the special tokens, None for one that is lacking."""
    bos = family.marks.get("bos_token_id", BOS)
    names = {"pad": PAD, "unk": UNK, "bos": bos, "eos": EOS, "mask": MASK, "cls": CLS, "sep": SEP}
    segments = ["token_type_ids"] if family.segmented else []
    chat = {"chat_template": CONTINUED} if family.objective == "causal" else {}
    return (
        {f"{name}_token": pieces[token] for name, token in names.items() if pieces[token]}
        | chat
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "padding_side": family.padding_side,
            "model_input_names": ["input_ids", *segments, "attention_mask"],
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
    )


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


NORMAL_FORM = [
    *(_replace(old, new) for old, new in (("\r\n", "\n"), ("\r", "\n"), ("\0", ""), (WORD_BOUNDARY, "_"))),
    {"type": "NFC"},
]
"""The steps of ``normalize``, in order."""


def divisions(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """The merges of sentencepiece: it joins neighbours whose joined piece ranks highest, so every division of a piece
    into two pieces is one, in the order of ``pieces``."""
    whole = set(pieces)
    divided = ((piece[:i], piece[i:]) for piece in pieces for i in range(1, len(piece)))
    return [parts for parts in divided if whole.issuperset(parts)]


def space_marking(prefix: bool) -> list[dict[str, Any]]:
    """How sentencepiece marks spaces; with ``prefix`` there is one before the text."""
    return [*([{"type": "Prepend", "prepend": WORD_BOUNDARY}] if prefix else []), _replace(" ", WORD_BOUNDARY)]


def pieces_json(model: dict[str, Any], split: dict[str, Any] | None = None, prefix: bool = False) -> dict[str, Any]:
    """The content of a file of the library that treats texts like sentencepiece."""
    mark = space_marking(prefix)
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoders = [_replace(WORD_BOUNDARY, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return EMPTY | {
        "normalizer": {"type": "Sequence", "normalizers": mark} if prefix else mark[0],
        "pre_tokenizer": split,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _of_sentencepiece(tokenizer: SentencePiece) -> dict[str, Any]:
    """A sentencepiece model as a file of the library, which marks spaces in the same way."""
    scores = tokenizer.scores()
    pieces = [piece for piece, _ in scores]
    learned = pieces[BYTES_AND_SPECIALS:]
    whole = set(learned)
    split = None
    if tokenizer.kind == "bpe":
        model = bpe(pieces, divisions(learned), PIECES[UNK])
    else:
        # No text can spell a special piece: it scores lower than any segmentation into characters. That is not enough
        # where one of its characters has no piece of its own; but such a character is always spelled in bytes, so that
        # splitting there changes nothing else.
        given = pieces[:BYTES_AND_SPECIALS]
        never = (max(map(len, given)) + 1) * min(score for _, score in scores) - 1
        vocab = [
            [piece, never if i < BYTES_AND_SPECIALS and piece != "\n" else score]
            for i, (piece, score) in enumerate(scores)
        ]
        model = {"type": "Unigram", "unk_id": UNK, "vocab": vocab, "byte_fallback": True}
        if alone := sorted({c for piece in given for c in piece} - whole - {"\n"}):
            pattern = {"Regex": f"[{''.join(re.escape(c) for c in alone)}]"}
            split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return pieces_json(model, split)


def _post_processor(family: Family) -> dict[str, Any]:
    """How ``tokenizer(text)`` frames one or two texts: like the rows that the model was trained on."""

    def line(parts: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        kinds = {True: "Sequence", False: "SpecialToken"}
        return [{kinds[name in "AB"]: {"id": name, "type_id": segment}} for name, segment in parts]

    special = sorted({name for name, _ in family.frame_of_two if name not in "AB"})
    return {
        "type": "TemplateProcessing",
        "single": line(family.frame),
        "pair": line(family.frame_of_two),
        "special_tokens": {name: {"id": name, "ids": [PIECES.index(name)], "tokens": [name]} for name in special},
    }


def published_tokenizer(source: Path, family: Family, theirs: Mapping[str, Any], rows: int) -> Published:
    """The tokenizer of a folder of ``family`` with configuration ``theirs`` and ``rows`` embeddings.

    Raises:
        UserError: there is none, it cannot be read, it has more pieces than there are rows, or it lacks a special
            token that such a model always reads.
    """
    name, content = _content(source)
    path = source / name
    facts = {**_json(source / "special_tokens_map.json"), **_json(source / "tokenizer_config.json")}
    try:
        library = open_library_tokenizer(name, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    frame = json.dumps(json.loads(content).get("post_processor")) if name == JSON_FILE else ""
    if library.highest >= rows:
        raise UserError(
            f"{path}: has the id {library.highest}, but config.json has {rows} embeddings; expected both of one model"
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
        # Our EOS, which begins each document, is the token that does so there.
        begins = ids["bos"] is not None and (facts.get("add_bos_token") or str(facts.get("bos_token")) in frame)
        between = library.find(BETWEEN_DOCUMENTS)
        ids["eos"] = ids["bos"] if begins else ids["eos"] if between is None else between

    # A piece with two roles gets the first in this list.
    given_to: dict[str, int] = {}
    for role in READ[family.objective]:
        if ids[role] not in (None, *given_to.values()):
            given_to[role] = int(str(ids[role]))
    for role in set(READ[family.objective]) - {"pad", "unk", "bos"}:
        if role not in given_to and not family.unmarked:
            raise UserError(f"{path}: has no {role}_token; expected one, as in every {family.model_class}")
    special = [given_to.get(role) for role in ROLES]
    return Published(source / PUBLISHED_FILE, wrap_published(name, content, special, rows))


def to_our_rows(weights: Mapping[str, Tensor], tokenizer: Published) -> dict[str, Tensor]:
    """Our weights with the rows of the vocabulary in our order, and new ones."""
    index = torch.from_numpy(tokenizer.theirs)
    new = index < 0

    def permuted(tensor: Tensor) -> Tensor:
        rows = tensor[index.clamp(min=0)]
        rows[new] = tensor.mean(0)
        return rows

    return {name: permuted(tensor) if name in VOCABULARY else tensor for name, tensor in weights.items()}


def to_their_rows(weights: Mapping[str, Tensor], tokenizer: Published) -> dict[str, Tensor]:
    """The way back: rows in their order, and none that are new."""
    index = torch.from_numpy(tokenizer.ours.astype("int64"))
    return {name: tensor[index] if name in VOCABULARY else tensor for name, tensor in weights.items()}


def _content(source: Path) -> tuple[str, bytes]:
    """The name and the content of the tokenizer's file; older folders' vocabularies as the library would write them."""
    if (path := source / JSON_FILE).is_file():
        parse_tokenizer_json(path, path.read_bytes())
        return JSON_FILE, path.read_bytes()
    for name in SENTENCEPIECE:
        if (source / name).is_file():
            return name, (source / name).read_bytes()
    config = _json(source / "tokenizer_config.json")
    if (path := source / "vocab.txt").is_file():
        return JSON_FILE, json_from_vocab_txt(path, config)
    if (path := source / "vocab.json").is_file():
        return JSON_FILE, json_from_merges(path, source / "merges.txt", config)
    expected = ", ".join((JSON_FILE, *SENTENCEPIECE, "vocab.txt", "vocab.json with merges.txt"))
    raise UserError(f"{source}: has no tokenizer; expected {expected}")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    return content if isinstance(content, dict) else {}
