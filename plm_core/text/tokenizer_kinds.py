"""The kinds of tokenizers by name: one is trained, or read from its file.

``sentencepiece_tokenizers.py`` (bpe, unigram) and ``hf_tokenizers.py`` (wordpiece, bytelevel) are imported only when
needed.
"""

from collections.abc import Iterable
from pathlib import Path

from plm_core.config import UserError
from plm_core.shared.files import CHECKSUMS, verify_checksums
from plm_core.text.tokenizers import JSON_FILE, MODEL_FILE, PUBLISHED_FILE, Tokenizer, TokenizerConfig


def open_tokenizer(place: Path) -> Tokenizer:
    """Read a tokenizer's file, or the one in a folder; UserError if there is none that the stage could have written."""
    names = (MODEL_FILE, JSON_FILE, PUBLISHED_FILE) if place.is_dir() else ("",)
    path = next((place / name for name in names if (place / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{place / names[0]}: missing; expected a tokenizer (`dvc repro tokenizer` writes those of params.yaml)"
        )
    if (place / CHECKSUMS).is_file():
        verify_checksums(place)
    return read_tokenizer(path, path.read_bytes())


def read_tokenizer(path: Path, data: bytes) -> Tokenizer:
    """The tokenizer whose file, ``path`` in messages, holds ``data``; UserError if the stage cannot have written it."""
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        from plm_core.text.sentencepiece_tokenizers import SentencePiece

        return SentencePiece(path, data)
    if path.name == PUBLISHED_FILE:
        from plm_core.text.published_tokenizer import Published

        return Published(path, data)
    from plm_core.text.hf_tokenizers import ByteLevel, WordPiece, parse_tokenizer_json

    kind = WordPiece if parse_tokenizer_json(path, data)["model"]["type"] == "WordPiece" else ByteLevel
    return kind(path, data)


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """Train a tokenizer on texts and return its file's bytes; equal input gives equal bytes, on any number of cores.

    ``texts`` is read more than once: it must be a collection, not a generator.

    Raises:
        ValueError: the corpus is empty or does not support ``vocab_size`` pieces; the message begins with that name.
    """
    if config.kind in ("bpe", "unigram"):
        from plm_core.text import sentencepiece_tokenizers

        return sentencepiece_tokenizers.train(texts, config)
    from plm_core.text import hf_tokenizers

    train = hf_tokenizers.train_wordpiece if config.kind == "wordpiece" else hf_tokenizers.train_bytelevel
    return train(texts, config)
