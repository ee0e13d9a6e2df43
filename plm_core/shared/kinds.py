"""Choices that commands and parameters share."""

from typing import Literal, get_args

Tokenizers = Literal["bpe", "unigram", "wordpiece", "bytelevel"]
TOKENIZERS: tuple[str, ...] = get_args(Tokenizers)
"""The kinds of tokenizers."""
