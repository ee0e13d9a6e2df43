"""The quality of a vocabulary, measured on text that it was learned from and on held-out text.

Used by the tokenizer stage and by the comparison of tokenizers. Fertility is that of Rust et al. 2021 ("How Good is
Your Tokenizer?"); that an entry should be seen a hundred times to be learned is a finding of Gowda and May 2020
("Finding the Optimal Vocabulary Size for Neural Machine Translation").
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plm_core.text.tokenizers import PIECES, UNK, Tokenizer

SAMPLE = 4 << 20
"""The most characters of either text that are read, in whole documents."""
RARE = 100
"""An entry of the vocabulary that is seen less often in the sample of the training text is rare."""
DOCUMENTS_AT_ONCE = 64
LONGEST = 40
"""The most letters of a word that is shown: longer runs are DNA, encoded data or a script without spaces."""

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of one tokenizer. A word is what is between whitespace; a text without any is one word."""

    vocab_size: int
    """Entries, special tokens included."""
    bytes_per_token: float
    """UTF-8 bytes of the held-out text over its tokens."""
    fertility: float
    """Tokens of the held-out text over its words."""
    fragmented_share: float
    """The share of the held-out text's words, here runs of letters, that are several tokens or unknown."""
    unknown_rate: float
    """The share of the held-out text's tokens that are UNK; 0 for a tokenizer that keeps all of a text."""
    rare_share: float
    """The share of entries, without the special tokens, seen fewer than ``RARE`` times in the training text."""
    unused_share: float
    """The share of entries, without the special tokens, not seen in the training text at all."""


def sample(texts: Iterable[str], most: int = SAMPLE) -> list[str]:
    """Every k-th text, whole: about ``most`` characters in all if lengths are similar; all texts if they have fewer.

    The texts are read twice.
    """
    step = max(1, -(-sum(len(text) for text in texts) // most))
    return [text for i, text in enumerate(texts) if i % step == 0]


def measure(tokenizer: Tokenizer, trained_on: Sequence[str], held_out: Sequence[str]) -> Vocabulary:
    """Count the tokens of two samples of text, neither of them empty of words."""
    seen = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for tokens in _encoded(tokenizer, trained_on):
        seen += np.bincount(tokens, minlength=tokenizer.vocab_size)
    encoded = list(_encoded(tokenizer, held_out))
    count = max(1, sum(map(len, encoded)))
    entries = seen[len(PIECES) :]
    words = _words(held_out)
    divided = sum(words[word] for word in _costs(tokenizer, words))
    return Vocabulary(
        vocab_size=tokenizer.vocab_size,
        bytes_per_token=sum(len(text.encode()) for text in held_out) / count,
        fertility=count / max(1, sum(len(text.split()) for text in held_out)),
        fragmented_share=divided / max(1, words.total()),
        unknown_rate=unknown_rate(encoded),
        rare_share=float(np.mean(entries < RARE)),
        unused_share=float(np.mean(entries == 0)),
    )


def fertility_growth(tokenizer: Tokenizer, before: Iterable[str], now: Iterable[str]) -> float:
    """How many times the tokens per byte of the texts ``before`` those of ``now`` take, both sampled."""
    then, after = (measure(tokenizer, (), sample(texts)).bytes_per_token for texts in (before, now))
    return then / after


def unknown_rate(encoded: Iterable[np.ndarray]) -> float:
    """The share of tokens that are UNK."""
    unknown = count = 0
    for tokens in encoded:
        unknown += int(np.count_nonzero(tokens == UNK))
        count += len(tokens)
    return unknown / max(1, count)


def comparison_words(texts: Iterable[str], most: int = 8) -> list[str]:
    """Words by which tokenizers can be told apart: the longest of a text, and as many that occur in it only once.

    Words are runs of at most ``LONGEST`` letters; those that occur once are evenly spread over the alphabet.
    """
    counts = _words(texts)
    longest = sorted(counts, key=lambda word: (-len(word), word))[: most // 2]
    once = sorted(word for word, count in counts.items() if count == 1 and word not in longest)
    wanted = min(most - len(longest), len(once))
    return longest + [once[(2 * i + 1) * len(once) // (2 * wanted)] for i in range(wanted)]


def costly_words(tokenizer: Tokenizer, texts: Iterable[str], most: int = 8) -> list[tuple[str, int]]:
    """The words that cost a text the most tokens beyond one per word, and how often they occur; an unknown word counts
    one token per letter."""
    counts = _words(texts)
    costs = _costs(tokenizer, counts)
    return [(word, counts[word]) for word in sorted(costs, key=lambda word: (-costs[word], word))[:most]]


def split_word(tokenizer: Tokenizer, word: str) -> str:
    """The pieces of a word within a sentence, for people to read: ``▁ap propri ation``."""
    return " ".join(tokenizer.piece(token) for token in tokenizer.encode(f" {word}"))


def _costs(tokenizer: Tokenizer, counts: Counter[str]) -> dict[str, int]:
    """The tokens beyond one, over all occurrences, of each word that is several tokens or unknown."""
    costs: dict[str, int] = {}
    for word, ids in zip(counts, tokenizer.encode_batch([f" {word}" for word in counts]), strict=True):
        if more := (len(word) if UNK in ids else len(ids) - 1):
            costs[word] = counts[word] * more
    return costs


def _words(texts: Iterable[str]) -> Counter[str]:
    """The runs of at most ``LONGEST`` letters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word in _WORD.findall(text) if len(word) <= LONGEST)
    return counts


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[np.ndarray]:
    for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
        yield from tokenizer.encode_batch(texts[start : start + DOCUMENTS_AT_ONCE])
