"""Rules: a measure, its bounds and its own arguments, as stated in the section ``clean``. Used by ``clean.py``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt

from plm_core.config import UserError, did_you_mean, from_dict, section
from plm_core.corpus.measures import MEASURES
from plm_core.corpus.measures.c4 import LONG_LINE, POLICY_PHRASES
from plm_core.corpus.measures.fineweb import SHORT_LINE
from plm_core.corpus.measures.gopher import STOP_WORDS
from plm_core.corpus.measures.text import Text


@section
class Bounds:
    """The allowed range of a measure, including the ends."""

    min: float | None = None
    """A text with less is removed."""
    max: float | None = None
    """A text with more is removed."""

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError("min: missing, and max too; expected at least one of them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: {self.min} is more than max ({self.max}); expected min to be at most max")

    def measured(self, name: str, text: Text) -> float:
        """The measure of a text, with the arguments of this rule."""
        arguments = {key: value for key, value in vars(self).items() if key not in ("min", "max")}
        return MEASURES[name](text, **arguments)


@section
class StopWords(Bounds):
    """The rule ``stop_words``."""

    words: tuple[str, ...] = STOP_WORDS
    """The words to look for: the most frequent ones of your language, in lowercase."""


@section
class PolicyPhrases(Bounds):
    """The rule ``policy_phrases``."""

    phrases: tuple[str, ...] = POLICY_PHRASES
    """The phrases to look for, in lowercase."""


@section
class LongLines(Bounds):
    """The rule ``long_lines``."""

    characters: PositiveInt = LONG_LINE
    """The shortest long line."""


@section
class ShortLines(Bounds):
    """The rule ``short_line_share``."""

    characters: PositiveInt = SHORT_LINE
    """The longest short line."""


OWN: dict[str, type[Bounds]] = {
    "stop_words": StopWords,
    "policy_phrases": PolicyPhrases,
    "long_lines": LongLines,
    "short_line_share": ShortLines,
}
"""The rules with arguments of their own; the other measures only have bounds."""


def _read(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Parse each rule as the class for its name; ValueError if there is no such measure, or a rule is invalid."""
    if unknown := next((name for name in rules if name not in MEASURES), None):
        hint = did_you_mean(unknown, MEASURES) or f"; expected one of {', '.join(MEASURES)}"
        raise ValueError(f"{unknown}: unknown measure{hint}")
    try:
        return {
            name: rule if isinstance(rule, Bounds) else from_dict(OWN.get(name, Bounds), rule, name)
            for name, rule in rules.items()
        }
    except UserError as error:
        raise ValueError(str(error)) from error


Rules = Annotated[dict[str, Bounds], BeforeValidator(lambda given: _read(given) if isinstance(given, dict) else given)]
"""Rules by measure; the first one that a text breaks is the reason for its removal."""
