"""Shared by the two kinds of the library ``tokenizers``: their file ``tokenizer.json``, how it is made and read.

A file is accepted only when it is, but for its vocabulary, the one that this project writes: what a tokenizer does is
known from its kind, and nothing else in a file can change it. It names no special token to the library, which therefore
looks for none in a text; and their entries of the vocabulary hold ``<`` and ``>``, at which both kinds cut every text.
"""

import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from plm_core.config import UserError
from plm_core.corpus.normalize import normalize
from plm_core.text.special import PIECES
from plm_core.text.tokenizer import JSON_FILE, Tokenizer, TokenizerConfig, too_large

MIN_FREQUENCY = 2
"""A pair that occurs once in the corpus is not merged (Sennrich et al. 2016; the default of their subword-nmt)."""
LONGEST_RUN = 1 << 12
"""The longest word to learn from, in characters (bytelevel: bytes): training time grows with the square."""


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library; each kind says what its file holds."""

    file = JSON_FILE

    def __init__(self, path: Path, data: bytes) -> None:
        """Read a file.

        Raises:
            UserError: it is not one that this project writes for this kind.
        """
        super().__init__(path, data)
        content = parsed(path, data)
        self.tokens = _tokens(path, content)
        """Every entry of the vocabulary, in the order of ids."""
        own = self._rebuilt(content)
        if own != content:
            raise UserError(
                f"{path}: not a {self.kind} tokenizer of this project; expected what stage tokenizer writes"
            )
        self._model = tokenizers.Tokenizer.from_str(json.dumps(own))

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return len(self.tokens)

    @abstractmethod
    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """The content of a file of this kind with this vocabulary; None if there is none."""

    def _encode(self, texts: list[str]) -> Sequence[Sequence[int]]:
        # One at a time: the library divides what it is given among all cores.
        fast = partial(self._model.encode_batch_fast, add_special_tokens=False)
        return [fast([text])[0].ids for text in texts]


def parsed(path: Path, data: bytes) -> dict[str, Any]:
    """A ``tokenizer.json`` as it is read; ``model.type`` is known to be text.

    Raises:
        UserError: it is not JSON, or not of a tokenizer.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        raise UserError(f"{path}: not a file of the library tokenizers; expected an object with model.type")
    return content


def written(content: dict[str, Any]) -> bytes:
    """The file's bytes."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def described(
    model: dict[str, Any],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
) -> dict[str, Any]:
    """The content of a file of this project, with the library's names for the steps from a text to pieces and back."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe(tokens: Iterable[str], merges: Iterable[Sequence[str]], unknown: str | None = None) -> dict[str, Any]:
    """The ``model`` of a file of BPE; with an ``unknown`` token, a character without a piece is spelled in bytes."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": unknown is not None,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges],
    }


def learned(
    tokenizer: tokenizers.Tokenizer, trainer: Any, texts: Iterable[str], config: TokenizerConfig
) -> tuple[list[str], list[list[str]]]:
    """The tokens and merges that a trainer of the library makes of texts; it holds words and their counts, few texts.

    Raises:
        UserError: there are fewer tokens than ``vocab_size``.
    """
    # For training only: the file is written without it.
    parts = tokenizers.pre_tokenizers.FixedLength(LONGEST_RUN)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizer.pre_tokenizer, parts])
    tokenizer.train_from_iterator(map(normalize, texts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if len(vocab := model["vocab"]) < config.vocab_size:
        raise too_large(config, len(vocab))
    return sorted(vocab, key=vocab.__getitem__), model.get("merges", [])


def _tokens(path: Path, content: dict[str, Any]) -> list[str]:
    """The vocabulary in the order of ids."""
    vocab = content["model"].get("vocab")
    if not isinstance(vocab, dict) or list(vocab.values()) != list(range(len(vocab))):
        raise UserError(f"{path}: model.vocab: expected pieces with the ids 0, 1, 2, ... in this order")
    tokens = list(vocab)
    if tuple(tokens[: len(PIECES)]) != PIECES:
        raise UserError(f"{path}: its first pieces are {tuple(tokens[: len(PIECES)])}; expected the special {PIECES}")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{path}: model.vocab: holds a lone surrogate; expected valid Unicode") from error
    return tokens
