"""The section ``evaluate``: how likelihoods are measured, and texts drawn. Read without torch."""

import math
from dataclasses import dataclass

BLANK = "___"


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """How likelihoods are measured; part of section ``evaluate`` of the parameters."""

    stride: int
    """Tokens by which a causal model's window advances over a long document; its context or more: disjoint windows."""
    excerpt: int | None = None
    """Score only so many tokens from the start of each document, where a token is dear: the pseudo-likelihood, which
    costs a forward pass a token, and the mean over orders. Null for whole documents."""
    within_word: bool = False
    """Whether the pseudo-likelihood masks the rest of a token's word with it."""
    orders: int = 0
    """Over how many random orders a permutation model's likelihood is averaged; 0: not at all."""

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride: {self.stride}; expected at least 1")
        if self.excerpt is not None and self.excerpt < 1:
            raise ValueError(f"excerpt: {self.excerpt}; expected at least 1, or null for whole documents")
        if self.orders < 0:
            raise ValueError(f"orders: {self.orders}; expected at least 0")


@dataclass(frozen=True)
class SamplingConfig:
    """How a text goes on: how far, and how each token is drawn."""

    max_new_tokens: int = 64
    """The longest continuation, in tokens."""
    until_end: bool = True
    """Whether the text ends at the end-of-document token; if not, that token is never drawn and the text has exactly
    ``max_new_tokens`` tokens."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token each time (greedy)."""
    top_k: int = 50
    """Draw among the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Then draw among the fewest most likely tokens whose probabilities add up to this; 1 for all."""
    repetition_penalty: float = 1.0
    """The logits of tokens that prompt or text hold are divided by it when positive, else multiplied; 1 for none."""
    seed: int = 0
    """Of the draws; equal seeds give equal texts. Row i of a batch has the seed ``seed + i``."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: {self.max_new_tokens}; expected at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: {self.temperature}; expected at least 0 and finite")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k}; expected at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p}; expected above 0 and at most 1")
        if not 1 <= self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty: {self.repetition_penalty}; expected at least 1 and finite")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed: {self.seed}; expected a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(LikelihoodConfig):
    """Section ``evaluate`` of the parameters."""

    prompts: list[str] | None = None
    """The beginnings of the sample texts; null: the first words of the first documents of the test split."""
    sampling: SamplingConfig
    """How samples are drawn."""
    cloze: list[str] | None = None
    """Texts with one blank each, written ``___``: the samples of a masked model, which continues no text. Null: the
    same beginnings, with a blank behind each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.cloze or ():
            around(text)


def around(text: str) -> tuple[str, str]:
    """What stands before and after the blank ``___`` of a text; a space before it is part of what it hides.

    Raises:
        ValueError: the text has not exactly one blank.
    """
    before, *after = text.split(BLANK)
    if len(after) != 1:
        raise ValueError(f"cloze: {text!r} has {len(after)} blanks; expected exactly one {BLANK}")
    return before.removesuffix(" "), after[0]
