"""Choices that commands and parameters share."""

from typing import Literal, get_args

Tokenizers = Literal["bpe", "unigram", "wordpiece", "bytelevel"]
TOKENIZERS: tuple[str, ...] = get_args(Tokenizers)
"""The kinds of tokenizers."""

Formats = Literal["hf", "gguf", "gguf-f32", "gguf-q8_0"]
"""The formats that models are exported in: a folder of transformers, or a GGUF file with 16, 32 or 8 bits a weight."""
