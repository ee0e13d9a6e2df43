"""Measures: numbers computed from a text, each with its source and the published bound. Used by the clean stage.

For an empty text all are 0. Sources: Gopher (Rae et al. 2021, arXiv:2112.11446, appendix A.1.1), C4 (Raffel et al.
2020, arXiv:1910.10683, section 2.2, and its code, c4_utils.py of TensorFlow Datasets, which adds some), FineWeb (Penedo
et al. 2024, arXiv:2406.17557, section 3.6) and datatrove's filters for them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from plm_core.corpus.normalize import paragraphs

Ints = npt.NDArray[np.int64]

CLOSING = "\"'”’)]»"
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
_END = "[.!?…。！？]"
# Match only from the beginning of a run of marks, without backtracking, so that the time is linear in its length.
_SENTENCE_END = re.compile(
    rf"{_END}(?<!{_END}{_END})(?:{_END}*+[{re.escape(CLOSING)}]*+(?=\s|$)|(?<=[。！？])|[.!?…]*+[。！？])"
)
BULLETS = ("•", "-")
"""Gopher says "bullet point"; datatrove takes these two."""
ELLIPSES = ("...", "…")
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
TERMINAL = (".", "?", "!", '"', "'", "”", "’", "。", "！", "？")
"""C4: full stop, question mark, exclamation mark, end quotation mark. Its code has only the ASCII ones."""
PUNCTUATION = (*TERMINAL, "…")
LONG_LINE = 200
"""Characters (mC4)."""
SHORT_LINE = 30
"""Characters (FineWeb)."""
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


class Text:
    """A text in normal form, and what is counted in it, each computed once.

    A word is what is between whitespace, as in Dolma (Soldaini et al. 2024, arXiv:2402.00159): "end." is one word.
    datatrove counts punctuation as separate words, so that prose with many commas has a small share of alphabetic
    words. Text without spaces (Chinese, Japanese, Thai) has few, long words here: use ``characters``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._levels: list[tuple[Ints, Ints]] = []

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not empty, which only separate our paragraphs; stripped."""
        return [line for raw in self.text.split("\n") if (line := raw.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        return paragraphs(self.text)

    @cached_property
    def lower(self) -> str:
        return self.text.lower()

    @cached_property
    def word_ends(self) -> Ints:
        """The number of characters before each word and after the last, not counting whitespace: ``[words + 1]``."""
        lengths = np.fromiter(map(len, self.words), np.int64, len(self.words))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def repeated(self, n: int) -> tuple[Ints, Ints]:
        """The n-grams of words that occur more than once: their places in order, and a number that equal ones share.

        Exact, without a hash: an n-gram can occur twice only where both (n-1)-grams in it do, so each n checks only the
        few places left; two numbers below 2^32 are combined into the key of the next n.
        """
        if not self._levels:
            number = {word: i for i, (word, count) in enumerate(Counter(self.words).items()) if count > 1}
            numbers = np.array([number.get(word, -1) for word in self.words], np.int64)
            places = np.flatnonzero(numbers >= 0)
            self._levels.append((places, numbers[places]))
        while len(self._levels) < n:
            places, numbers = self._levels[-1]
            if len(places):
                first = np.flatnonzero(places[1:] - places[:-1] == 1)
                places, numbers = _more_than_once(places[first], (numbers[first] << 32) | numbers[first + 1])
            self._levels.append((places, numbers))
        return self._levels[n - 1]


def _more_than_once(places: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """The places whose key occurs at another place too, and a number from 1 for each such key."""
    if len(keys) < 2:
        return places[:0], keys[:0]
    # np.unique takes three times as long, which matters for texts of a few words.
    order = keys.argsort()
    ordered = keys[order]
    begins = np.ones(len(keys) + 1, bool)
    begins[1:-1] = ordered[1:] != ordered[:-1]
    again = np.empty(len(keys), bool)
    numbers = np.empty(len(keys), np.int64)
    again[order] = ~(begins[:-1] & begins[1:])
    numbers[order] = begins[:-1].cumsum()
    return places[again], numbers[again]


def share(part: int, whole: int) -> float:
    """``part / whole``; 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0


def characters(text: Text) -> float:
    """Number of characters: the size of a text in any script; there is no published bound."""
    return len(text.text)


# Gopher's quality measures, "Quality Filtering".


def words(text: Text) -> float:
    """Number of words; 50 to 100,000."""
    return len(text.words)


def mean_word_length(text: Text) -> float:
    """Mean characters per word, with punctuation; 3 to 10."""
    return share(len("".join(text.words)), len(text.words))


def hashes_per_word(text: Text) -> float:
    """Characters ``#`` per word; at most 0.1."""
    return share(text.text.count("#"), len(text.words))


def ellipses_per_word(text: Text) -> float:
    """Ellipses (``...`` or ``…``) per word; at most 0.1."""
    return share(sum(map(text.text.count, ELLIPSES)), len(text.words))


def bullet_line_share(text: Text) -> float:
    """Share of lines that begin with a bullet; at most 0.9."""
    return share(sum(line.startswith(BULLETS) for line in text.lines), len(text.lines))


def ellipsis_line_share(text: Text) -> float:
    """Share of lines that end with an ellipsis; at most 0.3."""
    return share(sum(line.endswith(ELLIPSES) for line in text.lines), len(text.lines))


def alphabetic_word_share(text: Text) -> float:
    """Share of words with at least one letter of any alphabet; at least 0.8."""
    others = [word for word in text.words if not word.isalpha()]
    without = sum(not any(map(str.isalpha, word)) for word in others)
    return share(len(text.words) - without, len(text.words))


def stop_words(text: Text, words: Iterable[str] = STOP_WORDS) -> float:
    """How many of these words occur, case-sensitively; at least 2. The paper's are for English only."""
    return len(set(words).intersection(text.words))


# Gopher's repetition measures, "Repetition Removal", table A1. A share of characters is relative to all characters of
# the text, including whitespace.


def duplicate_line_share(text: Text) -> float:
    """Share of lines that repeat an earlier line; at most 0.30."""
    return share(len(text.lines) - len(set(text.lines)), len(text.lines))


def duplicate_line_character_share(text: Text) -> float:
    """Share of characters in lines that repeat an earlier line; at most 0.20.

    FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6) divides by the characters without line ends and sets a
    bound of 0.1; the default of datatrove is 0.01.
    """
    return share(_repeated_characters(text.lines), len(text.text))


def duplicate_paragraph_share(text: Text) -> float:
    """Share of paragraphs that repeat an earlier paragraph; at most 0.30."""
    return share(len(text.paragraphs) - len(set(text.paragraphs)), len(text.paragraphs))


def duplicate_paragraph_character_share(text: Text) -> float:
    """Share of characters in paragraphs that repeat an earlier paragraph; at most 0.20."""
    return share(_repeated_characters(text.paragraphs), len(text.text))


def top_ngram_character_share(text: Text, n: int) -> float:
    """Share of characters in the most frequent n-gram of words; at most 0.20, 0.18, 0.16 for n = 2, 3, 4.

    As in datatrove: the first if several are equally frequent, with a space between words. If no n-gram occurs twice it
    is the text's first one, which has a large share of a short paragraph: use it for documents.
    """
    count = len(text.words)
    if count < n:
        return 0.0
    places, numbers = text.repeated(n)
    first, times = 0, 1
    if len(places):
        occurrences = np.bincount(numbers)[numbers]
        first = int(places[occurrences.argmax()])
        times = int(occurrences.max())
    characters = int(text.word_ends[first + n] - text.word_ends[first]) + n - 1
    return share(characters * times, len(text.text))


def duplicate_ngram_character_share(text: Text, n: int) -> float:
    """Share of characters in n-grams that repeat an earlier one; at most 0.15, 0.14, ... 0.10 for n = 5, 6, ... 10.

    As in datatrove: from left to right, without whitespace; after a repeated n-gram the next one begins after it, so
    that no character counts twice.
    """
    places, numbers = text.repeated(n)
    if not len(places):
        return 0.0
    seen = set[int]()
    free = 0
    characters = 0
    for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
        if place < free:
            continue
        if number in seen:
            characters += int(text.word_ends[place + n] - text.word_ends[place])
            free = place + n
        else:
            seen.add(number)
    return share(characters, len(text.text))


def _repeated_characters(parts: Sequence[str]) -> int:
    # A text seldom repeats a part: the difference of two sums is faster than checking each.
    return sum(map(len, parts)) - sum(map(len, set(parts)))


# C4's measures. C4 removes lines and pages; here a bound for ``paragraphs`` or ``documents`` says which.


def terminal_line_share(text: Text) -> float:
    """Share of lines that end with a terminal punctuation mark and not with an ellipsis; C4 keeps only these (1)."""
    ended = sum(line.endswith(TERMINAL) and not line.endswith(ELLIPSES) for line in text.lines)
    return share(ended, len(text.lines))


def shortest_line_words(text: Text) -> float:
    """Number of words of the line with the fewest; C4 keeps only lines with at least 3 (5 in an earlier version)."""
    return min((len(line.split()) for line in text.lines), default=0)


def sentences(text: Text) -> float:
    """Number of sentences; C4 keeps only pages with at least 5 (3 in an earlier version).

    Each ends with ``.``, ``!``, ``?`` or ``…`` before whitespace, or with its line. An abbreviation ends one too ("Mr.
    X" counts two), which NLTK's tokenizer mostly avoids.
    """
    unfinished = sum(not line.rstrip(CLOSING).endswith(SENTENCE_ENDS) for line in text.lines)
    return len(_SENTENCE_END.findall(text.text)) + unfinished


def longest_word(text: Text) -> float:
    """Characters of the longest word; at most 1,000 (the code of C4)."""
    return max(map(len, text.words), default=0)


def lorem_ipsum(text: Text) -> float:
    """Occurrences of "lorem ipsum", in any case; C4 keeps only pages with 0."""
    return text.lower.count("lorem ipsum")


def curly_brackets(text: Text) -> float:
    """Occurrences of ``{``, a sign of program code; C4 keeps only pages with 0."""
    return text.text.count("{")


def javascript(text: Text) -> float:
    """Occurrences of "javascript", in any case; C4 keeps only lines with 0."""
    return text.lower.count("javascript")


def policy_phrases(text: Text, phrases: Iterable[str] = POLICY_PHRASES) -> float:
    """Occurrences of phrases, such as "privacy policy", in any case; C4 keeps only lines with 0."""
    return sum(map(text.lower.count, phrases))


def long_lines(text: Text, characters: int = LONG_LINE) -> float:
    """Number of lines of at least this many characters; at least 3, of 200, in mC4 (Xue et al. 2021, arXiv:2010.11934,
    section 3.1)."""
    return sum(len(line) >= characters for line in text.lines)


# FineWeb's own measures; the paper's third one is ``duplicate_line_character_share``.


def punctuated_line_share(text: Text) -> float:
    """Share of lines that end with a punctuation mark or a quotation mark; at least 0.12.

    The marks are those of FineWeb and of C4; by default datatrove now takes the full stops of all scripts instead, and
    no quotation marks.
    """
    return share(sum(line.endswith(PUNCTUATION) for line in text.lines), len(text.lines))


def short_line_share(text: Text, characters: int = SHORT_LINE) -> float:
    """Share of lines of at most this many characters; at most 0.67."""
    return share(sum(len(line) <= characters for line in text.lines), len(text.lines))


def line_ends_per_word(text: Text) -> float:
    """Line ends per word, which are many in a list; at most 0.3 (datatrove; not in the paper)."""
    return share(len(text.lines) - 1, len(text.words))


MEASURES: dict[str, Callable[..., float]] = {
    measure.__name__: measure
    for measure in (
        characters,
        words,
        mean_word_length,
        hashes_per_word,
        ellipses_per_word,
        bullet_line_share,
        ellipsis_line_share,
        alphabetic_word_share,
        stop_words,
        duplicate_line_share,
        duplicate_line_character_share,
        duplicate_paragraph_share,
        duplicate_paragraph_character_share,
    )
}
MEASURES |= {f"top_{n}gram_character_share": partial(top_ngram_character_share, n=n) for n in (2, 3, 4)}
MEASURES |= {f"duplicate_{n}gram_character_share": partial(duplicate_ngram_character_share, n=n) for n in range(5, 11)}
MEASURES |= {
    measure.__name__: measure
    for measure in (
        terminal_line_share,
        shortest_line_words,
        sentences,
        longest_word,
        lorem_ipsum,
        curly_brackets,
        javascript,
        policy_phrases,
        long_lines,
        punctuated_line_share,
        short_line_share,
        line_ends_per_word,
    )
}
"""Functions of a ``Text`` and of the arguments of their rules (``cleaning.py``), by name."""
