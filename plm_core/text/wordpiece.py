"""WordPiece, as in BERT: words cut at spaces and punctuation, then repeatedly the longest known piece.

Used through ``plm_core.text.tokenizer``. Sources: Wu et al. 2016, section 4.1; Devlin et al. 2019, section 3, and the
tokenization of their released code, which the library's ``BertNormalizer`` and ``BertPreTokenizer`` follow (except that
the library does not make a capital sigma at a word's end a final one). The authors never released how they chose
pieces: like the library's trainer and all its users, this merges the most frequent pair (Sennrich et al. 2016).

It is lossy. Whitespace, control and format characters are dropped, also the joiner within an emoji; with ``lowercase``
so are case and accents; and a word is UNK as a whole when it has a character that is not in the vocabulary, or more
than 100. For a text without UNK, ``decode`` returns the words with one space between them, which encode to the same
tokens, unless what BERT drops was within a sequence that Unicode composes.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

from plm_core.corpus.normalize import normalize
from plm_core.text.library import MIN_FREQUENCY, LibraryTokenizer, described, learned, written
from plm_core.text.special import PIECES, UNK
from plm_core.text.tokenizer import Spelling, TokenizerConfig, too_small

CONTINUES = "##"
"""The mark of a piece that does not begin a word."""
LONGEST_WORD = 100
"""The most characters of a word; a longer one is UNK, as in the released code."""


class WordPiece(LibraryTokenizer):
    """A WordPiece tokenizer."""

    kind = "wordpiece"
    lossless = False

    def decode(self, ids: Sequence[int]) -> str:
        """The words of token ids with one space between them; special tokens, including UNK, are left out."""
        pieces = [self.tokens[i] for i in ids if i >= len(PIECES)]
        text = "".join(p.removeprefix(CONTINUES) if p.startswith(CONTINUES) else f" {p}" for p in pieces)
        return text.removeprefix(" ")

    def piece(self, token: int) -> str:
        """The piece with this id; ``##`` says that it does not begin a word."""
        return self.tokens[token]

    @property
    def lowercase(self) -> bool:
        """Whether it is like BERT's uncased models."""
        return bool(self._model.normalizer.lowercase)

    def _rebuilt(self, content: dict[str, Any]) -> dict[str, Any] | None:
        normalizer = content.get("normalizer")
        return describe(self.tokens, isinstance(normalizer, dict) and normalizer.get("lowercase") is True)

    def _spell(self, text: str) -> Spelling:
        """A token also covers what is dropped before it, and the last one what is dropped after it."""
        encoding = self._model.encode(text, add_special_tokens=False)
        if not encoding.ids:
            return Spelling([], [], [])
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        ends = np.concatenate([[0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))])
        stops = ends[[stop for _, stop in encoding.offsets]]
        stops[-1] = ends[-1]
        sizes = np.diff(np.maximum.accumulate(stops), prepend=0)
        return Spelling(encoding.ids, sizes.tolist(), [not t.startswith(CONTINUES) for t in encoding.tokens])


def train(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """Train a tokenizer on texts and return its file's bytes.

    Raises:
        UserError: the corpus is empty, or has too many characters or too few pairs for ``vocab_size``.
    """
    known, first = _alphabet(texts, config)
    if len(first) > config.vocab_size:
        raise too_small(config, len(first))
    # The library numbers the pieces `##x` in the order of a hash table, which differs between processes, and breaks
    # ties by these numbers. Named as special tokens, they all get their numbers beforehand.
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=first,
        initial_alphabet=known,
        limit_alphabet=len(known),
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    library = Library(models.WordPiece(unk_token=PIECES[UNK]))
    library.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokens, _ = learned(library, trainer, texts, config)
    return written(describe(tokens, config.lowercase))


def describe(tokens: Sequence[str], lowercase: bool) -> dict[str, Any]:
    """The content of the file."""
    return described(
        model={
            "type": "WordPiece",
            "unk_token": PIECES[UNK],
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {token: i for i, token in enumerate(tokens)},
        },
        # Accents go with case (null), as in the released models.
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": CONTINUES, "cleanup": False},
    )


def _alphabet(texts: Iterable[str], config: TokenizerConfig) -> tuple[list[str], list[str]]:
    """The characters to be known, and the entries that begin the vocabulary: the special tokens, each of these
    characters, and with ``##`` each that can occur within a word."""
    normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
    cut = pre_tokenizers.BertPreTokenizer()

    def words(text: str) -> list[str]:
        return [word for word, _ in cut.pre_tokenize_str(normalizer.normalize_str(text))]

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
    enough = bisect_left(seen, config.character_coverage * sum(counts.values())) + 1
    known = sorted(commonest[:enough])
    within = [c for c in known if words(f"a{c}a") == [f"a{c}a"]]
    return known, [*PIECES, *known, *(CONTINUES + c for c in within)]
