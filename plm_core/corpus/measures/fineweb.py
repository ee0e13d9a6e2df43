"""FineWeb's own measures: Penedo et al. 2024 (arXiv:2406.17557), section 3.6, and datatrove's FineWebQualityFilter.

The paper's third one is ``duplicate_line_character_share``. For an empty text all are 0.
"""

from plm_core.corpus.measures.c4 import TERMINAL
from plm_core.corpus.measures.gopher import share
from plm_core.corpus.measures.text import Text

PUNCTUATION = (*TERMINAL, "…")
SHORT_LINE = 30
"""Characters."""


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
