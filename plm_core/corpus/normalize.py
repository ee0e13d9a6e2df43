"""The one normal form of text: what the corpus holds, the tokenizer encodes and bits per byte divides by. Also defines
paragraphs and words."""

import re
import unicodedata
from collections.abc import Iterator

WORD_BOUNDARY = "\u2581"
"""sentencepiece's own mark for a space (LOWER ONE EIGHTH BLOCK): a text that contains it cannot round-trip."""

BETWEEN = "\n\n"
"""The separator of paragraphs in a cleaned text, which does not occur within one."""

UNSPACED = (
    r"\u0e00-\u109f\u1780-\u17ff\u3041-\u3096\u309d-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\ua48c"
    r"\ua980-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U00033fff"
)
"""Characters of scripts that put no space between words, for a class of a regular expression: Thai, Lao, Tibetan,
Burmese, Khmer, kana, Chinese characters, Yi, Javanese."""
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
"""A run of characters between whitespace; in scripts without spaces between words, each character."""


def normalize(text: str) -> str:
    """Unicode NFC, line ends as ``\\n``, no NUL, and sentencepiece's space mark as an underscore. Idempotent."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").replace(WORD_BOUNDARY, "_")
    return unicodedata.normalize("NFC", text)


def paragraphs(text: str) -> list[str]:
    """Split a text at its empty lines; the paragraphs are stripped, and none is empty."""
    parts: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            parts[-1].append(line.strip())
        elif parts[-1]:
            parts.append([])
    return ["\n".join(lines) for lines in parts if lines]


def paragraphs_of(text: str) -> list[str]:
    """The paragraphs of a cleaned text, which are joined by ``BETWEEN``."""
    return text.split(BETWEEN) if text else []


def words_of(text: str) -> list[str]:
    """The words of a text, as matched by ``WORD``."""
    return WORD.findall(text)


def shortened(text: str, words: int | None, last: bool = False) -> str:
    """The first or last ``words`` words of a text, with the whitespace between them; None: all."""
    matches = list(WORD.finditer(text))
    if words is None or len(matches) <= words:
        return text
    return text[matches[-words].start() :] if last else text[: matches[words - 1].end()]


def split_text(text: str, most: int) -> Iterator[str]:
    """A text in parts of at most ``most`` characters, cut before a space or line end if possible."""
    start = 0
    while len(text) - start > most:
        stop = start + most
        end = max(text.rfind(" ", start, stop), text.rfind("\n", start, stop))
        end = end if end > start else stop
        yield text[start:end]
        start = end
    yield text[start:]


def duplicate_key(text: str) -> str:
    """A key that two paragraphs share if they are equal when case is ignored and each run of whitespace is one
    space."""
    return " ".join(text.casefold().split())
