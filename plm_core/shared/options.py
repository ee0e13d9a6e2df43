"""Options that commands and parameters share: kinds, sampling, and the section ``notify``."""

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

Tokenizers = Literal["bpe", "unigram", "wordpiece", "bytelevel"]
TOKENIZERS: tuple[str, ...] = get_args(Tokenizers)
"""The kinds of tokenizers."""

Formats = Literal["hf", "mlflow", "gguf", "gguf-f32", "gguf-q8_0"]
"""The formats of exported models: a folder for transformers or for `mlflow models serve`, or a GGUF file with 16, 32 or
8 bits per weight."""


@dataclass(frozen=True)
class SamplingConfig:
    """How a text is continued: how far, and how each token is drawn."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
    """As ``plm_core.config.section`` sets it, which this package does not import."""

    max_new_tokens: int = 64
    """The longest continuation, in tokens."""
    until_end: bool = True
    """Whether the text ends at the end-of-document token; if not, that token is never drawn and the text has exactly
    ``max_new_tokens`` tokens."""
    temperature: float = 0.8
    """Divides the logits; 0 always takes the most likely token (greedy)."""
    top_k: int = 50
    """Sample from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Then sample from the smallest set of most likely tokens whose probabilities add up to this; 1 for all."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens in the prompt or the text if positive, multiplies them otherwise; 1 for none."""
    seed: int = 0
    """The seed of the draws; equal seeds give equal texts. Row i of a batch has the seed ``seed + i``."""

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


Event = Literal["failure", "refusal", "promotion", "rollback", "missed", "disk", "budget"]
EVENTS: tuple[Event, ...] = get_args(Event)


@dataclass(frozen=True)
class NotifyConfig:
    """Who is notified, and of what. The addresses are secrets: this section only names where they are."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"strict": True, "extra": "forbid"}
    """As ``plm_core.config.section`` sets it, which this package does not import."""

    urls_from: str = "PLM_NOTIFY_URLS"
    """The environment variable that holds the addresses, as apprise URLs separated by spaces. If it is not set, nobody
    is notified."""
    events: tuple[Event, ...] = EVENTS
    """The events: a run that failed, a model that the gate refused, one that it promoted, a rollback, a scheduled run
    that did not happen, a disk that will be full within days, a training run that has spent its budget."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.urls_from):  # it may be an address, so it is not shown
            raise ValueError("urls_from: expected the name of an environment variable, such as PLM_NOTIFY_URLS")
