"""The sections ``objective`` of a pretraining: what each can be told, and which models it fits. Read without torch.

The objectives inherit from them; who checks parameters before anything runs reads them alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plm_core.config import BadInput, from_dict

FRAME = 3
"""The special tokens of a pair of the permutation objective."""


@dataclass(frozen=True)
class CausalSection:
    """How the causal objective reads."""

    streams: bool = False
    """Read contiguous rows and carry the model's memory on; for models that have one."""
    packing: Literal["stream", "documents"] = "stream"
    """What a row holds: so many tokens of the stream, or documents that do not see each other, cut as seldom as can
    be."""

    def __post_init__(self) -> None:
        if self.streams and self.packing == "documents":
            raise ValueError("packing: documents with streams true; expected stream, for memory reads on across rows")

    def require_fit(self, config: Any) -> None:
        """Raise ValueError when ``streams`` or ``packing`` and the model's memory do not fit each other."""
        memory = getattr(config, "memory", None)
        if self.packing == "documents" and memory is not None:
            raise ValueError(
                f"objective.packing: documents for a model with memory {memory}; expected stream, all that such a "
                "model reads"
            )
        if self.streams != bool(memory):
            raise ValueError(
                f"objective.streams: {self.streams} for a model with memory {memory}; expected true for one with "
                "memory above 0, and false for one without"
            )


@dataclass(frozen=True)
class MaskedSection:
    """What the masked objective hides, and how it reads."""

    rate: float = 0.15
    """The share of a row's tokens that is selected."""
    next_sentence: bool = False
    """Pairs of spans, and whether the second follows the first, as BERT; else packed text, as RoBERTa."""
    packing: Literal["stream", "documents"] = "stream"
    """What a row of packed text holds: so many tokens of the stream, or documents that do not see each other, cut as
    seldom as can be."""

    def __post_init__(self) -> None:
        if self.next_sentence and self.packing == "documents":
            raise ValueError("packing: documents with next_sentence true; expected stream, for a row is one pair then")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: {self.rate}; expected above 0 and below 1")

    def text_length(self, context: int) -> int:
        """How many tokens of text a row holds beside its special tokens."""
        return context - (3 if self.next_sentence else 2)

    def require_fit(self, config: Any) -> None:
        """Raise ValueError when the context has no room for text, or the model no second segment for a pair."""
        if (length := self.text_length(config.context)) < 2:
            raise ValueError(
                f"model.context: {config.context} leaves {length} tokens of text a row; expected at least 2"
            )
        if self.next_sentence and config.segments < 2:
            raise ValueError(f"model.segments: {config.segments}; expected at least 2 for objective.next_sentence")


@dataclass(frozen=True)
class PermutationSection:
    """How much the permutation objective predicts, and how it reads."""

    predict: int = 6
    """K: one token in K is predicted (appendix A.4: 6)."""
    reuse: int | None = None
    """R, how many tokens of a row belong to the stream (``reuse_len``); null for half the context, as released."""

    def __post_init__(self) -> None:
        if self.predict < 1:
            raise ValueError(f"predict: {self.predict}; expected at least 1")
        if self.reuse is not None and self.reuse < 1:
            raise ValueError(f"reuse: {self.reuse}; expected at least 1, or null")

    def reused(self, context: int) -> int:
        """R for a model of this context."""
        return context // 2 if self.reuse is None else self.reuse

    def text_length(self, context: int) -> int:
        """How many tokens of text a row holds beside its special tokens."""
        R = self.reused(context)
        return R + max(0, context - R - FRAME)

    def require_fit(self, config: Any) -> None:
        """Raise ValueError when the context is one token, R leaves no room for a pair, or nothing is predicted."""
        if config.context < 2:
            raise ValueError(f"model.context: {config.context}; expected at least 2, to predict a token from another")
        R = self.reused(config.context)
        pair = config.context - R
        if pair and pair < FRAME + 2:
            raise ValueError(
                f"objective.reuse: {R} leaves {pair} of model.context {config.context} positions for a pair; expected "
                f"at least {FRAME + 2}, or none"
            )
        if R // self.predict + (self.text_length(config.context) - R) // self.predict < 1:
            raise ValueError(
                f"objective.predict: {self.predict}; one token in so many is none of model.context {config.context}"
            )


SECTIONS: dict[str, type[Any]] = {
    "causal": CausalSection,
    "masked": MaskedSection,
    "permutation": PermutationSection,
}


def read_objective(section: Mapping[str, Any], known: Mapping[str, type[Any]], where: str) -> Any:
    """The one of ``known`` that a section with its ``name`` and its parameters describes.

    Raises:
        BadInput: the name or a parameter cannot be used; ``where`` opens the message.
    """
    name = section.get("name")
    if not isinstance(name, str) or name not in known:
        raise BadInput(f"{where}.name: found {name!r}; expected one of {', '.join(known)}")
    return from_dict(known[name], {key: value for key, value in section.items() if key != "name"}, where)
