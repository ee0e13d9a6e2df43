"""Rules: a measure, its bounds and its own arguments, as the section ``clean`` states them. Used by ``clean.py``."""

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
    """What a measure may be; the ends are allowed."""

    min: float | None = None
    """A text with less is removed."""
    max: float | None = None
    """A text with more is removed."""

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError("min: missing, and max too; expected at least one of them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: {self.min} is more than max ({self.max}); expected a number that can be met")

    def measured(self, name: str, text: Text) -> float:
        """The measure of a text, with the arguments of this rule."""
        arguments = {key: value for key, value in vars(self).items() if key not in ("min", "max")}
        return MEASURES[name](text, **arguments)


@section
class StopWords(Bounds):
    """The rule ``stop_words``."""

    words: tuple[str, ...] = STOP_WORDS
    """What is looked for: the most frequent words of your language, in small letters."""


@section
class PolicyPhrases(Bounds):
    """The rule ``policy_phrases``."""

    phrases: tuple[str, ...] = POLICY_PHRASES
    """What is looked for, in small letters."""


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
"""The rules with arguments of their own; the other measures have bounds alone."""


def _read(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Each rule as the class of its name; ValueError when there is no such measure, or a rule is none."""
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
"""By measure; the first rule that a text breaks is the reason why it is removed."""
