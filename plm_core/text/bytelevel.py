"""Byte-level BPE, as in GPT-2: a text is bytes, cut into words by a pattern, within which pairs are merged.

Used through ``plm_core.text.tokenizer``. Source: Radford et al. 2019, section 2.2, and the pattern and byte alphabet of
their released code (``encoder.py``), which the library's ``ByteLevel`` follows. There is no unknown token: every text
round-trips.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from plm_core.text.library import MIN_FREQUENCY, LibraryTokenizer, bpe, described, learned, written
from plm_core.text.special import PIECES
from plm_core.text.tokenizer import Spelling, TokenizerConfig, readable


def _letters() -> list[str]:
    """The character that represents each byte: itself if printable, otherwise one from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


LETTERS = _letters()
"""The character by which the file writes each byte."""
FIRST = (*PIECES, *sorted(LETTERS))
"""The entries that begin every vocabulary, in the library's order of an alphabet."""


class ByteLevel(LibraryTokenizer):
    """A byte-level BPE tokenizer."""

    kind = "bytelevel"

    def __init__(self, path: Path, data: bytes) -> None:
        """Read a file.

        Raises:
            UserError: it is not one that this project writes for this kind.
        """
        super().__init__(path, data)
        values = {letter: byte for byte, letter in enumerate(LETTERS)}
        self._bytes = [b"" if i < len(PIECES) else bytes(map(values.__getitem__, t)) for i, t in enumerate(self.tokens)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; see ``Tokenizer.decode``."""
        return b"".join(self._bytes[i] for i in ids if i >= len(PIECES)).decode(errors="replace")

    def piece(self, token: int) -> str:
        """The token with this id, for people to read."""
        return readable(self._bytes[token]) if token >= len(PIECES) else PIECES[token]

    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """Every entry after the first ones is made of a pair of earlier entries."""
        merges = content["model"].get("merges")
        known = {*LETTERS}
        made = {*self.tokens[len(FIRST) :]}
        if tuple(self.tokens[: len(FIRST)]) != FIRST or not isinstance(merges, list):
            return None
        for pair in merges:
            if not (isinstance(pair, list) and len(pair) == 2):
                return None
            if not all(isinstance(part, str) and part in known for part in pair):
                return None
            known.add("".join(pair))
        return describe(self.tokens, merges) if known == made.union(LETTERS) else None

    def _spell(self, text: str) -> Spelling:
        """A word begins at a space, at the line end, and after it."""
        ids = self._model.encode(text, add_special_tokens=False).ids
        parts = [self._bytes[i] for i in ids]
        after_line_end = [True, *(part.endswith(b"\n") for part in parts)]
        starts = [part[:1] in b" \n" or first for part, first in zip(parts, after_line_end, strict=False)]
        return Spelling(ids, [len(part) for part in parts], starts)


def train(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """Train a tokenizer on texts and return its file's bytes.

    Raises:
        UserError: the corpus is empty, or has too few pairs for ``vocab_size``.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(PIECES),
        initial_alphabet=LETTERS,
        show_progress=False,
    )
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return written(describe(*learned(library, trainer, texts, config)))


def describe(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The content of the file."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return described(bpe(tokens, merges), normalizer=None, pre_tokenizer=step, decoder=step)
