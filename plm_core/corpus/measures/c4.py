"""C4's measures: Raffel et al. 2020 (arXiv:1910.10683), section 2.2, and its code (c4_utils.py of TensorFlow Datasets),
which adds some.

C4 removes lines and pages; here a bound for ``paragraphs`` or ``documents`` says which. For an empty text all are 0.
"""

from collections.abc import Iterable

from plm_core.corpus.measures.gopher import ELLIPSES, share
from plm_core.corpus.measures.text import Text

TERMINAL = (".", "?", "!", '"', "'", "”", "’", "。", "！", "？")
"""C4: full stop, question mark, exclamation mark, end quotation mark. Its code only has those of ASCII."""
LONG_LINE = 200
"""Characters (mC4)."""
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


def terminal_line_share(text: Text) -> float:
    """Share of lines that end with a terminal punctuation mark and not with an ellipsis; C4 keeps only these (1)."""
    ended = sum(line.endswith(TERMINAL) and not line.endswith(ELLIPSES) for line in text.lines)
    return share(ended, len(text.lines))


def shortest_line_words(text: Text) -> float:
    """Number of words of the line with the fewest; C4 keeps only lines with at least 3 (5 in an earlier version)."""
    return min((len(line.split()) for line in text.lines), default=0)


def sentences(text: Text) -> float:
    """Number of sentences; C4 keeps only pages with at least 5 (3 in an earlier version)."""
    return text.sentences


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
