"""The two kinds of the library ``tokenizers``, WordPiece and byte-level BPE, with the file ``tokenizer.json``.

A file is accepted only if it is, apart from its vocabulary, what this project writes, so what it does follows from its
kind, vocabulary and ``lowercase`` alone. The file declares no special token to the library, which therefore looks for
none in a text; nor can a text spell one, because their pieces contain ``<`` and ``>``, at which both kinds cut every
text.
"""

import json
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from plm_core.config import UserError
from plm_core.corpus.normalize import WORD_BOUNDARY, normalize
from plm_core.text.tokenizers import (
    JSON_FILE,
    PIECES,
    UNK,
    Spelling,
    Tokenizer,
    TokenizerConfig,
    spelled,
    too_large,
    too_small,
)

MIN_FREQUENCY = 2
"""A pair that occurs once in the corpus is not merged (Sennrich et al. 2016; the default of their subword-nmt)."""
LONGEST_RUN = 1 << 12
"""The longest word to learn from, in characters (bytelevel: bytes): training time grows with the square."""

# The file, and what both kinds share.

EMPTY = dict.fromkeys(
    ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
) | {"version": "1.0", "added_tokens": []}
"""A file without a model, with the library's names for the steps from a text to pieces and back."""


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library; each kind says what its file holds."""

    file = JSON_FILE

    def __init__(self, path: Path, data: bytes) -> None:
        """UserError if the file is not one that this project writes for this kind."""
        super().__init__(path, data)
        content = parse_tokenizer_json(path, data)
        vocab = content["model"].get("vocab")
        if not isinstance(vocab, dict) or list(vocab.values()) != list(range(len(vocab))):
            raise UserError(f"{path}: model.vocab: expected pieces with the ids 0, 1, 2, ... in this order")
        self.tokens = list(vocab)
        if (first := tuple(self.tokens[: len(PIECES)])) != PIECES:
            raise UserError(f"{path}: its first pieces are {first}; expected the special {PIECES}")
        try:
            "".join(self.tokens).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{path}: model.vocab: holds a lone surrogate; expected valid Unicode") from error
        own = self._rebuilt(content)
        if own != content:
            raise UserError(
                f"{path}: not a {self.kind} tokenizer of this project; expected what stage tokenizer writes"
            )
        self._model = tokenizers.Tokenizer.from_str(json.dumps(own))

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @abstractmethod
    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """The content of a file of this kind with this vocabulary; None if there is none."""

    def _encode(self, texts: list[str]) -> Sequence[Sequence[int]]:
        # One at a time: the library divides what it is given among all cores.
        fast = partial(self._model.encode_batch_fast, add_special_tokens=False)
        return [fast([text])[0].ids for text in texts]


def parse_tokenizer_json(path: Path, data: bytes) -> dict[str, Any]:
    """A ``tokenizer.json``, whose ``model.type`` is text; UserError if it is not one."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        raise UserError(f"{path}: not a file of the library tokenizers; expected an object with model.type")
    return content


def byte_ends(text: str) -> np.ndarray:
    """How many UTF-8 bytes the first 0, 1, 2, ... characters of a text take, for offsets that the library counts in
    characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return np.concatenate([[0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))])


def to_bytes(content: dict[str, Any]) -> bytes:
    """The file's bytes."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


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


def learn_pieces(
    tokenizer: tokenizers.Tokenizer, trainer: Any, texts: Iterable[str], config: TokenizerConfig
) -> tuple[list[str], list[list[str]]]:
    """The tokens and merges that a trainer of the library makes of texts; it holds words and their counts, few texts.

    Raises:
        UserError: there are fewer tokens than ``vocab_size``.
    """
    # For training only: the file is written without it.
    parts = pre_tokenizers.FixedLength(LONGEST_RUN)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, parts])
    tokenizer.train_from_iterator(map(normalize, texts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if len(vocab := model["vocab"]) < config.vocab_size:
        raise too_large(config, len(vocab))
    return sorted(vocab, key=vocab.__getitem__), model.get("merges", [])


# WordPiece, as in BERT: words cut at spaces and punctuation, then repeatedly the longest known piece (Wu et al. 2016,
# section 4.1; Devlin et al. 2019, section 3). The tokenization is that of their released code, which the library
# follows, except that it does not make a capital sigma at a word's end a final one. The authors never released how they
# chose pieces: like the library's trainer and all its users, this merges the most frequent pair.
#
# It is lossy. Whitespace, control and format characters are dropped, also the joiner within an emoji; with `lowercase`
# so are case and accents; and a word is UNK as a whole when it has a character that is not in the vocabulary, or more
# than 100. For a text without UNK, `decode` returns the words with one space between them, which encode to the same
# tokens, unless what BERT drops was within a sequence that Unicode composes.

CONTINUES = "##"
"""The mark of a piece that does not begin a word."""
LONGEST_WORD = 100
"""The most characters of a word; a longer one is UNK, as in the released code."""


class WordPiece(LibraryTokenizer):
    """A WordPiece tokenizer."""

    kind = "wordpiece"
    lossless = False
    continues = CONTINUES

    def decode(self, ids: Sequence[int]) -> str:
        """The words of token ids with one space between them; special tokens, including UNK, are left out."""
        pieces = [self.tokens[i] for i in ids if i >= len(PIECES)]
        text = "".join(p.removeprefix(CONTINUES) if p.startswith(CONTINUES) else f" {p}" for p in pieces)
        return text.removeprefix(" ")

    def piece(self, token: int) -> str:
        """``##`` says that it does not begin a word."""
        return self.tokens[token]

    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        normalizer = content.get("normalizer")
        return _wordpiece(self.tokens, isinstance(normalizer, dict) and normalizer.get("lowercase") is True)

    def _spell(self, text: str) -> Spelling:
        """A token also covers what is dropped before it, and the last one what is dropped after it."""
        encoding = self._model.encode(text, add_special_tokens=False)
        if not encoding.ids:
            return Spelling([], [], [])
        ends = byte_ends(text)
        stops = ends[[stop for _, stop in encoding.offsets]]
        stops[-1] = ends[-1]
        sizes = np.diff(np.maximum.accumulate(stops), prepend=0)
        return Spelling(encoding.ids, sizes.tolist(), [not t.startswith(CONTINUES) for t in encoding.tokens])


def train_wordpiece(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """The file of a tokenizer trained on texts; UserError for no text, too many characters or too few pairs."""
    normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
    cut = pre_tokenizers.BertPreTokenizer()
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(normalize(text))
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        # Next to a letter, because BERT's normal form surrounds some characters with spaces.
        for part in normalizer.normalize_str(character).split():
            counts.update(dict.fromkeys(part, count))
    commonest = sorted(counts, key=lambda c: (-counts[c], c))
    seen = list(accumulate(counts[c] for c in commonest))
    alphabet = sorted(commonest[: bisect_left(seen, config.character_coverage * sum(counts.values())) + 1])

    def whole(word: str) -> bool:
        return [part for part, _ in cut.pre_tokenize_str(normalizer.normalize_str(word))] == [word]

    # The library numbers the pieces `##x` in the order of a hash table, which differs between processes, and breaks
    # ties by these numbers. Named as special tokens, they all get their numbers beforehand.
    first = [*PIECES, *alphabet, *(CONTINUES + c for c in alphabet if whole(f"a{c}a"))]
    if len(first) > config.vocab_size:
        raise too_small(config, len(first))
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    library = tokenizers.Tokenizer(models.WordPiece(unk_token=PIECES[UNK]))
    library.normalizer = normalizer
    library.pre_tokenizer = cut
    tokens, _ = learn_pieces(library, trainer, texts, config)
    return to_bytes(_wordpiece(tokens, config.lowercase))


def _wordpiece(tokens: Sequence[str], lowercase: bool) -> dict[str, Any]:
    return EMPTY | {
        # Accents are stripped exactly if text is lowercased (null), as in the released models.
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": PIECES[UNK],
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {token: i for i, token in enumerate(tokens)},
        },
    }


# Byte-level BPE, as in GPT-2: a text is bytes, cut into words by a pattern, within which pairs are merged (Radford et
# al. 2019, section 2.2; the pattern and the byte alphabet are those of their released `encoder.py`, which the library's
# `ByteLevel` follows). There is no unknown token: every text round-trips.

_PRINTS = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
_OTHERS = iter(range(256, 512))
LETTERS = [chr(byte if byte in _PRINTS else next(_OTHERS)) for byte in range(256)]
"""The character by which the file writes each byte: itself if printable, otherwise one from U+0100 on."""
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}
"""The inverse of ``LETTERS``."""
FIRST = (*PIECES, *sorted(LETTERS))
"""The entries that begin every vocabulary, in the library's order of an alphabet."""


def display_bytes(spelled: bytes) -> str:
    """The bytes of a token as ``Tokenizer.piece`` shows them."""
    try:
        return spelled.decode().replace(" ", WORD_BOUNDARY)
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in spelled)


class ByteLevel(LibraryTokenizer):
    """A byte-level BPE tokenizer."""

    kind = "bytelevel"

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(path, data)
        self._bytes = [b"" if i < len(PIECES) else bytes(map(BYTES.__getitem__, t)) for i, t in enumerate(self.tokens)]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in ids if i >= len(PIECES)).decode(errors="replace")

    def piece(self, token: int) -> str:
        return PIECES[token] if token < len(PIECES) else display_bytes(self._bytes[token])

    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """Every entry after the first ones is made of a pair of earlier entries."""
        merges = content["model"].get("merges")
        built = {*LETTERS}
        try:
            for left, right in merges:
                if not {left, right} <= built:
                    return None
                built.add(left + right)
        except (TypeError, ValueError):
            return None
        fits = tuple(self.tokens[: len(FIRST)]) == FIRST and built == {*LETTERS, *self.tokens[len(FIRST) :]}
        return _bytelevel(self.tokens, merges) if fits else None

    def _spell(self, text: str) -> Spelling:
        ids = self._encode([text])[0]
        return spelled(ids, [self._bytes[i] for i in ids])


def train_bytelevel(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """The file of a tokenizer trained on texts; UserError for no text or too few pairs for ``vocab_size``."""
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(PIECES),
        initial_alphabet=LETTERS,
        show_progress=False,
    )
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return to_bytes(_bytelevel(*learn_pieces(library, trainer, texts, config)))


def _bytelevel(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return EMPTY | {"pre_tokenizer": step, "decoder": step, "model": bpe(tokens, merges)}
