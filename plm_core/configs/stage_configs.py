"""The sections ``deduplicate`` and ``evaluate``, read without heavy libraries."""

from dataclasses import KW_ONLY, field, fields
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from plm_core.config import PositiveShare, digest, section
from plm_core.shared.options import SamplingConfig

BLANK = "___"


@section
class Similarity:
    """When two texts count as near-duplicates."""

    threshold: PositiveShare = 0.75
    """The smallest Jaccard similarity of their sets of shingles."""
    shingle: PositiveInt = 5
    """Words in a shingle."""
    bands: PositiveInt = 16
    """b: texts are compared if at least one of the b bands of their signatures is equal ..."""
    rows: PositiveInt = 5
    """r: ... of r values each. Two texts of similarity s are compared with probability 1 - (1 - s^r)^b."""


@section
class DeduplicateConfig:
    """Section ``deduplicate`` of the parameters."""

    documents: Literal["keep_one", "same_side", "off"] = "keep_one"
    """What happens to duplicate documents: ``keep_one``; keep all, on the ``same_side`` of the split; or ``off``."""
    paragraphs: Literal["keep_one", "off"] = "keep_one"
    """The same for the paragraphs of all documents that are kept."""
    similarity: Similarity = field(default_factory=Similarity)
    """When texts count as duplicates."""

    def __post_init__(self) -> None:
        if self.documents == "same_side" and self.paragraphs != "off":
            raise ValueError(
                f"documents: same_side keeps duplicates, but paragraphs: {self.paragraphs} would leave nothing of "
                "them; expected paragraphs: off together with it"
            )


@section
class LikelihoodConfig:
    """How likelihoods are measured; part of section ``evaluate`` of the parameters."""

    stride: PositiveInt
    """How many tokens a causal model's window advances in a long text; with its context or more, windows are
    disjoint."""
    excerpt: PositiveInt | None = None
    """Score only this many tokens from the start of each document, where scoring is expensive: the pseudo-likelihood,
    which costs one forward pass per token, and the mean over orders. Null for whole documents."""
    within_word: bool = False
    """Whether the pseudo-likelihood masks the rest of a token's word together with the token."""
    orders: NonNegativeInt = 0
    """How many random orders a permutation model's likelihood is averaged over; 0 leaves this measure out."""

    @property
    def measured(self) -> str:
        """The digest of these settings, as recorded in evidence."""
        return digest({f.name: getattr(self, f.name) for f in fields(LikelihoodConfig)})[:16]


@section
class EvaluateConfig(LikelihoodConfig):
    """Section ``evaluate`` of the parameters."""

    _: KW_ONLY
    prompts: list[str] | None = None
    """The prompts of the sample texts; null: the first words of the first documents of the test split."""
    sampling: SamplingConfig
    """How samples are drawn."""
    cloze: list[str] | None = None
    """Texts with one blank each, written ``___``: the samples of a masked model, which cannot continue a text. Null:
    the same prompts, with a blank after each."""

    def __post_init__(self) -> None:
        for text in self.cloze or ():
            around_blank(text)


def around_blank(text: str) -> tuple[str, str]:
    """The text before and after the blank ``___``; a space before the blank is part of what it hides.

    Raises:
        ValueError: the text does not have exactly one blank.
    """
    before, *after = text.split(BLANK)
    if len(after) != 1:
        raise ValueError(f"cloze: {text!r} has {len(after)} blanks; expected exactly one {BLANK}")
    return before.removesuffix(" "), after[0]
