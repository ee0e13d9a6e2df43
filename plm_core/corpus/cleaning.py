"""Cleaning: normal form, masking, and rules for paragraphs and documents; removals are recorded with measurements.

Used by the clean stage. A rule is a measure with its bounds and its own arguments. The result depends only on a
document's text and the parameters, so parts of a corpus can be cleaned in any order and in parallel.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PositiveInt

from plm_core.config import UserError, did_you_mean, from_dict, section
from plm_core.corpus.document import Document, Part, document_writer
from plm_core.corpus.language import LanguageConfig, language_of
from plm_core.corpus.measures import LONG_LINE, MEASURES, POLICY_PHRASES, SHORT_LINE, STOP_WORDS, Text
from plm_core.corpus.normalize import BETWEEN, normalize, paragraphs
from plm_core.corpus.pii_masking import Kind, mask
from plm_core.corpus.removals import KEPT, Removal, removal_log

EMPTY = "empty"
"""The rule that removes a document with no paragraph left."""
LANGUAGE = "language"
"""The rule that removes a document whose language is not kept."""
WITH_DOCUMENT = "with_document"
"""The name of the rule for paragraphs that were removed with their document."""
LANGUAGE_KEY = "detected_language"
"""The metadata field that holds a document's language; a source's own field of this name is not changed."""


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
        return MEASURES[name](text, **{key: value for key, value in vars(self).items() if key not in ("min", "max")})


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


@section
class CleanConfig:
    """Section ``clean`` of the parameters. Each measure named here (``measures.py``) is a rule."""

    paragraphs: Rules = field(default_factory=dict)
    """Rules by measure: a paragraph outside the bounds is removed. The first broken rule is the reason."""
    documents: Rules = field(default_factory=dict)
    """Rules by measure: a document is removed if what is left of it is outside the bounds."""
    languages: LanguageConfig | None = None
    """The languages that are kept, checked before the rules for documents; null: all, without identification."""
    mask: tuple[Kind, ...] = ()
    """What is masked before anything is measured: email, ip, phone (``pii_masking.py``)."""

    def __post_init__(self) -> None:
        if len(set(self.mask)) < len(self.mask):
            raise ValueError(f"mask: {', '.join(self.mask)}; expected each kind once")


class Cleaned(NamedTuple):
    """The result of cleaning a document."""

    document: Document | None
    """What is left; None: the last removal is the document's."""
    removals: list[Removal]
    """The paragraphs that were removed, by place, and finally the document itself if it was removed."""
    counts: Counter[str]
    """What it adds to the counts of the corpus, named as by ``count_names``.

    Read is kept plus removed, and removed is the sum over rules. Masking and languages also count removed documents.
    """


def clean_part(work: tuple[Part, CleanConfig], folder: Path) -> None:
    """Clean the documents of a part; write what is kept, what is removed, and the counts."""
    part, config = work
    with document_writer(folder / KEPT) as kept, removal_log(folder) as log:
        for document in part.documents():
            cleaned, removals, counts = clean_document(document, config)
            for removal in removals:
                log.write(removal)
            if cleaned is not None:
                kept.write(cleaned)
            for name, number in counts.items():
                log.count(document.source, name, number)


def clean_document(document: Document, config: CleanConfig) -> Cleaned:
    """Apply the rules to a document; the result depends on nothing else."""
    text, masked = mask(normalize(document.text), config.mask)
    parts = paragraphs(text)
    counts = Counter(read_documents=1, read_paragraphs=len(parts), read_bytes=len(document.text.encode()))
    counts.update({f"masked_{kind}": count for kind, count in masked.items()})

    # Paragraph by paragraph, then what is left of the document.
    kept, removals = [], []
    for place, part in enumerate(parts):
        if broken := broken_rule(part, config.paragraphs):
            removals.append(Removal(document.id, place, document.source, *broken, part))
        else:
            kept.append(part)
    left = BETWEEN.join(kept)
    metadata = document.metadata
    broken = None if kept else (EMPTY, f"0 of {len(parts)} paragraphs kept")
    if not broken and config.languages is not None:
        language, confidence = language_of(left, config.languages.min_confidence)
        counts[f"language_{language}"] += 1
        metadata = {LANGUAGE_KEY: language, **metadata}
        if language not in config.languages.keep:
            broken = (LANGUAGE, f"{language} {confidence:.3f}; expected {', '.join(config.languages.keep)}")
    broken = broken or broken_rule(left, config.documents)
    if broken:
        removals.append(Removal(document.id, None, document.source, *broken, left))
    else:
        counts.update(kept_documents=1, kept_paragraphs=len(kept), kept_bytes=len(left.encode()))

    by_rule = [(removal.level, removal.rule) for removal in removals]
    by_rule += [("paragraphs", WITH_DOCUMENT)] * len(kept) if broken else []
    for level, rule in by_rule:
        counts[f"removed_{level}"] += 1
        counts[f"removed_{level}_{rule}"] += 1
    return Cleaned(None if broken else Document(document.id, left, document.source, metadata), removals, counts)


def count_names(config: CleanConfig) -> list[str]:
    """The names of all counts with these parameters, in order, without those of languages."""
    levels = {"documents": [EMPTY, *config.documents], "paragraphs": [*config.paragraphs, WITH_DOCUMENT]}
    if config.languages is not None:
        levels["documents"].insert(1, LANGUAGE)
    names = [f"{what}_{unit}" for what in ("read", "kept") for unit in ("documents", "paragraphs", "bytes")]
    for level, rules in levels.items():
        names += [f"removed_{level}", *(f"removed_{level}_{rule}" for rule in rules)]
    return names + [f"masked_{kind}" for kind in config.mask]


def broken_rule(text: str, rules: Mapping[str, Bounds]) -> tuple[str, str] | None:
    """The first rule that the text breaks, with the value and the bound (``3 < min 4``); None if it breaks none."""

    def number(value: float) -> str:
        return str(int(value)) if value == int(value) else format(value, ".6g")

    measured = Text(text)
    for name, bounds in rules.items():
        value = bounds.measured(name, measured)
        if bounds.min is not None and value < bounds.min:
            return name, f"{number(value)} < min {number(bounds.min)}"
        if bounds.max is not None and value > bounds.max:
            return name, f"{number(value)} > max {number(bounds.max)}"
    return None
