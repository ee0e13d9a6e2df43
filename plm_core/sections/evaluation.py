"""The section ``evaluate``: how likelihoods are measured and texts sampled. Read without torch."""

from dataclasses import KW_ONLY, fields

from pydantic import NonNegativeInt, PositiveInt

from plm_core.config import digest, section
from plm_core.shared.sampling import SamplingConfig

BLANK = "___"


@section
class LikelihoodConfig:
    """How likelihoods are measured; part of section ``evaluate`` of the parameters."""

    stride: PositiveInt
    """How many tokens a causal model's window advances in a long document; its context or more: disjoint windows."""
    excerpt: PositiveInt | None = None
    """Score only this many tokens from the start of each document, where scoring is expensive: the pseudo-likelihood,
    which costs one forward pass per token, and the mean over orders. Null for whole documents."""
    within_word: bool = False
    """Whether the pseudo-likelihood masks the rest of a token's word with it."""
    orders: NonNegativeInt = 0
    """Over how many random orders a permutation model's likelihood is averaged; 0 to leave this measure out."""

    @property
    def measured(self) -> str:
        """The digest of these settings, as recorded in evidence."""
        return digest({each.name: getattr(self, each.name) for each in fields(LikelihoodConfig)})[:16]


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
            around(text)


def around(text: str) -> tuple[str, str]:
    """The text before and after the blank ``___``; a space before the blank is part of what it hides.

    Raises:
        ValueError: the text does not have exactly one blank.
    """
    before, *after = text.split(BLANK)
    if len(after) != 1:
        raise ValueError(f"cloze: {text!r} has {len(after)} blanks; expected exactly one {BLANK}")
    return before.removesuffix(" "), after[0]
