"""The tokenizer: sentencepiece BPE or unigram with byte fallback. Trained by one stage, read by all after it.

Sources: Kudo and Richardson 2018 (sentencepiece), Sennrich et al. 2016 (BPE), Kudo 2018 (unigram).
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece

from plm_core.config import BadInput
from plm_core.corpus.normalize import normalize
from plm_core.files import sha256_file
from plm_core.text.special import BOS, EOS, PAD, PIECES, UNK

MODEL_FILE = "tokenizer.model"
TRAINING_THREADS = 4
"""Fixed, not the machine's: the pieces of a unigram model depend on how the work is divided."""
BYTES_AND_SPECIALS = 256 + len(PIECES) + 1
"""The smallest vocabulary: every byte, the special tokens, the line end."""


@dataclass(frozen=True)
class GivenTokenizer:
    """Section ``tokenizer.given``: the digest makes it a decision that DVC sees, not a file that changes."""

    file: str
    """A ``tokenizer.model`` with this project's special tokens."""
    sha256: str
    """Its digest."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Section ``tokenizer`` of the parameters."""

    kind: Literal["bpe", "unigram"]
    """The algorithm."""
    vocab_size: int
    """Pieces, special tokens and the 256 byte pieces included."""
    character_coverage: float = 0.9999
    """The share of the corpus's characters that get a piece of their own; the rest are spelled in bytes."""
    given: GivenTokenizer | None = None
    """A tokenizer to take as it is, such as that of an imported model; null to train one on the corpus."""

    def __post_init__(self) -> None:
        if self.vocab_size <= BYTES_AND_SPECIALS:
            raise ValueError(f"vocab_size: {self.vocab_size} is too small; expected more than {BYTES_AND_SPECIALS}")
        if not 0.9 <= self.character_coverage <= 1.0:
            raise ValueError(f"character_coverage: {self.character_coverage} is not between 0.9 and 1.0")


class Tokenizer:
    """Text to token ids and back. ``decode(encode(text)) == normalize(text)`` for every string."""

    def __init__(self, path: Path) -> None:
        """Read ``tokenizer.model``.

        Raises:
            BadInput: the file is missing or is not a sentencepiece model with this project's special tokens.
        """
        if not path.is_file():
            raise BadInput(f"{path}: missing; expected a tokenizer (run `dvc repro tokenizer`)")
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        except RuntimeError as error:
            raise BadInput(f"{path}: not a sentencepiece model ({error})") from error
        pieces = tuple(self._model.id_to_piece(i) for i in range(min(len(PIECES), len(self._model))))
        if pieces != PIECES:
            raise BadInput(f"{path}: its first pieces are {pieces}; expected the special tokens {PIECES}")
        self.path = path
        self.sha256 = sha256_file(path)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return len(self._model)

    def encode(self, text: str) -> list[int]:
        """The token ids of ``normalize(text)``, without any special token.

        Raises:
            BadInput: the text cannot be written as UTF-8.
        """
        text = normalize(text)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(
                f"text: holds half a surrogate pair at character {error.start + 1}; expected text that is valid Unicode"
            ) from error
        return self._model.encode(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """``encode`` of many texts at once, as int32 arrays."""
        normal = [normalize(text) for text in texts]
        return [np.asarray(ids, dtype=np.int32) for ids in self._model.encode(normal, num_threads=threads)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out, broken UTF-8 becomes U+FFFD."""
        return self._model.decode([int(i) for i in ids if i >= len(PIECES)])

    def piece(self, token: int) -> str:
        """The piece with this id, for people to read."""
        return self._model.id_to_piece(token)

    def scores(self) -> list[tuple[str, float]]:
        """Every piece with its score, in the order of ids, for other programs to build the same tokenizer.

        The score of a unigram piece is its log probability; that of a BPE piece is minus its rank, and the pair whose
        joined piece has the highest score is merged first. Ids below ``BYTES_AND_SPECIALS`` are not learned: 0.
        """
        return [(self._model.id_to_piece(i), self._model.get_score(i)) for i in range(len(self._model))]


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """Train a tokenizer on normalised texts and return its model file's bytes; equal input gives equal bytes.

    Raises:
        BadInput: the corpus is empty or does not support ``vocab_size`` pieces.
    """
    lines = (line for text in texts for line in normalize(text).split("\n") if line.strip())
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=PIECES[PAD],
            control_symbols=list(PIECES[EOS + 1 :]),
            user_defined_symbols=["\n"],
            max_sentence_length=1 << 20,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise BadInput(_explain(str(error), config)) from error
    found = len(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()))
    if found != config.vocab_size:
        raise BadInput(_explain(f"<= {found}", config))
    return model.getvalue()


def _explain(error: str, config: TokenizerConfig) -> str:
    if limit := re.search(r"<= ?(\d+)", error):
        return (
            f"tokenizer.vocab_size: {config.vocab_size} is more than this corpus supports; "
            f"expected at most {limit.group(1)}, or more text"
        )
    if needed := re.search(r"smaller than required_chars\D+(\d+) vs (\d+)", error):
        return f"tokenizer.vocab_size: {config.vocab_size} is too small; expected at least {needed.group(2)}"
    return f"tokenizer: sentencepiece cannot train {config.vocab_size} pieces on this corpus: {error.strip()}"
