"""Gopher's quality measures: Rae et al. 2021 (arXiv:2112.11446), appendix A.1.1, "Quality Filtering".

Each docstring ends with the bound of the paper. For an empty text all are 0.
"""

from collections.abc import Iterable

from plm_core.corpus.measures.text import Text

BULLETS = ("•", "-")
"""The paper says "bullet point"; datatrove takes these two."""
ELLIPSES = ("...", "…")
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


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


def share(part: int, whole: int) -> float:
    """``part / whole``; 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
