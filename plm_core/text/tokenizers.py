"""Tokenizers: their special tokens, their interface, and their section of the parameters.

A tokenizer is trained by one stage and read by all later ones.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from plm_core.config import UserError, section
from plm_core.corpus.normalize import WORD_BOUNDARY, normalize
from plm_core.shared.options import Tokenizers

PAD, UNK, BOS, EOS, MASK, CLS, SEP = range(7)
"""Token ids. EOS ends every document and, as in GPT-2, also precedes a text that is to be continued."""

PIECES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<cls>", "<sep>")
"""The pieces with the ids above. They are control symbols: no text can spell them."""


MODEL_FILE = "tokenizer.model"
"""The file of a sentencepiece tokenizer (bpe, unigram)."""
JSON_FILE = "tokenizer.json"
"""The file of a tokenizer of the library ``tokenizers`` (wordpiece, bytelevel)."""
PUBLISHED_FILE = "tokenizer.published.json"
"""The file of a published tokenizer, with how its ids are permuted."""
BYTES_AND_SPECIALS = 256 + len(PIECES) + 1
"""The smallest vocabulary of sentencepiece: every byte, the special tokens, the line end."""
NOT_LEARNED = {"bpe": BYTES_AND_SPECIALS, "unigram": BYTES_AND_SPECIALS, "wordpiece": len(PIECES), "bytelevel": 263}
"""The kinds, and how many entries every vocabulary of that kind has in common."""


@section
class GivenTokenizer:
    """Section ``tokenizers.<name>.given``; because of the digest, DVC notices a change of the file."""

    file: str
    """A ``tokenizer.model`` or ``tokenizer.json`` as stage tokenizer writes it, or one that ``plm import`` wrote."""
    sha256: str
    """Its digest."""


@section
class TokenizerConfig:
    """Section ``tokenizers.<name>`` of the parameters."""

    kind: Tokenizers = "bpe"
    """The algorithm. All but wordpiece keep every character of a text."""
    vocab_size: int = 8192
    """The number of pieces, including special tokens and single bytes or characters."""
    character_coverage: Annotated[float, Field(ge=0.9, le=1)] = 0.9999
    """The share of the corpus's characters that get a piece of their own. The rest are spelled in bytes, and unknown to
    wordpiece; bytelevel has no characters, and does not read this."""
    lowercase: bool = False
    """For wordpiece only: whether text is lowercased and loses its accents, as in BERT's uncased models."""
    learned_bytes: PositiveInt = 500_000_000
    """About how many bytes of the training text to learn from, evenly spread over it; all if it has fewer. The kinds of
    sentencepiece take about four times as much memory."""
    renew_above: Annotated[float, Field(ge=1)] = 1.5
    """Only if a model carries on from the run before: its tokenizer is kept unless new text takes more than this many
    times as many tokens per byte as the text that the model has read. With a new one, models begin anew."""
    given: GivenTokenizer | None = None
    """A tokenizer to use as it is, such as that of an imported model; null to train one on the corpus."""
    extend: NonNegativeInt = 0
    """Only with a ``given`` tokenizer of a published model, WordPiece or byte-level BPE: how many pieces to add to it
    that are learned from the corpus."""

    def __post_init__(self) -> None:
        if self.extend and self.given is None:
            raise ValueError(f"extend: found {self.extend}, but no given; expected that of a published model")
        if self.vocab_size <= NOT_LEARNED[self.kind]:
            raise ValueError(f"vocab_size: {self.vocab_size} is too small; expected more than {NOT_LEARNED[self.kind]}")
        if self.lowercase and self.kind != "wordpiece":
            raise ValueError(f"lowercase: {self.kind} keeps a text as it is; expected false, or kind: wordpiece")


class Spelling(NamedTuple):
    """The tokens of a text, and the part of it that each covers."""

    ids: list[int]
    sizes: list[int]
    """The UTF-8 bytes of ``normalize(text)`` that each token covers. If there is any token, they add up to all."""
    starts: list[bool]
    """Whether a word begins with this token."""


class Tokenizer(ABC):
    """Text to token ids and back. No text can spell a special token."""

    file: ClassVar[str]
    """The name of its file in a folder."""
    lossless: bool = True
    """Whether ``decode(encode(text)) == normalize(text)`` for every string."""
    kind: str
    """As in ``TokenizerConfig``."""
    continues: str | None = None
    """The mark of a piece that does not begin a word; None if those that do are marked, by ``▁``."""

    def __init__(self, path: Path, data: bytes) -> None:
        """A tokenizer of the file's content ``data``; ``path`` is its name in messages."""
        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.starts: tuple[str, ...] = (self.sha256,)
        """The digests of tokenizers: a model with this tokenizer can start from a model with any of them. They are
        those that it extends, oldest first, and then its own."""
        self.parts: list[list[int]] = []
        """The parts of each piece that was added to the first of them, as earlier ids; these pieces are the last."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of token ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``normalize(text)``, none special except a lossy tokenizer's UNK; UserError for invalid
        Unicode."""
        return list(self._encode([_normal(text)])[0])

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """``encode`` of many texts at once, as int32 arrays."""
        return [np.asarray(ids, dtype=np.int32) for ids in self._encode([_normal(text) for text in texts])]

    def spell(self, text: str) -> Spelling:
        """The tokens of ``encode(text)`` with the part of the text that each covers."""
        return self._spell(_normal(text))

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out, and invalid UTF-8 becomes U+FFFD.

        ``decode(a + b)`` begins with ``decode(a)``, unless that ends within a character.
        """

    @abstractmethod
    def piece(self, token: int) -> str:
        """The token with this id, for people to read: a space as ``▁``, and a byte of a character as ``<0xE2>``."""

    def letters(self, token: int) -> tuple[bytes, bool]:
        """The text of a token without the space or the mark before it, and whether a word begins with it."""
        piece = self.piece(token)
        text = piece.removeprefix(WORD_BOUNDARY if self.continues is None else self.continues)
        begins = (text != piece) == (self.continues is None)
        if re.fullmatch(r"(<0x[0-9A-F]{2}>)+", text):
            return bytes(int(byte, 16) for byte in re.findall("0x(..)", text)), begins
        return text.replace(WORD_BOUNDARY, " ").encode(), begins

    @abstractmethod
    def _encode(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """The ids of texts in normal form."""

    @abstractmethod
    def _spell(self, text: str) -> Spelling:
        """``spell`` of a text in normal form."""


def too_large(config: TokenizerConfig, largest: int) -> ValueError:
    """The error for a corpus that has fewer pieces than requested."""
    if largest <= NOT_LEARNED[config.kind]:
        return ValueError("vocab_size: no piece can be learned from this corpus; expected more text")
    return ValueError(
        f"vocab_size: {config.vocab_size} is more than this corpus supports; expected at most {largest}, or more text"
    )


def too_small(config: TokenizerConfig, smallest: int) -> ValueError:
    """The error for a corpus that has more characters than the requested number of pieces."""
    return ValueError(f"vocab_size: {config.vocab_size} is too small; expected at least {smallest}")


def spelled(ids: Sequence[int], parts: Sequence[bytes]) -> Spelling:
    """Tokens that stand for these bytes: a word begins at a space, at a line end, and after it."""
    after_line_end = [True, *(part.endswith(b"\n") for part in parts)]
    starts = [part[:1] in b" \n" or first for part, first in zip(parts, after_line_end, strict=False)]
    return Spelling(list(ids), [len(part) for part in parts], starts)


def _normal(text: str) -> str:
    text = normalize(text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text: holds a lone surrogate at character {error.start + 1}; expected text that is valid Unicode"
        ) from error
    return text
