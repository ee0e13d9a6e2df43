"""The language of a text, by py3langid (Lui and Baldwin 2012, "langid.py"; 138 languages). Used by the clean stage.

It reads 2 to 3 MB/s, so only the beginning of a text is used.
"""

import functools
import re
from typing import Any

from plm_core.config import Share, UserError, section

BEGINNING = 1000
"""The number of characters used; 300 of any State of the Union address already give a probability above 0.99."""
UNDETERMINED = "und"
"""ISO 639-2's code for an undetermined language."""


@section
class LanguageConfig:
    """Section ``clean.languages`` of the parameters."""

    keep: tuple[str, ...]
    """Codes of the languages that are kept: ISO 639-1 if there is one (``en``), otherwise ISO 639-3. Quote ``"no"``."""
    min_confidence: Share = 0.5
    """With a smaller probability the language is undetermined; FineWeb requires 0.65 from its own identifier."""

    def __post_init__(self) -> None:
        if not self.keep:
            raise ValueError("keep: empty; expected at least one language, or null for `languages`")
        for code in self.keep:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"keep: found {code!r}; expected codes of two or three lowercase letters, such as en")


def language_of(text: str, min_confidence: float) -> tuple[str, float]:
    """The code of the text's language, or ``und``, and the probability of the most probable language."""
    code, confidence = _identifier().classify(text[:BEGINNING])
    return (code if confidence >= min_confidence else UNDETERMINED), confidence


def require_known(config: LanguageConfig) -> None:
    """Check that each language of ``keep`` can be identified.

    Raises:
        UserError: one cannot; the message lists those that can.
    """
    codes = {*_identifier().labels, UNDETERMINED}
    for code in config.keep:
        if code not in codes:
            listed = ", ".join(sorted(codes))
            raise UserError(f"clean.languages.keep: {code!r} cannot be identified; expected some of {listed}")


@functools.cache
def _identifier() -> Any:
    """The identifier with its model, loaded on first use because it takes half a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
