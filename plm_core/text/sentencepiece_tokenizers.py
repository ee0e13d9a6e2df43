"""Tokenizers of sentencepiece: BPE and unigram with byte fallback. Every text round-trips.

Sources: Kudo and Richardson 2018 (sentencepiece), Sennrich et al. 2016 (BPE), Kudo 2018 (unigram).
"""

import io
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import sentencepiece

from plm_core.config import UserError
from plm_core.corpus.normalize import WORD_BOUNDARY, normalize, split_text
from plm_core.text.tokenizers import (
    BOS,
    BYTES_AND_SPECIALS,
    EOS,
    MODEL_FILE,
    PAD,
    PIECES,
    UNK,
    Spelling,
    Tokenizer,
    TokenizerConfig,
    spelled,
    too_large,
    too_small,
)

TRAINING_THREADS = 4
"""Fixed, not the machine's: the pieces of a unigram model depend on how the work is divided."""

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
GIVEN = (*PIECES, "\n", *BYTES)
"""The pieces with the smallest ids, which every model of this project has."""
_WORD = re.compile(r"\n| ?[^ \n]+| ")
"""A word with the space before it: nothing is merged across its borders."""
WORDS_KEPT = 1 << 16
LONGEST_KEPT = 24
"""How many words are remembered with their ids, of at most this many characters: 30 MB if words have 8, up to 70 MB."""
UNKNOWN = "\u2585"
"""The placeholder of sentencepiece for rare characters during training: it leaves out lines that contain it."""
LONGEST_LINE = 1 << 18
"""Characters; sentencepiece leaves out lines of more than four times as many bytes, so longer ones are cut."""
PROBE = " a  b\n\u00bd\ue000 "
"""A text that shows whether a model changes texts, or adds to them."""


class _Words(dict[str, list[int]]):
    """The ids of words: a corpus has few different ones, and looking one up is much faster than merging it again."""

    def __init__(self, model: sentencepiece.SentencePieceProcessor) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> list[int]:
        ids: list[int] = self._model.encode(word)
        if len(self) >= WORDS_KEPT:
            self.clear()
        if len(word) <= LONGEST_KEPT:
            self[word] = ids
        return ids


class SentencePiece(Tokenizer):
    """A model of sentencepiece."""

    file = MODEL_FILE

    def __init__(self, path: Path, data: bytes) -> None:
        """UserError if it is not a sentencepiece model with this project's special tokens."""
        super().__init__(path, data)
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=data)
            pieces = tuple(self.piece(i) for i in range(len(self._model)))
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not a sentencepiece model ({error})") from error
        if pieces[:BYTES_AND_SPECIALS] != GIVEN:
            first = pieces[: len(PIECES)]
            raise UserError(f"{path}: its first pieces are {first}; expected {PIECES}, the line end and all bytes")
        # The scores of a BPE model are its pieces' ranks.
        learned = [self._model.get_score(i) for i in range(BYTES_AND_SPECIALS, len(self._model))]
        self.kind = "bpe" if learned == [-rank for rank in range(len(learned))] else "unigram"
        # No piece reaches over a space or a line end, so that no merge does. Unigram models sum over whole texts, in
        # single precision: cut into words, they would round otherwise.
        crossed = any(WORD_BOUNDARY in piece[1:] or "\n" in piece[1:] for piece in pieces)
        self._words = None if crossed or self.kind == "unigram" else _Words(self._model)
        if self.decode(self.encode(PROBE)) != PROBE or sum(self.spell(PROBE).sizes) != len(PROBE.encode()):
            raise UserError(f"{path}: changes texts; expected a model that keeps every character, and adds none")

    @property
    def vocab_size(self) -> int:
        return len(self._model)

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode([int(i) for i in ids if i >= len(PIECES)])

    def piece(self, token: int) -> str:
        return self._model.id_to_piece(token)

    def scores(self) -> list[tuple[str, float]]:
        """Every piece with its score, in the order of ids, for other programs to build the same tokenizer.

        The score of a unigram piece is its log probability; that of a BPE piece is minus its rank. Ids below
        ``BYTES_AND_SPECIALS`` are not learned: 0.
        """
        return [(self._model.id_to_piece(i), self._model.get_score(i)) for i in range(len(self._model))]

    def _encode(self, texts: list[str]) -> Sequence[Sequence[int]]:
        if self._words is None:
            return self._model.encode(texts, num_threads=1)
        return [list(chain.from_iterable(map(self._words.__getitem__, _WORD.findall(text)))) for text in texts]

    def _spell(self, text: str) -> Spelling:
        ids = self._encode([text])[0]
        pieces = map(self.piece, ids)
        # A piece such as ``<0xE2>`` is one byte of a character that has no piece of its own.
        parts = [bytes([int(p[3:5], 16)]) if p in BYTES else p.replace(WORD_BOUNDARY, " ").encode() for p in pieces]
        return spelled(ids, parts)


def train(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """The file of a model trained on texts; UserError if they do not support ``vocab_size`` pieces."""
    model = _trained(texts, config)
    if sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id(WORD_BOUNDARY) == UNK:
        # Spaces are too rare here for a piece. Only then are they asked for: a model keeps how it was made.
        model = _trained(texts, config, required_chars=WORD_BOUNDARY)
    return model


def _trained(texts: Iterable[str], config: TokenizerConfig, **more: Any) -> bytes:
    whole = (line for text in texts for line in normalize(text).replace(UNKNOWN, "\n").split("\n") if line.strip())
    lines = (part for line in whole for part in split_text(line, LONGEST_LINE))
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
            max_sentence_length=4 * LONGEST_LINE,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
            **more,
        )
    except RuntimeError as error:
        if "!sentences_.empty()" in str(error):
            raise too_large(config, 0) from error
        if limit := re.search(r"<= ?(\d+)", str(error)):
            raise too_large(config, int(limit[1])) from error
        if needed := re.search(r"smaller than required_chars\D+(\d+) vs (\d+)", str(error)):
            raise too_small(config, int(needed[2]) + 1) from error  # the space may not have been counted
        raise ValueError(
            f"vocab_size: sentencepiece cannot train {config.vocab_size} pieces on this corpus: {str(error).strip()}"
        ) from error
    size = len(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()))
    if size != config.vocab_size:
        raise too_large(config, size)
    return model.getvalue()
