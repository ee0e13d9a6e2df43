"""Measures: numbers computed from a text, each with its source and the published bound.

Used by the clean stage. The parameters set its bounds for paragraphs or documents; a measure named there is on.
"""

from collections.abc import Callable
from functools import partial

from plm_core.corpus.measures import c4, fineweb, gopher, repetition
from plm_core.corpus.measures.text import Text


def characters(text: Text) -> float:
    """Number of characters: the size of a text in any script; there is no published bound."""
    return len(text.text)


MEASURES: dict[str, Callable[..., float]] = {
    "characters": characters,
    "words": gopher.words,
    "mean_word_length": gopher.mean_word_length,
    "hashes_per_word": gopher.hashes_per_word,
    "ellipses_per_word": gopher.ellipses_per_word,
    "bullet_line_share": gopher.bullet_line_share,
    "ellipsis_line_share": gopher.ellipsis_line_share,
    "alphabetic_word_share": gopher.alphabetic_word_share,
    "stop_words": gopher.stop_words,
    "duplicate_line_share": repetition.duplicate_line_share,
    "duplicate_line_character_share": repetition.duplicate_line_character_share,
    "duplicate_paragraph_share": repetition.duplicate_paragraph_share,
    "duplicate_paragraph_character_share": repetition.duplicate_paragraph_character_share,
    **{f"top_{n}gram_character_share": partial(repetition.top_ngram_character_share, n=n) for n in (2, 3, 4)},
    **{
        f"duplicate_{n}gram_character_share": partial(repetition.duplicate_ngram_character_share, n=n)
        for n in range(5, 11)
    },
    "terminal_line_share": c4.terminal_line_share,
    "shortest_line_words": c4.shortest_line_words,
    "sentences": c4.sentences,
    "longest_word": c4.longest_word,
    "lorem_ipsum": c4.lorem_ipsum,
    "curly_brackets": c4.curly_brackets,
    "javascript": c4.javascript,
    "policy_phrases": c4.policy_phrases,
    "long_lines": c4.long_lines,
    "punctuated_line_share": fineweb.punctuated_line_share,
    "short_line_share": fineweb.short_line_share,
    "line_ends_per_word": fineweb.line_ends_per_word,
}
"""Functions of a ``Text`` and of the arguments of their rules (``plm_core/corpus/rules.py``)."""
